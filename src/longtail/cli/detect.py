"""Commands of detection and instance segmentation: longtail detect ..."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from longtail.cli.arguments import RunFolder, parse_alphas
from longtail.cli.output import is_first_process, print_lines
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection.config import DetectionConfig, Tde

Device = Literal["auto", "cpu", "cuda"]


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
        from longtail.detection.run import DetectionRun

        assert self.out
        return DetectionRun(self.out).config

    def run(self) -> None:
        """Train, then print the figures."""
        from longtail.cli.output import Console
        from longtail.detection.train import fit

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
        if is_first_process():
            _print([run.result])
            print(f"written to {out}")


@dataclass(frozen=True)
class DetectEval:
    """Judge a finished detector, scored as it was trained for or in another way."""

    folder: RunFolder
    """Folder of a finished run."""
    tde: Tde | None = None
    """off, plain (all classes alike) or background-exempt (Eq. 9); the run's own by default."""
    alpha: float | None = None
    """How much of the indirect effect is removed; the run's own by default."""
    data: str | None = None
    """Where the data that it was trained on lies now, if it was moved."""
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
        from longtail.detection.reopen import OpenDetector

        result = (
            OpenDetector(self.folder, data=self.data, machine=MachineConfig(device=self.device))
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

    folder: RunFolder
    """Folder of a finished run."""
    alphas: str = "0:2:0.5"
    """FIRST:LAST:STEP, or numbers with commas."""
    tde: Literal["plain", "background-exempt"] = "background-exempt"
    """From all classes alike, or not from the background."""
    data: str | None = None
    """Where the data that it was trained on lies now, if it was moved."""
    device: Device = "auto"
    """`auto` takes CUDA where there is one."""

    examples = """
      longtail detect sweep runs/shapes-lvis-deconfound-tde-s0
      longtail detect sweep runs/shapes-lvis-deconfound-tde-s0 --alphas 0,1,1.5 --tde plain"""

    def run(self) -> None:
        """Print a line for each alpha, and write sweep.csv into the run."""
        from longtail.detection.reopen import OpenDetector
        from longtail.evaluation.result import csv_text

        machine = MachineConfig(device=self.device)
        finished = OpenDetector(self.folder, data=self.data, machine=machine)
        results = [r.to_json() for r in finished.sweep(parse_alphas(self.alphas), self.tde)]
        _print(results)
        names = tuple(results[0]["ap"])
        rows = ((r["alpha"], *(r["ap"][name] for name in names)) for r in results)
        finished.run.write("sweep.csv", csv_text(("alpha", *names), rows))


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
    data: str | None = None
    """Where the data that they were trained on lies now, if it was moved."""
    device: Device = "auto"
    """`auto` takes CUDA where there is one."""

    examples = """
      longtail detect report runs/shapes-lvis-deconfound-tde-s0 -o report.html"""

    def run(self) -> None:
        """Write the page."""
        from longtail.detection.report import report

        if self.count < 0:
            raise UserError(f"--count {self.count}: no fewer than 0 images can be drawn")
        page = report(
            self.folders,
            self.out,
            images=self.count,
            least_score=self.least_score,
            data=self.data,
            machine=MachineConfig(device=self.device),
        )
        print(f"written to {page}")


def _print(results: list[dict[str, Any]]) -> None:
    from longtail.detection.run import FIGURES

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
