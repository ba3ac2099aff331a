"""`longtail extend`: add classes to a model from a few photographs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from longtail.cli.arguments import OptionalOut, choose_folder
from longtail.cli.image_arguments import list_images
from longtail.cli.output import refuse_ranks, show
from longtail.core.errors import UserError
from longtail.core.names import count_noun, join_names, quote_if_needed

if TYPE_CHECKING:
    from longtail.serving.extend import Extension

Classes = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME=PHOTOS...")]


@dataclass(frozen=True)
class Extend:
    """Add classes to a model from a few photographs of each, without training.

    Unreadable photographs are left out and named on standard error; the exit code is then 1.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """A run folder, a folder written by longtail retrofit or save_pretrained, or a .safetensors
    file."""
    classes: Classes
    """Name of each new class, and the file, folder or glob of its photographs."""
    out: OptionalOut = None
    """Folder for the new model, which longtail predict and export can read; ./extended by
    default."""
    refine: bool = False
    """Then fit the head to the photographs and to the stored means of the old classes."""

    examples = """
      longtail extend runs/animals okapi=photos/okapi/ -o with-okapi
      longtail extend runs/animals okapi=okapi/ 'tapir=tapir/*.jpg' --refine"""

    def run(self) -> None:
        """Write the model and print what the new classes take from the old ones."""
        refuse_ranks("extend")
        listed = {name: list_images([place]) for name, place in map(_split, self.classes)}
        names = {name: list(images.files) for name, images in listed.items()}
        if len(names) < len(self.classes):
            raise UserError("a new class was given twice: name each once, with one place")
        out = choose_folder(self.out, "extended")
        from longtail.serving.extend import extend

        done = extend(self.model, names, refine=self.refine, out=out)
        for name, reasons in done.unreadable.items():
            for place, reason in reasons.items():
                show(f"skipped {names[name][place]}: {reason}", file=sys.stderr)
        _print_classes(done)
        show(f"written to {out}")
        if any(done.unreadable.values()) or any(images.unread for images in listed.values()):
            sys.exit(1)


def _split(text: str) -> tuple[str, str]:
    name, sign, place = text.partition("=")
    if not (name and sign and place):
        raise UserError(f"'{text}': give a new class as NAME=PHOTOS, such as okapi=photos/okapi/")
    return name, place


def _print_classes(done: "Extension") -> None:
    for name, number in done.photographs.items():
        near = join_names(done.neighbours[name])
        known = f"{done.recognised[name]:,} recognised"
        show(f"{name}: {count_noun(number, 'photograph')}, {known}; nearest classes: {near}")
        if done.taken is not None and done.given is not None:
            taken = done.taken[name]
            most = list(taken.items())[:5]
            whom = ", ".join(f"{count} of {quote_if_needed(old)}" for old, count in most)
            given, lost = done.given[name], sum(taken.values())
            more = f"; {lost:,} had the right answer before{': ' if whom else ''}{whom}"
            show(
                f"  takes {given:,} of {done.held_out:,} held-out images of other classes"
                f"{more if given else ''}"
            )
