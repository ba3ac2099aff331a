"""Shards of a benchmark: several commands do a part of its work each."""

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from longtail.core.errors import UserError
from longtail.core.names import count_noun

T = TypeVar("T")


def take_shard(units: Sequence[T], shard: str) -> list[T]:
    """Return the units of a shard, as 0/6 is the first of six."""
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise UserError(
            f"--shard {shard}: takes PART/PARTS, PART from 0 and below PARTS, as in 0/6"
        )
    return list(units[int(part) :: int(parts)])


def estimate_trainings(
    wanted: Iterable[tuple[Hashable, int]], done: Iterable[tuple[Hashable, int, float]]
) -> float | None:
    """Estimate the seconds of trainings one after another, each given by its kind and its epochs.

    An epoch takes the median of those of trainings of the same kind in `done`, which also gives
    their seconds; None if there is a kind without any.
    """
    known: dict[Hashable, list[float]] = {}
    for kind, epochs, seconds in done:
        known.setdefault(kind, []).append(seconds / epochs)
    parts = [(epochs, known.get(kind)) for kind, epochs in wanted]
    if not all(found for _, found in parts):
        return None
    return sum(epochs * statistics.median(found) for epochs, found in parts if found)


def describe_trainings(
    number: int, out: Path, seconds: float | None, by: str = "existing results"
) -> str:
    """Describe the missing trainings of a benchmark that appends its lines to `out`.

    Their `seconds` are one after another, by what was measured before.
    """
    if not number:
        return f"nothing to do: all lines of this shard are in {out} or in the folder of results"
    work = f"{count_noun(number, 'training')} to do"
    if seconds is None:
        return f"{work}, no price: nothing like it was measured"
    return f"{work}, about {seconds:,.0f} s one after another by {by}"


def name_shared(lines: Iterable[Mapping[str, Any]]) -> str:
    """Name the trainings of `lines`, which take longer than trainings that have a device alone."""
    devices = sorted({line["device"] for line in lines})
    return f"trainings that shared a device ({'; '.join(devices)})"
