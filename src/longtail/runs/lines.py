"""The lines of metrics.jsonl: a JSON record each, which ends with a checksum of its own."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from longtail.core.plain import fits, parse_json

CHECK = re.compile(r', "check": "([0-9a-f]{16})"\}$')


def format_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Write a line for each record."""
    return "".join(f"{_add_check(json.dumps(record))}\n" for record in records)


def _add_check(text: str) -> str:
    return f'{text[:-1]}, "check": "{_hash(text)}"}}'


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_lines(text: str) -> list[dict[str, Any]]:
    """Read the records back; those of older versions have no checksums, all or none of them.

    Raises:
        ValueError: if a line is not what was written.
    """
    *lines, rest = text.split("\n")
    checks = [CHECK.search(line) for line in lines]
    if rest or (any(checks) and not all(checks)):
        raise ValueError("a line is incomplete")
    records = []
    for line, check in zip(lines, checks, strict=True):
        plain = line[: check.start()] + "}" if check else line
        if check and check[1] != _hash(plain):
            raise ValueError("a line has another checksum")
        record = parse_json(plain, "a line")
        if not isinstance(record, dict) or not fits(record.get("epoch"), int):
            raise ValueError("a line is not the record of an epoch")
        records.append(record)
    return records
