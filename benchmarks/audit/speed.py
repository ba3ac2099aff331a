"""Time of an audit of generated JPEGs with the sizes of ImageNet's."""

import time
from pathlib import Path
from typing import Any

from benchmarks.common.jpegs import generate
from longtail.data.decoding.host import count_cores
from longtail.reporting.audit import audit

CLASSES = 100


def bench_audit(folder: Path, images: int) -> dict[str, Any]:
    """Generate `images` files in `folder`, audit them, and return the seconds and the findings."""
    paths = generate(folder, images)
    listed = folder / f"{images}.txt"
    lines = [f"{path.name} {number % CLASSES}" for number, path in enumerate(paths)]
    listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    began = time.perf_counter()
    found = audit(list=listed, root=folder)
    seconds = time.perf_counter() - began
    return {
        "images": images,
        "cores": count_cores(),
        "seconds": round(seconds, 1),
        "images_per_second": round(images / seconds),
        "findings": {finding.kind: len(finding.items) for finding in found.findings},
    }
