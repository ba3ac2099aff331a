"""Time of a training with verified files, against one without hashes and waiting for the disk."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from longtail.core import files, manifest
from longtail.core.config import Config, MachineConfig
from longtail.core.environment import environment
from longtail.core.files import replace_atomically
from longtail.core.manifest import Stamp
from longtail.runs.fit import fit_all
from longtail.training.launch import find_accelerator

EPOCHS = 50
"""Epochs on a GPU."""


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


def choose_data(machine: MachineConfig) -> str:
    """Return the data set that is trained on: on a CPU a small one that needs no files."""
    return "cifar100-lt:100" if find_accelerator(machine) == "cuda" else "letters-lt"


def measure_cost(
    out: Path, root: Path | None, machine: MachineConfig, repeats: int = 5
) -> dict[str, Any]:
    """Train in turns with and without verification: CIFAR-100-LT on a GPU, else letters-lt.

    Other programs may keep a CPU busy, so processor time counts there. A GPU is ours alone, and the
    clock counts. Writes OUT/cost-DATA.json.
    """
    on_gpu = find_accelerator(machine) == "cuda"
    data, counts = choose_data(machine), "seconds" if on_gpu else "computed"
    config = replace(Config.preset(data).with_options(method="deconfound-tde"), machine=machine)
    if on_gpu:
        config = config.with_options(root=root, epochs=EPOCHS)
        _train(config)  # the first training on a device takes longer
    found: dict[str, list[dict[str, float]]] = {"verified": [], "unverified": []}
    for _ in range(repeats):
        found["verified"].append(_train(config))
        with without_verification():
            found["unverified"].append(_train(config))
    of = {name: median(each[counts] for each in times) for name, times in found.items()}
    extra = round(100 * (of["verified"] / of["unverified"] - 1), 1)
    about = {"data": data, "epochs": config.train.epochs, "counts": counts}
    measured = {**about, **environment(cuda=on_gpu), **found, "extra_percent": extra}
    with replace_atomically(out / f"cost-{data.replace(':', '-')}.json") as path:
        path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return measured


def _train(config: Config) -> dict[str, float]:
    """Train once; return the seconds of the clock and of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        clock, computed = time.perf_counter(), time.process_time()
        fit_all(config, [config.method], [config.seed], out=Path(folder) / "run")
        clock, computed = time.perf_counter() - clock, time.process_time() - computed
    return {"seconds": round(clock, 2), "computed": round(computed, 2)}
