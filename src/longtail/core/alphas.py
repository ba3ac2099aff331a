"""Alphas that a user wrote as text, such as 0:3:0.25."""

import math

from longtail.core.errors import UserError

MOST = 1000
"""Steps of one range of alphas."""


def parse_alphas(text: str, name: str = "--alphas") -> list[float]:
    """Read '0:3:0.25', first to last in steps, or a list such as '0,0.5,1'.

    Errors call the option `name`.
    """
    separator = ":" if ":" in text else ","
    parts = text.split(separator)
    try:
        values = [parse_number(name, part) for part in parts]
    except UserError:
        values = []
    if not values or (separator == ":" and len(values) > 3):
        raise UserError(
            f"{name} takes FIRST:LAST:STEP as 0:2:0.5, or numbers as 0,1,1.5, not '{text}'"
        )
    if separator == ",":
        return values
    if len(values) == 2:
        raise UserError(f"{name} {text} has no step: write FIRST:LAST:STEP, as in {text}:0.5")
    first, last, step = values
    if step <= 0:
        raise UserError(f"{name} {text}: the step must be above 0, not {parts[2]}")
    if last < first:
        raise UserError(
            f"{name} {text}: LAST, {parts[1]}, is below FIRST, {parts[0]}. Write "
            f"{parts[1]}:{parts[0]}:{parts[2]}"
        )
    if (last - first) / step > MOST:
        raise UserError(f"{name} {text} are more than {MOST:,} values: take a larger step")
    return [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]


def parse_number(name: str, text: str, rule: str = "a number") -> float:
    """Read a finite number; the error says that the option `name` takes `rule`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name} takes {rule}, not '{text}'")
    return value
