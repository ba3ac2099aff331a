"""Arguments that several commands share, and numbers read from the command line."""

import math
from pathlib import Path
from typing import Annotated

import tyro

from longtail.core.errors import UserError

RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def parse_alphas(text: str) -> list[float]:
    """'0:3:0.25' from first to last, or '0,0.5,1'."""
    if ":" not in text:
        return [_alpha(part, text) for part in text.split(",")]
    parts = [_alpha(part, text) for part in text.split(":")]
    if len(parts) != 3 or parts[2] <= 0 or parts[1] < parts[0]:
        raise UserError(f"--alphas is FIRST:LAST:STEP with a positive step, not '{text}'")
    first, last, step = parts
    if (last - first) / step > 1000:
        raise UserError(f"--alphas {text} are more than 1,000 values: take a larger step")
    return [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]


def _alpha(part: str, text: str) -> float:
    try:
        return number("--alphas", part)
    except UserError:
        raise UserError(
            f"--alphas takes FIRST:LAST:STEP as 0:2:0.5, or numbers as 0,1,1.5, not '{text}'"
        ) from None


def number(option: str, text: str) -> float:
    """The value of a numeric option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{option} takes numbers, not '{text}'")
    return value
