"""Prediction time of a head: folded TDE against a plain cosine head and `nn.Linear`.

Folding turns TDE into a change of weights, so a folded head should take as long as a cosine head
whose weights are normalised once. The heads of a cell take turns, many times and in random order.
The fastest turn of each counts, because other work on the machine can only slow a turn down. On the
CPU the clock is the processor time of one thread, which excludes other processes.
Shapes: B rows, C classes, D features, K heads.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common.result_files import read_all, write_json, write_page
from longtail.core.environment import environment
from longtail.evaluation import tables
from longtail.nn.heads import CosineHead, DeconfoundHead
from longtail.training.launch import launch

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

BATCHES = (1, 16, 256, 4096)
CLASSES = (100, 1_000, 10_000, 100_000)
DIMS = (128, 512, 2048)
MOST_ON_CPU = 10**10
"""Cells with more multiplications per call are measured on the GPU only."""
TURN_SECONDS = 0.002
"""A turn repeats a short call for this long, because the clock is coarse."""
LEAST_TURNS, MOST_TURNS = 10, 300
ALPHA = 1.5
UNFOLDED = "unfolded K=2"
RATIOS = {
    "folded/cosine": ("folded K=1", "cosine K=1"),
    "folded/cosine, K=2": ("folded K=2", "cosine K=2"),
    "folded/itself": ("folded K=1, again", "folded K=1"),
    "folded/itself, K=2": ("folded K=2, again", "folded K=2"),
    "folded/linear": ("folded K=1", "linear"),
    "unfolded/folded, K=2": (UNFOLDED, "folded K=2"),
}
BAR = 1.02
"""Largest acceptable folded/cosine ratio."""


class PlainCosine(nn.Module):
    """Textbook cosine head of K groups whose weights are already normalised and scaled."""

    def __init__(self, weight: nn.Parameter, heads: int):
        super().__init__()
        self.weight, self.heads = weight, heads

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""
        if self.heads == 1:
            return F.linear(F.normalize(x, dim=-1), self.weight)
        units = F.normalize(x.unflatten(-1, (self.heads, -1)), dim=-1).flatten(-2)
        return F.linear(units, self.weight)


def build_heads(classes: int, dim: int, device: str) -> dict[str, nn.Module]:
    """Build all heads to measure; their mean feature is positive, as after a ReLU.

    Compared heads share one weight tensor, because its place in memory can matter more than the
    arithmetic. Each folded head occurs twice: the ratio of a head to itself is the noise.
    """
    with torch.device(device):
        cosine, deconfound = CosineHead(dim, classes), DeconfoundHead(dim, classes, alpha=ALPHA)
        linear = nn.Linear(dim, classes, bias=False)
    for head in (cosine, deconfound):
        head.mean_feature.copy_(torch.rand(dim))
    one, two = cosine.folded(ALPHA), deconfound.folded()
    linear.weight = one.weight
    return {
        "linear": linear.eval(),
        "cosine K=1": PlainCosine(one.weight, 1).eval(),
        "folded K=1": one,
        "cosine K=2": PlainCosine(two.weight, 2).eval(),
        "folded K=2": two,
        "folded K=1, again": one,
        "folded K=2, again": two,
        UNFOLDED: deconfound.eval(),
    }


@torch.inference_mode()
def measure(
    batch: int, classes: int, dim: int, *, device: str, seconds: float = 2.5
) -> dict[str, Any]:
    """Measure the microseconds per call of each head in its fastest turn, and their ratios."""
    x = torch.rand(batch, dim, device=device)
    heads = build_heads(classes, dim, device)
    turns = {name: _make_turn(head, x) for name, head in heads.items()}
    best = {name: turn() for name, turn in turns.items()}
    once = sum(max(taken, TURN_SECONDS) for taken in best.values())
    repeats = max(LEAST_TURNS, min(MOST_TURNS, int(seconds / once)))
    order = Random(0)
    for _ in range(repeats):
        for name in order.sample(list(turns), len(turns)):
            best[name] = min(best[name], turns[name]())
    return {
        **{"batch": batch, "classes": classes, "dim": dim, "turns": repeats},
        "microseconds": {name: 1e6 * taken for name, taken in best.items()},
        "ratios": {name: best[one] / best[other] for name, (one, other) in RATIOS.items()},
    }


def _make_turn(head: nn.Module, x: Tensor) -> Callable[[], float]:
    """Return a function that measures the seconds per call over one turn."""
    clock = time.perf_counter if x.is_cuda else time.process_time

    def run(calls: int) -> float:
        began = clock()
        for _ in range(calls):
            head(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        return (clock() - began) / calls

    run(1)  # warms up
    calls = max(1, int(TURN_SECONDS / run(1)))
    return lambda: run(calls)


def cells(device: str) -> Iterator[tuple[int, int, int]]:
    """Yield the (batch, classes, dim) to measure on `device`."""
    for dim, classes, batch in product(DIMS, CLASSES, BATCHES):
        if device != "cpu" or batch * classes * dim <= MOST_ON_CPU:
            yield batch, classes, dim


def run_command(command: "BenchCommand") -> None:
    """Measure the heads on a device, then write the table."""
    device = launch(command.machine).device.type
    print(f"written to {bench_cost(command.results, device)}")


def bench_cost(results: Path, device: str) -> Path:
    """Measure every cell, then replace RESULTS/cost/DEVICE.json and write the table."""
    wanted, measured = list(cells(device)), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number, (batch, classes, dim) in enumerate(wanted, 1):
            print(f"{number}/{len(wanted)}  batch {batch:,}  {classes:,} classes  D {dim:,}")
            measured.append(measure(batch, classes, dim, device=device))
    finally:
        torch.set_num_threads(threads)
    content = {
        **environment(cuda=device == "cuda"),
        "timed": "wall clock" if device == "cuda" else "processor time of one thread",
        "dtype": "float32",
        "cells": measured,
    }
    write_json(results / "cost" / f"{device}.json", content)
    return write_table(results)


def write_table(results: Path) -> Path:
    """Write RESULTS/cost.md from the result files."""
    parts = []
    for found in read_all(results / "cost"):
        parts.append(f"## {found['device']}, {found['dtype']}, {found['timed']}")
        parts.append(summary(found["cells"]))
        parts.append(tables.markdown(*growth(found["cells"])))
        parts.append(tables.markdown(*rows(found["cells"])))
    return write_page(results, "cost", parts)


def rows(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: microseconds per call, then ratios."""
    names, ratios = list(found[0]["microseconds"]), list(found[0]["ratios"])
    header = ["batch", "classes", "D", *(f"{name}, us" for name in names), *ratios]
    lines = [
        [
            *(f"{cell['batch']:,}", f"{cell['classes']:,}", f"{cell['dim']:,}"),
            *(f"{cell['microseconds'][name]:,.0f}" for name in names),
            *(f"{cell['ratios'][ratio]:.2f}" for ratio in ratios),
        ]
        for cell in found
    ]
    return header, lines


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    """Describe the worst ratios, including those of a head to itself."""
    sentences = []
    for ratio in (name for name in list(RATIOS)[:4] if name in found[0]["ratios"]):
        worst = max(found, key=lambda cell: cell["ratios"][ratio])
        over = sum(cell["ratios"][ratio] > BAR for cell in found)
        sentences.append(
            f"The largest {ratio} is {worst['ratios'][ratio]:.3f} (batch {worst['batch']:,}, "
            f"{worst['classes']:,} classes, D {worst['dim']:,}); {over} of {len(found)} cells are "
            f"above {BAR}."
        )
    return " ".join([*sentences, "The time of the folded head grows with C and D as follows."])


def growth(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: p and q of time ~ C^p D^q, fitted per batch size, and the misfit."""
    lines = []
    for batch in sorted({cell["batch"] for cell in found}):
        mine = [cell for cell in found if cell["batch"] == batch]
        sizes = np.log([[cell["classes"], cell["dim"], math.e] for cell in mine])
        times = np.log([cell["microseconds"]["folded K=1"] for cell in mine])
        powers, _, rank, _ = np.linalg.lstsq(sizes, times)
        if rank == 3:
            off = math.exp(float(np.abs(sizes @ powers - times).max()))
            shown = [f"C^{powers[0]:.2f}", f"D^{powers[1]:.2f}", f"{off:.2f}"]
            lines.append([f"{batch:,}", str(len(mine)), *shown])
    return ["batch", "cells", "with classes", "with D", "worst cell off by a factor of"], lines
