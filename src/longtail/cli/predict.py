"""`longtail predict`: classify images."""

import glob
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from longtail.cli.arguments import Images
from longtail.cli.output import show
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.core.spreadsheets import format_rows

if TYPE_CHECKING:
    from longtail.serving.predictor import Prediction, Predictor

STDIN = "-"


@dataclass(frozen=True)
class Predict:
    """Classify images with a run or an exported model.

    Unreadable images are skipped and named on standard error; the exit code is then 1.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """A run folder, a folder written by longtail retrofit or save_pretrained, or an exported
    file."""
    images: Images
    """Files, folders, quoted globs, or - to read paths from standard input, one per line."""
    alpha: float | None = None
    """Alpha to predict at, if it is not folded into the model; the model's own by default."""
    background: str | None = None
    """Class that keeps its total effect (Eq. 9), if alpha is not folded in; the model's own by
    default."""
    top: int = 5
    """Number of classes to print for each image."""
    sets: float | None = None
    """Also print the answer set of each image, which holds the true class with this probability,
    such as 0.9, for rare classes too."""
    abstain: int | None = None
    """Give no answer if the set of --sets holds more classes than this."""
    false_alarms: float = 0.05
    """Share of images of known classes that may be marked as unknown: 0.01, 0.05 or 0.1."""
    adapt: Literal["batch"] | None = None
    """Estimate the class mix from the images so far, without labels."""
    csv: bool = False
    """Print CSV with one row per image and class: image, rank, class, probability; then in_set with
    --sets, unknown if the model can tell, and given for a model of several labels an image. An
    image without an answer has the rank 0."""
    json: bool = False
    """Print one JSON object per image, each on its own line."""

    examples = """
      longtail predict runs/demo/deconfound-tde/s0 photos/
      longtail predict letters.safetensors a.png 'more/*.png' --top 1 --csv
      longtail predict runs/birds photos/ --sets 0.9 --abstain 3
      longtail predict runs/birds garden-camera/ --adapt batch
      find photos -name '*.jpg' | longtail predict model.onnx - --json"""

    def run(self) -> None:
        """Print the classes of each image, in order."""
        if self.csv and self.json:
            raise UserError("--csv and --json: pass one of them")
        names, inputs = tee(list_images(self.images))
        model = self._load_model()
        predictions = model.stream(
            inputs,
            top=self.top,
            sets=self.sets,
            abstain=self.abstain,
            false_alarms=self.false_alarms,
            adapt=self.adapt is not None,
        )
        write = _print_csv if self.csv else _print_json if self.json else _print_text
        if self.csv:
            more = ",in_set" * (self.sets is not None) + ",unknown" * (model.trust is not None)
            more += ",given" * (model.thresholds is not None)
            print(f"image,rank,class,probability{more}")
        done, skipped, began = 0, 0, time.perf_counter()
        terminal = sys.stderr.isatty()
        for done, (name, prediction) in enumerate(zip(names, predictions, strict=True), start=1):
            if isinstance(prediction, str):
                skipped += 1
                show(f"skipped {name}: {prediction}", file=sys.stderr)
            else:
                write(name, prediction)
            if done % 64 == 0 and terminal and not sys.stdout.isatty():
                print(f"\r{done:,} images", end="", file=sys.stderr, flush=True)
        seconds, start = time.perf_counter() - began, "\r" if terminal else ""
        also = f" classified, {skipped:,} skipped," if skipped else ""
        counted = f"{count_noun(done - skipped, 'image')}{also}"
        print(f"{start}{counted} in {seconds:.1f} s", file=sys.stderr)
        if skipped:
            sys.exit(1)

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


def list_images(images: Iterable[str]) -> Iterator[str]:
    """List the files that paths, folders, globs and standard input name, in order."""
    parts = [_expand(name) for name in images]  # raises before the first image is read
    if not parts:
        raise UserError("which images? Give files, folders, globs, or - for a list")
    return chain.from_iterable(parts)


def _expand(name: str) -> Iterable[str]:
    from longtail.data.formats.folder import list_images

    path = Path(os.path.expanduser(name))
    if name == STDIN:
        return (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    if path.is_dir():
        files = list(map(str, list_images(path)))
    elif glob.has_magic(name) and not path.exists():
        files = sorted(glob.glob(str(path), recursive=True))
    else:
        files = [str(path)]
    if not files:
        raise UserError(f"'{name}': no image found")
    return files


def _print_text(image: str, prediction: "Prediction") -> None:
    parts = [image]
    if prediction.unknown:
        parts.append("(unlike every class)")
    if prediction.answer_set is not None:
        parts.append("{" + ", ".join(prediction.answer_set) + "}")
    if prediction.labels is not None:
        parts += [f"{name} {value:.3f}" for name, value in prediction.labels] or ["no label"]
    elif prediction.answered:
        parts += [f"{name} {value:.3f}" for name, value in prediction.top]
    else:
        parts.append("no answer")
    show("  ".join(parts))


def _print_json(image: str, prediction: "Prediction") -> None:
    ranked = [{"class": name, "probability": value} for name, value in prediction.top]
    name = prediction.name if prediction.answered else None
    content: dict[str, Any] = {"image": image, "class": name, "top": ranked}
    if prediction.labels is not None:
        content["labels"] = [name for name, _ in prediction.labels]
    if prediction.answer_set is not None:
        content["set"] = list(prediction.answer_set)
    if prediction.unknown is not None:
        content["unknown"] = prediction.unknown
    print(json.dumps(content))


def _print_csv(image: str, prediction: "Prediction") -> None:
    held, unknown = prediction.answer_set, prediction.unknown
    labels = None if prediction.labels is None else {name for name, _ in prediction.labels}
    rows = [
        [image, rank, name, value]
        + ([] if held is None else [int(name in held)])
        + ([] if unknown is None else [int(unknown)])
        + ([] if labels is None else [int(name in labels)])
        for rank, (name, value) in enumerate(prediction.top, start=1)
    ]
    if not prediction.answered:
        rows = [[image, 0, "", "", *rows[0][4:]]]
    text = format_rows(rows)
    show(text, end="") if sys.stdout.isatty() else print(text, end="")
