"""`longtail detect train`, `eval`, `sweep` and `report`: detectors and instance segmentation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longtail.cli.arguments import (
    Device,
    MovedData,
    OptionalOut,
    Out,
    RunFolder,
    RunFolders,
    check_writable,
)
from longtail.cli.output import GrowingTable, is_first_process, print_lines, refuse_ranks, show
from longtail.core.alphas import parse_alphas
from longtail.core.config import MachineConfig
from longtail.core.console import Console
from longtail.core.errors import UserError
from longtail.core.notebook import Cell
from longtail.detection.config import DetectionConfig, StageAverage, Tde

if TYPE_CHECKING:
    from longtail.detection.run import DetectionRun


@dataclass(frozen=True)
class DetectTrain:
    """Train a Cascade Mask R-CNN detector and evaluate it."""

    config: DetectionConfig = field(default_factory=DetectionConfig)
    out: OptionalOut = None
    """Folder for the run; runs/DATA-METHOD-sSEED by default."""
    recipe: Path | None = None
    """YAML file of options, used as defaults."""
    resume: bool = False
    """Continue an interrupted run; its configuration must not change."""
    overwrite: bool = False
    """Replace an existing run in the folder."""

    main_options = (
        *("data", "method", "alpha", "backbone", "epochs"),
        *("batch_size", "lr", "image_size", "out"),
    )
    examples = """
      longtail detect train shapes-lvis
      longtail detect train shapes-lvis --method baseline --epochs 12 --out runs/shapes
      longtail detect train my/folder --backbone resnet50.tv_in1k --pretrained --norm frozen
      longtail detect train --recipe recipes/lvis/v0.5/deconfound-tde.yaml --root ~/data"""

    def load_config(self) -> DetectionConfig:
        """Return the configuration of the run in --out."""
        from longtail.detection.run import DetectionRun

        assert self.out
        return DetectionRun(self.out).config

    def run(self) -> None:
        """Train, then print the average precisions."""
        from longtail.detection.train import fit
        from longtail.evaluation.result import short_name

        config = self.config
        if not config.data:
            raise UserError(
                "which data? Give shapes-lvis, shapes-lvis-1k, coco-small, lvis-v0.5, lvis-v1 or a "
                "folder"
            )
        out = self.out or Path("runs") / f"{short_name(config.data)}-{config.method}-s{config.seed}"
        check_writable(out)
        with Console() as console:
            run = fit(
                config, out=out, resume=self.resume, overwrite=self.overwrite, progress=console
            )
        if is_first_process():
            _print_precisions([run.result])
            show(f"written to {out}")


@dataclass(frozen=True)
class DetectEval:
    """Evaluate a finished detector, with its own TDE setting or another."""

    folder: RunFolder
    tde: Tde | None = None
    """off, plain (all classes alike) or background-exempt (Eq. 9); the run's own by default."""
    alpha: float | None = None
    """How much of the indirect effect to remove; the run's own by default."""
    average: StageAverage | None = None
    """Average the three stages' probabilities, or their logits; the run's own by default."""
    data: MovedData = None
    json: bool = False
    """Print the whole result as JSON."""
    device: Device = "auto"

    examples = """
      longtail detect eval runs/shapes-lvis-deconfound-tde-s0
      longtail detect eval runs/shapes-lvis-deconfound-tde-s0 --tde plain
      longtail detect eval runs/shapes-lvis-deconfound-tde-s0 --tde off --json"""

    def run(self) -> None:
        """Print a table or JSON."""
        from longtail.detection.reopen import OpenDetector

        machine = MachineConfig(device=self.device)
        finished = OpenDetector(self.folder, data=self.data, machine=machine)
        result = finished.evaluate(self.tde, self.alpha, self.average)
        if result is None:  # rank 0 has it
            return
        if self.json:
            print(json.dumps(result.to_json()))
        else:
            _print_precisions([result.to_json()])


@dataclass(frozen=True)
class DetectSweep:
    """Evaluate a finished detector at many alphas."""

    folder: RunFolder
    alphas: str = "0:2:0.5"
    """FIRST:LAST:STEP, or numbers separated by commas."""
    tde: Literal["plain", "background-exempt"] = "background-exempt"
    """Remove the effect from all classes, or from all but the background."""
    average: StageAverage | None = None
    """Average the three stages' probabilities, or their logits; the run's own by default."""
    data: MovedData = None
    device: Device = "auto"

    examples = """
      longtail detect sweep runs/shapes-lvis-deconfound-tde-s0
      longtail detect sweep runs/shapes-lvis-deconfound-tde-s0 --alphas 0,1,1.5 --tde plain"""

    def run(self) -> None:
        """Print a line after each alpha, and at the end write sweep.csv into the run."""
        from longtail.core.locks import hold_folders
        from longtail.detection.reopen import OpenDetector

        alphas = parse_alphas(self.alphas)
        machine = MachineConfig(device=self.device)
        finished = OpenDetector(self.folder, data=self.data, machine=machine)
        made = finished.sweep(alphas, self.tde, self.average)
        longest = max((f"{alpha:g}" for alpha in alphas), key=len)
        widest = [f"{finished.config.training}-tde", self.tde, longest]
        results: list[dict[str, Any]] = []
        with hold_folders([self.folder], finished.fabric, lambda: None):
            table = GrowingTable(_list_columns(), widest)
            for result in made:
                if result is not None:  # on rank 0
                    results.append(result.to_json())
                    table.add(_list_cells(results[-1]))
            if results:
                _write_sweep(finished.run, results)


@dataclass(frozen=True)
class DetectReport:
    """Write an HTML page about detectors, with images without and with TDE."""

    folders: RunFolders
    """Folders of finished runs on the same data."""
    out: Out = Path("report.html")
    """File to write. It needs no other file and no network."""
    count: int = 6
    """Number of validation images to draw."""
    least_score: float = 0.3
    """Draw only detections with at least this score."""
    data: str | None = None
    """New location of the runs' data, if it has moved."""
    device: Device = "auto"

    examples = """
      longtail detect report runs/shapes-lvis-deconfound-tde-s0 -o report.html"""

    def run(self) -> None:
        """Write the page and print its path."""
        refuse_ranks("detect report")
        from longtail.detection.report import report

        if self.count < 0:
            raise UserError(f"--count {self.count}: must be at least 0")
        page = report(
            self.folders,
            self.out,
            images=self.count,
            least_score=self.least_score,
            data=self.data,
            machine=MachineConfig(device=self.device),
        )
        show(f"written to {page}")


def _write_sweep(run: "DetectionRun", results: Sequence[Mapping[str, Any]]) -> None:
    """Write sweep.csv."""
    from longtail.evaluation.result import csv_text

    names = tuple(results[0]["ap"])
    rows = ((r["alpha"], *(r["ap"][name] for name in names)) for r in results)
    run.write("sweep.csv", csv_text(("alpha", *names), rows))


def _print_precisions(results: Sequence[Mapping[str, Any]]) -> None:
    print_lines(_list_columns(), map(_list_cells, results))


def _list_columns() -> list[str]:
    from longtail.detection.run import FIGURES

    return ["method", "TDE", "alpha", *FIGURES]


def _list_cells(result: Mapping[str, Any]) -> list[Cell]:
    """List the cells of a result's row in a table."""
    from longtail.detection.run import FIGURES

    alpha = None if result["alpha"] is None else f"{result['alpha']:g}"
    return [result["method"], result["tde"], alpha, *(result["ap"][name] for name in FIGURES)]
