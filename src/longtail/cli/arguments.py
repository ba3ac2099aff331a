"""Arguments that several commands share."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from longtail.cli.output import is_first_process
from longtail.core.config import DataConfig
from longtail.core.errors import UserError

RunFolder = Annotated[Path, Positional, arg(metavar="RUN", help="Folder of a finished run.")]
RunFolders = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN")]
Images = Annotated[tuple[str, ...], Positional, arg(metavar="IMAGES")]
Out = Annotated[Path, arg(aliases=["-o"])]
OptionalOut = Annotated[Path | None, arg(aliases=["-o"])]
MovedData = Annotated[str | None, arg(help="New location of the run's data, if it has moved.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    arg(help="Device to compute on; auto uses CUDA if available."),
]


def choose_folder(out: Path | None, default: str) -> Path:
    """Return `out`, or else the folder called `default`, which must not exist yet."""
    if out is None and is_first_process() and Path(default).exists():
        raise UserError(f"{default} exists: -o {default} replaces it, another name keeps both")
    return Path(default) if out is None else out


def find_changed_options(files: DataConfig) -> dict[str, Any]:
    """Return the options that differ from their defaults, as keywords of `longtail.load`."""
    defaults = vars(DataConfig())
    return {name: value for name, value in vars(files).items() if value != defaults[name]}


def parse_alphas(text: str) -> list[float]:
    """Read '0:3:0.25', first to last in steps, or a list such as '0,0.5,1'."""
    separator = ":" if ":" in text else ","
    try:
        values = [parse_number("--alphas", part) for part in text.split(separator)]
    except UserError:
        raise UserError(
            f"--alphas takes FIRST:LAST:STEP as 0:2:0.5, or numbers as 0,1,1.5, not '{text}'"
        ) from None
    if ":" not in text:
        return values
    if len(values) != 3 or values[2] <= 0 or values[1] < values[0]:
        raise UserError(f"--alphas is FIRST:LAST:STEP with a positive step, not '{text}'")
    first, last, step = values
    if (last - first) / step > 1000:
        raise UserError(f"--alphas {text} are more than 1,000 values: take a larger step")
    return [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]


def parse_number(option: str, text: str) -> float:
    """Read the finite value of a numeric option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{option} takes numbers, not '{text}'")
    return value
