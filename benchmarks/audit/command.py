"""The audit: copies of images that it finds, and its speed."""

import json
from typing import TYPE_CHECKING

from benchmarks.audit import copies, speed
from benchmarks.common.data_folder import check_data
from benchmarks.common.words import select_words

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

PARTS = ("copies", "speed")
IMAGES = 20_000
"""Generated images; as many as ImageNet-LT has would take 13 GB of disk."""


def run_command(command: "BenchCommand") -> None:
    """Measure the parts that are asked for."""
    parts = select_words(PARTS, command.only)
    if "copies" in parts:
        check_data(copies.SETS, command.root)
        for path in copies.bench_copies(command.root, command.seeds or 3, command.results):
            print(path)
        print(f"written to {copies.write_table(command.results)}")
    if "speed" in parts:
        images = command.images or IMAGES
        print(json.dumps(speed.bench_audit(command.runs / "audit", images)))
