"""Arguments that several commands share."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from longtail.core.config import DataConfig
from longtail.core.errors import UserError

RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunFolders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Device = Literal["auto", "cpu", "cuda"]


def find_changed_options(files: DataConfig) -> dict[str, Any]:
    """Return the options that differ from their defaults, as keywords of `longtail.load`."""
    defaults = vars(DataConfig())
    return {name: value for name, value in vars(files).items() if value != defaults[name]}


def parse_alphas(text: str) -> list[float]:
    """Read '0:3:0.25', first to last in steps, or a list such as '0,0.5,1'."""
    if ":" not in text:
        return [_parse_alpha(part, text) for part in text.split(",")]
    parts = [_parse_alpha(part, text) for part in text.split(":")]
    if len(parts) != 3 or parts[2] <= 0 or parts[1] < parts[0]:
        raise UserError(f"--alphas is FIRST:LAST:STEP with a positive step, not '{text}'")
    first, last, step = parts
    if (last - first) / step > 1000:
        raise UserError(f"--alphas {text} are more than 1,000 values: take a larger step")
    return [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]


def _parse_alpha(part: str, text: str) -> float:
    try:
        return parse_number("--alphas", part)
    except UserError:
        raise UserError(
            f"--alphas takes FIRST:LAST:STEP as 0:2:0.5, or numbers as 0,1,1.5, not '{text}'"
        ) from None


def parse_number(option: str, text: str) -> float:
    """Read the finite value of a numeric option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{option} takes numbers, not '{text}'")
    return value
