"""Shards of a benchmark: several commands do a part of its work each."""

from collections.abc import Sequence
from typing import TypeVar

from longtail.core.errors import UserError

T = TypeVar("T")


def take_shard(units: Sequence[T], shard: str) -> list[T]:
    """Return the units of a shard, as 0/6 is the first of six."""
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise UserError(f"--shard {shard}: takes PART/PARTS with PART from 0, such as 0/6")
    return list(units[int(part) :: int(parts)])
