"""`longtail predict`: classify images."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from longtail.cli.arguments import Images, OptionalOut
from longtail.cli.image_arguments import STDIN, check_order, list_images
from longtail.cli.output import is_first_process, show
from longtail.cli.prediction_lines import MARK, Lines, format_csv, format_json, format_text
from longtail.core.errors import UserError
from longtail.core.names import count_noun

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from longtail.serving.predictor import Predictor

SUFFIXES = (".csv", ".jsonl", ".txt", "")
"""Ends of the names of files of predictions; the last two hold what would be printed."""


@dataclass(frozen=True)
class Predict:
    """Classify images with a run or an exported model.

    Unreadable images are skipped and named on standard error; the exit code is then 1. With --out,
    the same command continues after an interruption, and torchrun divides the images among its
    processes. These exit with 0 even so, since torchrun reports any other code as a failure.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """A run folder, a folder written by longtail retrofit or save_pretrained, or an exported
    file."""
    images: Images
    """Files, folders, quoted globs, or - to read paths from standard input, one per line."""
    alpha: float | None = None
    """How much of the frequent classes' advantage to remove; 0 removes none. For runs and models
    whose alpha is not folded in; by default the model's own, for which it is calibrated."""
    background: str | None = None
    """Class that stands for none of the others and keeps its advantage (Eq. 9), if alpha is not
    folded in; the model's own by default."""
    top: int = 5
    """Number of classes to print for each image."""
    sets: float | None = None
    """Also print the answer set of each image, which holds the true class with this probability,
    for rare classes too: 0.5, 0.6, 0.7, 0.8, 0.9, 0.95 or 0.99. Needs a calibrated model."""
    abstain: int | None = None
    """Give no answer to an image if its set holds more classes than this; needs --sets."""
    false_alarms: float = 0.05
    """Share of images of known classes that may be marked as unlike every class, which calibrated
    models do: 0.01, 0.05 or 0.1."""
    adapt: Literal["batch"] | None = None
    """Predict for the class mix of the images so far, which is estimated without labels; not with
    --out."""
    csv: bool = False
    """Print CSV with one row per image and class: image, rank, class, probability; then in_set with
    --sets, unknown if the model can tell, and given for a model of several labels per image. Every
    class of the set has a row, whatever --top is. An image without an answer has the rows of its
    set only, all of rank 0."""
    json: bool = False
    """Print one JSON object per image, each on its own line. For a model of several labels per
    image it has labels instead of a class."""
    out: OptionalOut = None
    """Write to this file instead of printing; .csv, .jsonl and .txt set the format."""

    examples = """
      longtail predict runs/demo/deconfound-tde/s0 photos/
      longtail predict letters.safetensors a.png 'more/*.png' --top 1 --csv
      longtail predict runs/birds photos/ --sets 0.9 --abstain 3
      longtail predict runs/birds garden-camera/ --adapt batch
      find photos -name '*.jpg' | longtail predict model.onnx - --json
      torchrun --nproc-per-node 8 -m longtail predict runs/birds new/ -o birds.csv"""

    def run(self) -> None:
        """Print the classes of each image, in order, or write them to a file."""
        if self.csv and self.json:
            raise UserError("--csv and --json: pass one of them")

        from longtail.serving.answers import check_numbers

        check_numbers(self.top, self.sets, self.abstain)
        self._check_out()
        fabric = self._launch()
        check_order(self.model, self.images)
        model = self._load_model()  # on the device of this rank
        images, unread = list_images(self.images)
        self._print_notes(model)
        began = time.perf_counter()
        if fabric is None:
            done, skipped = self._print(model, images)
        else:
            done, skipped = self._write(model, list(images), fabric)
        done, skipped = done + len(unread), skipped + len(unread)
        if not is_first_process():
            return
        seconds, start = time.perf_counter() - began, "\r" if sys.stderr.isatty() else ""
        also = f" classified, {skipped:,} skipped," if skipped else ""
        counted = f"{count_noun(done - skipped, 'image')}{also}"
        where = "" if self.out is None else f", written to {self.out}"
        print(start, end="", file=sys.stderr)
        show(f"{counted} in {seconds:.1f} s{where}", file=sys.stderr)
        alone = fabric is None or fabric.world_size == 1
        if skipped and alone:  # torchrun would report the code of a rank as a failure
            sys.exit(1)

    def _check_out(self) -> None:
        """Refuse a name that does not imply the format, or implies another than the flag."""
        suffix = self._suffix
        if suffix not in SUFFIXES and not (self.csv or self.json):
            raise UserError(
                f"{self.out} must end in .csv, in .jsonl for one JSON object a line, or in .txt; "
                "under another name pass --csv or --json"
            )
        if (self.json and suffix == ".csv") or (self.csv and suffix == ".jsonl"):
            flag = "--json" if self.json else "--csv"
            raise UserError(f"{self.out} implies another format than {flag}: leave one of them out")
        if self.out is not None:
            from longtail.core.files import check_own

            check_own(self.out, MARK, "longtail predict")

    @property
    def _suffix(self) -> str:
        return self.out.suffix.lower() if self.out else ""

    def _launch(self) -> "Fabric | None":
        """Join the other processes of torchrun or SLURM; None if one process is to print."""
        from longtail.core.config import MachineConfig
        from longtail.data.decoding.host import count_ranks

        ranks = count_ranks(MachineConfig())
        if ranks > 1 and self.out is None:
            raise UserError(f"{ranks} processes cannot print in order: pass --out FILE")
        if ranks > 1 and STDIN in self.images:
            raise UserError("only one process can read standard input: pass folders or globs")
        if self.out is None:
            return None
        if self.adapt:
            raise UserError(
                "--adapt depends on all earlier images, and --out may resume in their middle: run "
                "longtail adapt first, and predict with the model that it writes"
            )
        from longtail.training.launch import launch

        return launch(MachineConfig())

    def _print(self, model: "Predictor", images: Iterable[str]) -> tuple[int, int]:
        """Print the classes of each image; return the numbers of images and of unreadable ones."""
        names, inputs = tee(images) if isinstance(images, Iterator) else (images, images)
        lines, predictions = self._choose_lines(model), model.stream(inputs, **self._options())
        print(lines.header, end="")
        done, skipped = 0, 0
        terminal = sys.stdout.isatty()
        shown, write = sys.stderr.isatty() and not terminal, show if terminal else print
        for done, (name, prediction) in enumerate(zip(names, predictions, strict=True), start=1):
            if isinstance(prediction, str):
                skipped += 1
                _report_skipped(name, prediction)
            else:
                write(lines.format(name, prediction), end="")
            if done % 64 == 0 and shown:
                print(f"\r{done:,} images", end="", file=sys.stderr, flush=True)
        return done, skipped

    def _write(self, model: "Predictor", images: list[str], fabric: "Fabric") -> tuple[int, int]:
        """Write the file with the other ranks; return what `_print` returns."""
        from longtail.cli.prediction_file import write_predictions

        assert self.out is not None
        lines, options = self._choose_lines(model), self._options()
        skipped = write_predictions(self.out, model, self.model, images, lines, options, fabric)
        for name, reason in skipped:
            _report_skipped(name, reason)
        return len(images), len(skipped)

    def _options(self) -> dict[str, Any]:
        """Return the options of `Predictor.stream`."""
        return {
            "top": self.top,
            "sets": self.sets,
            "abstain": self.abstain,
            "false_alarms": self.false_alarms,
            "adapt": self.adapt is not None,
        }

    def _choose_lines(self, model: "Predictor") -> Lines:
        if self.csv or self._suffix == ".csv":
            trust = model.trust
            marks = trust is not None and trust.novelty.can_mark(self.false_alarms)
            more = ",in_set" * (self.sets is not None) + ",unknown" * marks
            more += ",given" * (model.thresholds is not None)
            return Lines(format_csv, f"image,rank,class,probability{more}\n")
        return Lines(format_json if self.json or self._suffix == ".jsonl" else format_text)

    def _load_model(self) -> "Predictor":
        from longtail.serving.predictor import load_model

        model = load_model(self.model)
        if model.about.blueprint.embeddings:
            raise UserError(
                f"{self.model} takes embeddings, not images: in Python, "
                f"longtail.load_model('{self.model}').predict(rows)"
            )
        if self.background is not None:
            model = model.with_background(self.background)
        if self.alpha is not None:
            model.alpha = self.alpha
        return model

    def _print_notes(self, model: "Predictor") -> None:
        if is_first_process():
            sets, false_alarms = self.sets is not None, self.false_alarms
            for note in list_notes(model, sets=sets, false_alarms=false_alarms):
                show(note, file=sys.stderr)


