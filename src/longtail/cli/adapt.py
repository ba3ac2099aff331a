"""`longtail adapt`: fit a model to the class mix of its place of use."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from longtail.cli.arguments import OptionalImages, OptionalOut, choose_folder
from longtail.cli.image_arguments import check_order, list_images
from longtail.cli.output import print_lines, refuse_ranks, show
from longtail.core.errors import UserError
from longtail.core.names import count_noun

if TYPE_CHECKING:
    from longtail.serving.adapt import Adaptation


LEAST_CHANGE = 5e-5
"""Least change of a share that the table shows."""


@dataclass(frozen=True)
class Adapt:
    """Fit a model to the class mix of unlabelled images, without training.

    The model must store a calibration, as runs on data with held-out images do. Unreadable images
    are left out and named on standard error; the exit code is then 1.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """A run folder, a folder written by longtail retrofit or save_pretrained, or a .safetensors
    file."""
    images: OptionalImages = ()
    """Images of the place of use: files, folders, quoted globs, or - to read paths from standard
    input."""
    out: OptionalOut = None
    """Folder for the adapted model, which longtail predict and export can read; ./adapted by
    default."""
    prior: Path | None = None
    """Known class mix instead of images: a .json mapping of class names to shares that sum to 1,
    or a .csv file of lines CLASS,SHARE or CLASS;SHARE; a share may be 0.6, 0,6 or 60%."""
    uniform: bool = False
    """Adapt to equally frequent classes instead."""

    examples = """
      longtail adapt runs/birds garden-camera/ -o garden
      longtail adapt runs/birds --prior survey.csv -o survey
      longtail export garden -o garden.onnx"""

    def run(self) -> None:
        """Write the model and print the classes whose share changed most."""
        refuse_ranks("adapt")
        given = bool(self.images) + (self.prior is not None) + self.uniform
        if given != 1:
            what = "pass only one of" if given else "adapt to what? Pass"
            raise UserError(f"{what} images, --prior FILE or --uniform")
        check_order(self.model, self.images)
        listed = list_images(self.images) if self.images else None
        names = list(listed.files) if listed else None
        out = choose_folder(self.out, "adapted")
        from longtail.serving.adapt import adapt

        done = adapt(self.model, names, prior=self.prior, uniform=self.uniform, out=out)
        for place, reason in done.unreadable.items():
            assert names is not None
            show(f"skipped {names[place]}: {reason}", file=sys.stderr)
        print_mix(done)
        show(f"written to {out}")
        if done.unreadable or (listed and listed.unread):
            sys.exit(1)


def print_mix(done: "Adaptation") -> None:
    """Print the classes whose share changed most, in percent."""
    classes, low, high = done.model.classes, None, None
    if done.mix:
        low, high = done.mix.low, done.mix.high
        show(
            f"class mix of {count_noun(done.images, 'image')}: about the training mix to the power "
            f"{round(done.mix.strength, 2) + 0.0:.2f} (1 is the training mix, 0 uniform)"
        )
    if (done.prior - done.before).abs().max() < LEAST_CHANGE:
        show("no share changed: the model already fits this class mix")
        return
    lines = []
    for c in done.list_moves():
        line = [classes[c], *(f"{100 * shares[c]:.2f}" for shares in (done.before, done.prior))]
        if low is not None and high is not None:
            line.append(f"{100 * low[c]:.2f} to {100 * high[c]:.2f}")
        lines.append(line)
    print_lines(["class", "before (%)", "now (%)", "90 % interval"][: len(lines[0])], lines)
    if more := len(classes) - len(lines):
        show(f"and {count_noun(more, 'class', 'classes')} that moved less or not at all")
    if low is not None and high is not None:
        beyond = (done.before < low - LEAST_CHANGE) | (done.before > high + LEAST_CHANGE)
        if not beyond.any():
            show("no class left its interval: more images would narrow it")
