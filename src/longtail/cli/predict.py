"""Commands for what is done with a trained model: ship it, and use it."""

import csv
import glob
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from longtail.core.errors import UserError

if TYPE_CHECKING:
    from longtail.serving.predictor import Prediction, Predictor

STDIN = "-"


@dataclass(frozen=True)
class Predict:
    """Name what is on images, with a run or an exported model.

    Images that cannot be read are named on standard error and left out; the exit code is then 1.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """Folder of a run, of longtail retrofit or of save_pretrained, or a file of longtail export."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """Files, folders, globs in quotes, or - for a list on standard input, a path on each line."""
    alpha: float | None = None
    """Another alpha than the model's own, where it has a dial."""
    top: int = 5
    """Classes to name for each image."""
    csv: bool = False
    """A row for each class named: image, rank, class, probability."""
    json: bool = False
    """A JSON object on each line, one for each image."""

    examples = """
      longtail predict runs/demo/deconfound-tde/s0 photos/
      longtail predict letters.safetensors a.png 'more/*.png' --top 1 --csv
      find photos -name '*.jpg' | longtail predict model.onnx - --json"""

    def run(self) -> None:
        """Print a line for each image, in their order."""
        if self.csv and self.json:
            raise UserError("--csv and --json: pass one of them")
        names, inputs = tee(list_images(self.images))
        found = self._opened().stream(inputs, top=self.top)
        write = _csv_rows if self.csv else _json_line if self.json else _text_line
        if self.csv:
            _print_csv([("image", "rank", "class", "probability")])
        done, skipped, began = 0, 0, time.perf_counter()
        for name, prediction in zip(names, found, strict=True):
            done += 1
            if isinstance(prediction, str):
                skipped += 1
                print(f"left out {name}: {prediction}", file=sys.stderr)
            else:
                write(name, prediction)
            _progress(done)
        _summary(done, skipped, time.perf_counter() - began)
        if skipped:
            sys.exit(1)

    def _opened(self) -> "Predictor":
        from longtail.serving.predictor import load_model

        model = load_model(self.model)
        if model.about.blueprint.embeddings:
            raise UserError(
                f"{self.model} takes embeddings, not images: in Python, "
                f"longtail.load_model('{self.model}').predict(rows)"
            )
        if self.alpha is not None:
            model.alpha = self.alpha
        return model


def list_images(images: Iterable[str]) -> Iterator[str]:
    """The files that folders, globs, paths and standard input name, in their order."""
    parts = [_expanded(name) for name in images]  # a wrong name is told before the first image
    if not parts:
        raise UserError("which images? Give files, folders, globs, or - for a list")
    return chain.from_iterable(parts)


def _expanded(name: str) -> Iterable[str]:
    from longtail.data.formats.folder import images_under

    path = Path(name).expanduser()
    if name == STDIN:
        return (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    if path.is_dir():
        found = list(map(str, images_under(path)))
    elif glob.has_magic(name) and not path.exists():
        found = sorted(glob.glob(str(path), recursive=True))
    else:
        found = [str(path)]
    if not found:
        raise UserError(f"'{name}': there is no image")
    return found


def _text_line(image: str, found: "Prediction") -> None:
    print(f"{image}  " + "  ".join(f"{name} {value:.3f}" for name, value in found.top))


def _json_line(image: str, found: "Prediction") -> None:
    ranked = [{"class": name, "probability": value} for name, value in found.top]
    print(json.dumps({"image": image, "class": found.name, "top": ranked}))


def _csv_rows(image: str, found: "Prediction") -> None:
    _print_csv((image, rank, *pair) for rank, pair in enumerate(found.top, start=1))


def _print_csv(rows: Iterable[tuple[object, ...]]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)


def _progress(done: int) -> None:
    """A line that is drawn over, for a person who waits at a terminal."""
    if done % 64 == 0 and sys.stderr.isatty() and not sys.stdout.isatty():
        print(f"\r{done:,} images", end="", file=sys.stderr, flush=True)


def _summary(images: int, skipped: int, seconds: float) -> None:
    left_out = f", {skipped:,} left out" if skipped else ""
    start = "\r" if sys.stderr.isatty() else ""
    print(f"{start}{images:,} images{left_out}, {images / seconds:,.0f} a second", file=sys.stderr)
