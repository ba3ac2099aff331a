"""Commands of detection and instance segmentation: longtail detect ..."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from longtail.commands.judging import Run
from longtail.commands.shipping import listed
from longtail.config import MachineConfig
from longtail.detection.settings import DetectionConfig, Tde
from longtail.errors import UserError
from longtail.terminal import counted, first_process, parse_alphas, print_lines

if TYPE_CHECKING:
    from longtail.detection.data import DetectionSet
    from longtail.detection.finished import Finished

Device = Literal["auto", "cpu", "cuda"]
T = TypeVar("T")


@dataclass(frozen=True)
class DetectTrain:
    """Train Cascade Mask R-CNN on LVIS, on shapes-lvis or on your own images, and judge it."""

    config: DetectionConfig = field(default_factory=DetectionConfig)
    out: Path | None = None
    """Run folder; runs/DATA-METHOD-sSEED by default."""
    recipe: Path | None = None
    """YAML file whose options become the defaults of this command."""
    resume: bool = False
    """Go on with an interrupted run; nothing in its configuration may change."""
    overwrite: bool = False
    """Replace the run that is in the folder."""

    examples = """
      longtail detect train shapes-lvis
      longtail detect train shapes-lvis --method baseline --epochs 12 --out runs/shapes
      longtail detect train my/folder --backbone resnet50.tv_in1k --pretrained --norm frozen
      longtail detect train --recipe recipes/lvis/v0.5/deconfound-tde.yaml --root ~/data"""

    def begun(self) -> DetectionConfig:
        """The configuration of the run in --out."""
        from longtail.detection.results import DetectionRun

        assert self.out
        return DetectionRun(self.out).config

    def run(self) -> None:
        """Train, then print the figures."""
        from longtail.console import Console
        from longtail.detection.training import fit

        config = self.config
        if not config.data:
            raise UserError(
                "which data? Give shapes-lvis, coco-small, lvis-v0.5, lvis-v1 or a folder"
            )
        out = self.out or Path("runs") / f"{Path(config.data).name}-{config.method}-s{config.seed}"
        with Console() as console:
            run = fit(
                config,
                out=out,
                resume=self.resume,
                overwrite=self.overwrite,
                progress=console,
            )
        if first_process():
            _print([run.result])
            print(f"written to {out}")


@dataclass(frozen=True)
class DetectEval:
    """Judge a finished detector, scored as it was trained for or in another way."""

    folder: Run
    """Folder of a finished run."""
    tde: Tde | None = None
    """off, plain (all classes alike) or background-exempt (Eq. 9); the run's own by default."""
    alpha: float | None = None
    """How much of the indirect effect is removed; the run's own by default."""
    json: bool = False
    """Print the whole result as JSON."""
    device: Device = "auto"
    """`auto` takes CUDA where there is one."""

    examples = """
      longtail detect eval runs/shapes-lvis-deconfound-tde-s0
      longtail detect eval runs/shapes-lvis-deconfound-tde-s0 --tde plain
      longtail detect eval runs/shapes-lvis-deconfound-tde-s0 --tde off --json"""

    def run(self) -> None:
        """Print a table row or JSON."""
        from longtail.detection.finished import Finished

        result = (
            Finished(self.folder, machine=MachineConfig(device=self.device))
            .evaluate(self.tde, self.alpha)
            .to_json()
        )
        if self.json:
            print(json.dumps(result))
        else:
            _print([result])


@dataclass(frozen=True)
class DetectSweep:
    """AP of a finished detector at many alphas."""

    folder: Run
    """Folder of a finished run."""
    alphas: str = "0:2:0.5"
    """FIRST:LAST:STEP, or numbers with commas."""
    tde: Literal["plain", "background-exempt"] = "background-exempt"
    """From all classes alike, or not from the background."""
    device: Device = "auto"
    """`auto` takes CUDA where there is one."""

    examples = """
      longtail detect sweep runs/shapes-lvis-deconfound-tde-s0
      longtail detect sweep runs/shapes-lvis-deconfound-tde-s0 --alphas 0,1,1.5 --tde plain"""

    def run(self) -> None:
        """Print a line for each alpha, and write sweep.csv into the run."""
        from longtail.detection.finished import Finished
        from longtail.results import csv_text

        finished = Finished(self.folder, machine=MachineConfig(device=self.device))
        results = [r.to_json() for r in finished.sweep(parse_alphas(self.alphas), self.tde)]
        _print(results)
        names = tuple(results[0]["ap"])
        rows = ((r["alpha"], *(r["ap"][name] for name in names)) for r in results)
        finished.run.write("sweep.csv", csv_text(("alpha", *names), rows))


