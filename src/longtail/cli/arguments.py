"""Arguments that several commands share."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from longtail.core.config import DataConfig
from longtail.core.errors import UserError

RunFolder = Annotated[Path, Positional, arg(metavar="RUN", help="Folder of a finished run.")]
RunFolders = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN...")]
OptionalRunFolders = Annotated[tuple[Path, ...], Positional, arg(metavar="[RUN...]")]
Images = Annotated[tuple[str, ...], Positional, arg(metavar="IMAGES...")]
OptionalImages = Annotated[tuple[str, ...], Positional, arg(metavar="[IMAGES...]")]
Out = Annotated[Path, arg(aliases=["-o"])]
OptionalOut = Annotated[Path | None, arg(aliases=["-o"])]
MovedData = Annotated[str | None, arg(help="New location of the run's data, if it has moved.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    arg(help="Device to compute on; auto uses CUDA if available."),
]


def check_writable(out: Path, flag: str = "--out", *, is_file: bool = False) -> None:
    """Refuse a folder, or a file, that cannot be made or written, before hours of work."""
    places = out.absolute().parents if is_file else (out, *out.absolute().parents)
    nearest = next(place for place in places if place.exists())
    if not nearest.is_dir():
        raise UserError(f"{out} cannot be written: {nearest} is a file. Pass another {flag}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{out} cannot be written: {nearest} is read-only. Pass another {flag}")


def check_out(command: Any) -> None:
    """Refuse an --out that cannot be made or written, whether it is a folder or a file."""
    out = getattr(command, "out", None)
    if isinstance(out, Path):
        check_writable(out, is_file=not out.is_dir())


def choose_folder(out: Path | None, default: str) -> Path:
    """Return `out`, or else the folder called `default`, which must not exist yet."""
    check_writable(out or Path(default))
    if out is None and Path(default).exists():
        raise UserError(
            f"{default} exists: pass -o {default} to replace it, or another name to keep both"
        )
    return Path(default) if out is None else out


def find_changed_options(files: DataConfig) -> dict[str, Any]:
    """Return the options that differ from their defaults, as keywords of `longtail.load`."""
    defaults = vars(DataConfig())
    return {name: value for name, value in vars(files).items() if value != defaults[name]}