def list_notes(
    model: "Predictor", *, sets: bool, false_alarms: float = Predict.false_alarms
) -> list[str]:
    """List what the probabilities, answer sets and marks of unknown images do not mean."""
    from longtail.evaluation.label_shift import LEAST_IMAGES

    notes, about, trust = [], model.about, model.trust
    if about.trust and model.trust is None:
        notes.append(
            f"alpha {model.alpha:g} is not the model's own, {about.alpha:g}: its probabilities are "
            "not calibrated"
        )
    if about.trust is None and about.thresholds is None:
        notes.append(
            "this model stores no calibration, so its probabilities are the plain softmax, which "
            "tends to be too certain: trust their order, not their size. Training with "
            f"{LEAST_IMAGES} held-out images or more, as with --val-fraction 0.2, calibrates them"
        )
    if trust is not None and not trust.novelty.can_mark(false_alarms):
        rate = trust.novelty.find_least_rate()
        way_out = "" if rate is None else f"pass --false-alarms {rate:g}, or "
        notes.append(
            f"{count_noun(trust.images, 'held-out image')} are too few to mark unknown images at "
            f"{100 * false_alarms:g} % of false alarms, so none is marked: {way_out}train with "
            "more held-out images"
        )
    if sets and (mix := about.training.get("adapted_to")):
        notes.append(f"answer sets are for equally frequent classes, probabilities for {mix}")
    return notes


def _report_skipped(name: str, reason: str) -> None:
    show(f"skipped {name}: {reason}", file=sys.stderr)
