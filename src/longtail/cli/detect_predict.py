"""The command that looks at images with a finished detector: longtail detect predict."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import tyro

from longtail.cli.arguments import RunFolder
from longtail.cli.detect import Device
from longtail.cli.output import count_noun
from longtail.cli.predict import list_images
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection.config import DetectionConfig, Tde

if TYPE_CHECKING:
    from longtail.detection.data.dataset import DetectionSet
    from longtail.detection.reopen import OpenDetector

T = TypeVar("T")


@dataclass(frozen=True)
class DetectPredict:
    """Detections of a finished detector: pictures before and after TDE, or LVIS's result file.

    Images that cannot be read are named on standard error and left out; the exit code is then 1.
    """

    folder: RunFolder
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
    data: str | None = None
    """Where the data that it was trained on lies now, if it was moved."""
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
        from longtail.detection.reopen import OpenDetector

        if self.annotations and self.images:
            raise UserError("--annotations lists the images: pass it, or IMAGES, not both")
        if self.data and (self.images or self.annotations):
            raise UserError(
                "--data is where the run's own data lies: leave it out for other images"
            )
        if self.image_folder and not self.annotations:
            raise UserError(
                "--image-folder is where the images of --annotations are: pass that too, or the "
                "folder as IMAGES"
            )
        if self.count != DetectPredict.count and (self.images or self.lvis_json):
            raise UserError(
                f"--count {self.count} is of validation images that are drawn: all of IMAGES are, "
                "and --lvis-json has all. Leave it out"
            )
        if self.count < 1:
            raise UserError(f"--count {self.count}: at least one image must be drawn")
        machine = MachineConfig(device=self.device)
        finished = OpenDetector(self.folder, data=self.data, machine=machine)
        config = finished.scored(self.tde, self.alpha)
        if self.lvis_json:
            whole = self._write(finished, config, self.lvis_json)
        else:
            whole = self._draw(finished, config)
        if not whole:
            sys.exit(1)

    def _write(self, finished: "OpenDetector", config: DetectionConfig, out: Path) -> bool:
        """Write the file; gives whether no image was left out."""
        from longtail.core.files import replace_atomically
        from longtail.detection.average_precision import lvis_json

        if out.is_dir():
            raise UserError(f"{out} is a folder: --lvis-json is the file to be written")
        _writable(out.parent)
        data, whole = self._data(finished)
        seen = finished.detections(config, data)
        found = lvis_json(data, seen, named=bool(self.images))
        with replace_atomically(out) as path:
            path.write_text(json.dumps(found))
        print(f"{len(found):,} detections in {count_noun(len(data), 'image')}: {out}")
        return whole

    def _draw(self, finished: "OpenDetector", config: DetectionConfig) -> bool:
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
            f"{count_noun(len(chosen), 'picture')} in {self.out} with "
            f"{count_noun(detections, 'detection')}, those from a score of {self.least_score:g} up "
            "(--least-score)"
        )
        return whole

    def _data(self, finished: "OpenDetector") -> tuple["DetectionSet", bool]:
        """The images that can be looked at, and whether these are all that were asked for."""
        from longtail.detection.data.dataset import read
        from longtail.detection.reopen import of_files

        categories = finished.categories
        if self.annotations:
            folder = self.image_folder or self.annotations.parent / "images"
            data = read(self.annotations, folder, categories=categories, annotated=False)
            if not self.lvis_json:  # the others are not drawn
                data = data.only(range(min(self.count, len(data))))
            numbers = _usable(finished, range(len(data)), lambda i: data.only([i]))
            return data.only(numbers), len(numbers) == len(data)
        if self.images:
            files = [Path(name) for name in list_images(self.images)]
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
        raise UserError(
            f"nothing can be written into {folder} ({error.strerror}): choose another folder"
        ) from None


def _usable(
    finished: "OpenDetector", images: Sequence[T], opened: Callable[[T], "DetectionSet"]
) -> list[T]:
    """Those that can be looked at, as `OpenDetector.faults` says; the others are told."""
    faults = finished.faults(images, opened)
    reasons = [each for each in faults if each]
    if images and len(reasons) == len(images):
        raise UserError(f"none of these images can be read, as {reasons[0]}")
    for each in reasons:
        print(f"left out: {each}", file=sys.stderr)
    return [image for image, why in zip(images, faults, strict=True) if not why]


def _distinct(names: Iterable[str]) -> list[str]:
    """Names in their order; one that is taken gets a number, as in x-2."""
    given: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}-{i}" for i in count(2))
        given[next(each for each in chain([name], numbered) if each not in given)] = None
    return list(given)