@dataclass(frozen=True)
class DetectPredict:
    """Detections of a finished detector: pictures before and after TDE, or LVIS's result file.

    Images that cannot be read are named on standard error and left out; the exit code is then 1.
    """

    folder: Run
    """Folder of a finished run."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")] = ()
    """Files, folders, globs in quotes, or - for a list on standard input; without any, images of
    the run's validation split."""
    out: Path = Path("predictions")
    """Folder of the pictures."""
    count: int = 8
    """How many validation images are drawn."""
    least_score: float = 0.3
    """Detections below it are not drawn."""
    lvis_json: Path | None = None
    """Write all detections as a result file for LVIS's evaluation server, and draw nothing; of
    IMAGES it also tells files and names of classes."""
    annotations: Path | None = None
    """Images are those of this LVIS or COCO file (as LVIS's test images) under --image-folder."""
    image_folder: Path | None = None
    """Where the images of --annotations are; the folder images/ beside that file by default."""
    tde: Tde | None = None
    """off, plain or background-exempt; the run's own by default."""
    alpha: float | None = None
    """How much of the indirect effect is removed; the run's own by default."""
    device: Device = "auto"
    """`auto` takes CUDA where there is one."""

    examples = """
      longtail detect predict runs/shapes-lvis-deconfound-tde-s0 --out pictures
      longtail detect predict runs/coco photo.jpg more/ --least-score 0.5
      longtail detect predict runs/lvis --lvis-json result.json
      longtail detect predict runs/lvis --lvis-json test.json \\
          --annotations lvis_v0.5_image_info_test.json --image-folder images"""

    def run(self) -> None:
        """Write the pictures or the file."""
        from longtail.detection.finished import Finished

        if self.annotations and self.images:
            raise UserError("--annotations lists the images: pass it, or IMAGES, not both")
        if self.image_folder and not self.annotations:
            raise UserError(
                "--image-folder is where the images of --annotations are: pass that too, or the "
                "folder as IMAGES"
            )
        finished = Finished(self.folder, machine=MachineConfig(device=self.device))
        config = finished.scored(self.tde, self.alpha)
        if self.lvis_json:
            whole = self._write(finished, config, self.lvis_json)
        else:
            whole = self._draw(finished, config)
        if not whole:
            sys.exit(1)

    def _write(self, finished: "Finished", config: DetectionConfig, out: Path) -> bool:
        """Write the file; gives whether no image was left out."""
        from longtail.detection.measure import lvis_json
        from longtail.runs import replacing

        if out.is_dir():
            raise UserError(f"{out} is a folder: --lvis-json is the file to be written")
        _writable(out.parent)
        data, whole = self._data(finished)
        seen = finished.detections(config, data)
        found = lvis_json(data, seen, named=bool(self.images))
        with replacing(out) as path:
            path.write_text(json.dumps(found))
        print(f"{len(found):,} detections in {counted(len(data), 'image')}: {out}")
        return whole

    def _draw(self, finished: "Finished", config: DetectionConfig) -> bool:
        """Write the pictures; gives whether no image was left out."""
        _writable(self.out)
        data, whole = self._data(finished)
        chosen = range(len(data) if self.images else min(self.count, len(data)))
        drawn = finished.compare(config, data, chosen, self.least_score)
        names = _distinct(data.pictures[number].path.stem for number in chosen)
        detections = 0
        for name, shown in zip(names, drawn, strict=True):
            shown.picture.save(self.out / f"{name}.png")
            detections += shown.detections
        print(
            f"{counted(len(chosen), 'picture')} in {self.out} with "
            f"{counted(detections, 'detection')}, those from a score of {self.least_score:g} up "
            "(--least-score)"
        )
        return whole

    def _data(self, finished: "Finished") -> tuple["DetectionSet", bool]:
        """The images that can be looked at, and whether these are all that were asked for."""
        from longtail.detection.data import read
        from longtail.detection.finished import of_files

        categories = finished.categories
        if self.annotations:
            folder = self.image_folder or self.annotations.parent / "images"
            data = read(self.annotations, folder, categories=categories, annotated=False)
            if not self.lvis_json:  # the others are not drawn
                data = data.only(range(min(self.count, len(data))))
            numbers = _usable(finished, range(len(data)), lambda i: data.only([i]))
            return data.only(numbers), len(numbers) == len(data)
        if self.images:
            files = [Path(name) for name in listed(self.images)]
            paths = _usable(finished, files, lambda path: of_files([path], categories))
            return of_files(paths, categories), len(paths) == len(files)
        return finished.val, True


def _writable(folder: Path) -> None:
    """Make `folder`, or say at once that nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"nothing can be written into {folder}: {error.strerror}") from None


def _usable(
    finished: "Finished", images: Sequence[T], opened: Callable[[T], "DetectionSet"]
) -> list[T]:
    """Those that can be looked at, as `Finished.faults` says; the others are told."""
    faults = finished.faults(images, opened)
    reasons = [each for each in faults if each]
    if images and len(reasons) == len(images):
        raise UserError(f"none of these images can be read, as {reasons[0]}")
    for each in reasons:
        print(f"left out: {each}", file=sys.stderr)
    return [image for image, why in zip(images, faults, strict=True) if not why]


@dataclass(frozen=True)
class DetectReport:
    """One self-contained page about detectors: figures, losses, pictures without and with TDE."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of finished runs on the same data."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Where to write it."""
    count: int = 6
    """How many validation images are drawn."""
    least_score: float = 0.3
    """Detections below it are not drawn."""
    device: Device = "auto"
    """`auto` takes CUDA where there is one."""

    examples = """
      longtail detect report runs/shapes-lvis-deconfound-tde-s0 -o report.html"""

    def run(self) -> None:
        """Write the page."""
        from longtail.detection.page import report

        page = report(
            self.folders,
            self.out,
            images=self.count,
            least_score=self.least_score,
            machine=MachineConfig(device=self.device),
        )
        print(f"written to {page}")


def _distinct(names: Iterable[str]) -> list[str]:
    """Names in their order; one that is taken gets a number, as in x-2."""
    given: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}-{i}" for i in count(2))
        given[next(each for each in chain([name], numbered) if each not in given)] = None
    return list(given)


def _print(results: list[dict[str, Any]]) -> None:
    from longtail.detection.results import FIGURES

    lines = [
        [
            r["method"],
            r["tde"],
            "-" if r["alpha"] is None else f"{r['alpha']:g}",
            *("-" if r["ap"][name] is None else f"{r['ap'][name]:.1f}" for name in FIGURES),
        ]
        for r in results
    ]
    print_lines(["method", "TDE", "alpha", *FIGURES], lines)
