"""Shards of a benchmark: several commands do a part of its work each."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from longtail.core.errors import UserError
from longtail.core.names import count_noun

T = TypeVar("T")


def take_shard(units: Sequence[T], shard: str) -> list[T]:
    """Return the units of a shard, as 0/6 is the first of six."""
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise UserError(f"--shard {shard}: takes PART/PARTS with PART from 0, such as 0/6")
    return list(units[int(part) :: int(parts)])


def describe_trainings(number: int, out: Path) -> str:
    """Describe the missing trainings of a benchmark that appends its lines to `out`."""
    if not number:
        return f"nothing to do: all lines of this shard are in {out} or in the folder of results"
    return f"{count_noun(number, 'training')} to do, no price"
