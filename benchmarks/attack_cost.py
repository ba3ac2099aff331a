"""Time of a training with verified files, against one without hashes and waiting for the disk."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from longtail.core import files, manifest
from longtail.core.environment import commit, versions
from longtail.core.files import replace_atomically
from longtail.core.manifest import Stamp
from longtail.runs.fit import fit


@contextmanager
def without_verification() -> Iterator[None]:
    """Leave out what verified files add to a training."""
    nothing = Stamp(0, "")
    with ExitStack() as stack:
        for module, name, instead in (
            (manifest, "measure", lambda path: nothing if path.exists() else None),
            (manifest, "read_manifest", lambda folder: {}),
            (manifest, "write_manifest", lambda folder, entries: None),
            (files, "sync_file", lambda path: None),
            (manifest, "sync_file", lambda path: None),
            (manifest, "sync_folder", lambda folder: None),
            (files, "sync_folder", lambda folder: None),
        ):
            stack.enter_context(mock.patch.object(module, name, instead))
        yield


def measure_cost(
    out: Path, data: str = "letters-lt", repeats: int = 5, **options: Any
) -> dict[str, Any]:
    """Train on `data` in turns with and without verification; write OUT/cost.json.

    Other programs may be busy, so processor time is given beside the time of the clock.
    """
    found: dict[str, list[dict[str, float]]] = {"verified": [], "unverified": []}
    for _ in range(repeats):
        for name, times in found.items():
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                if name == "unverified":
                    stack.enter_context(without_verification())
                clock, computed = time.perf_counter(), time.process_time()
                fit(data, "deconfound-tde", out=Path(folder) / "run", progress=False, **options)
                clock, computed = time.perf_counter() - clock, time.process_time() - computed
                times.append({"seconds": round(clock, 2), "computed": round(computed, 2)})
    of = {name: median(each["computed"] for each in times) for name, times in found.items()}
    extra = round(100 * (of["verified"] / of["unverified"] - 1), 1)
    about = {"data": data, "options": options, "versions": versions(), "git": commit()}
    measured = {**about, **found, "extra_percent": extra}
    with replace_atomically(out / "cost.json") as path:
        path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return measured
