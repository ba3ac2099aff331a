"""What a head costs at prediction: folded TDE beside a plain cosine head and `nn.Linear`.

Folding makes TDE a change of weights, so that the folded head should cost what a cosine head costs
whose weights are normalised once. All heads of a cell take turns, many times and in changing order,
and the best turn of each counts: other work on the machine can only make a turn longer. On the CPU
it is one thread's processor time, which does not run while others have the core.
Shapes: B rows, C classes, D features, K heads.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail import tables
from longtail.benches import read_all, write_json, write_page
from longtail.heads import CosineHead, DeconfoundHead
from longtail.runs import environment

BATCHES = (1, 16, 256, 4096)
CLASSES = (100, 1_000, 10_000, 100_000)
DIMS = (128, 512, 2048)
MOST_ON_CPU = 10**10
"""Multiplications of a call above which a cell is left to the GPU."""
TURN_SECONDS = 0.002
"""A turn repeats a short call for this long, so that the clock is fine enough."""
LEAST_TURNS, MOST_TURNS = 10, 300
ALPHA = 1.5
UNFOLDED = "unfolded K=2"
RATIOS = {
    "folded/cosine": ("folded K=1", "cosine K=1"),
    "folded/cosine, K=2": ("folded K=2", "cosine K=2"),
    "folded/linear": ("folded K=1", "linear"),
    "unfolded/folded, K=2": (UNFOLDED, "folded K=2"),
}
BAR = 1.02
"""What folded/cosine may be at most."""


class PlainCosine(nn.Module):
    """The textbook's cosine head of K groups, its weights normalised and scaled beforehand."""

    def __init__(self, weight: nn.Parameter, heads: int):
        super().__init__()
        self.weight, self.heads = weight, heads

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""
        if self.heads == 1:
            return F.linear(F.normalize(x, dim=-1), self.weight)
        units = F.normalize(x.unflatten(-1, (self.heads, -1)), dim=-1).flatten(-2)
        return F.linear(units, self.weight)


def heads_of(classes: int, dim: int, device: str) -> dict[str, nn.Module]:
    """All that is measured, with a mean feature as post-ReLU features have it.

    Heads that are compared hold one and the same weight: where a tensor happens to lie in memory
    can matter more than what is done with it.
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
        UNFOLDED: deconfound.eval(),
    }


@torch.inference_mode()
def measure(
    batch: int, classes: int, dim: int, *, device: str, seconds: float = 1.5
) -> dict[str, Any]:
    """Microseconds of a call of each head in its best turn, and the ratios of these."""
    x = torch.rand(batch, dim, device=device)
    heads = heads_of(classes, dim, device)
    turns = {name: _turn(head, x) for name, head in heads.items()}
    best = {name: turn() for name, turn in turns.items()}
    rivals = [name for name in turns if name != UNFOLDED]  # it costs most, and no bar needs it
    once = sum(max(best[name], TURN_SECONDS) for name in rivals)
    repeats = max(LEAST_TURNS, min(MOST_TURNS, int(seconds / once)))
    order = Random(0)
    for _ in range(repeats):
        for name in order.sample(rivals, len(rivals)):
            best[name] = min(best[name], turns[name]())
    return {
        **{"batch": batch, "classes": classes, "dim": dim, "turns": repeats},
        "microseconds": {name: 1e6 * taken for name, taken in best.items()},
        "ratios": {name: best[one] / best[other] for name, (one, other) in RATIOS.items()},
    }


def _turn(head: nn.Module, x: Tensor) -> Callable[[], float]:
    """A function that gives the seconds of one call, over as many as fill a turn."""
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
    """(batch, classes, dim) that are measured on `device`."""
    for dim, classes, batch in product(DIMS, CLASSES, BATCHES):
        if device != "cpu" or batch * classes * dim <= MOST_ON_CPU:
            yield batch, classes, dim


def bench_cost(results: Path, device: str) -> Path:
    """Measure every cell, writing RESULTS/cost/DEVICE.json anew after each, then the table."""
    content: dict[str, Any] = {
        **environment(cuda=device == "cuda"),
        "timed": "wall clock" if device == "cuda" else "processor time of one thread",
        "dtype": "float32",
        "cells": [],
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for cell in cells(device):
            content["cells"].append(measure(*cell, device=device))
            write_json(results / "cost" / f"{device}.json", content)
    finally:
        torch.set_num_threads(threads)
    return write_table(results)


def write_table(results: Path) -> Path:
    """RESULTS/cost.md from the files that are there."""
    parts = []
    for found in read_all(results / "cost"):
        parts.append(f"## {found['device']}, {found['dtype']}, {found['timed']}")
        parts.append(summary(found["cells"]))
        parts.append(tables.markdown(*rows(found["cells"])))
    return write_page(results, "cost", parts)


def rows(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: microseconds of a call, then ratios."""
    names = list(found[0]["microseconds"])
    header = ["batch", "classes", "D", *(f"{name}, us" for name in names), *RATIOS]
    lines = [
        [
            *(f"{cell['batch']:,}", f"{cell['classes']:,}", f"{cell['dim']:,}"),
            *(f"{cell['microseconds'][name]:,.0f}" for name in names),
            *(f"{cell['ratios'][ratio]:.2f}" for ratio in RATIOS),
        ]
        for cell in found
    ]
    return header, lines


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    """The worst ratio beside the bar, and how cost grows with C and with D."""
    told = []
    for ratio in list(RATIOS)[:2]:
        worst = max(found, key=lambda cell: cell["ratios"][ratio])
        over = sum(cell["ratios"][ratio] > BAR for cell in found)
        told.append(
            f"{ratio} is {worst['ratios'][ratio]:.3f} at worst (batch {worst['batch']:,}, "
            f"{worst['classes']:,} classes, D {worst['dim']:,}); {over} of {len(found)} cells are "
            f"above {BAR}."
        )
    for axis, name in (("classes", "C"), ("dim", "D")):
        power = growth(found, axis)
        if power is not None:
            told.append(
                f"Between the two largest {name} at the largest batch that has both, the folded "
                f"head's time grows as {name}^{power:.2f}."
            )
    return " ".join(told)


def growth(found: Sequence[Mapping[str, Any]], axis: str) -> float | None:
    """The p of time ~ axis^p between its two largest values, at the largest batch."""
    values = sorted({cell[axis] for cell in found})[-2:]
    if len(values) < 2:
        return None
    times: dict[tuple, float] = {}
    for cell in found:
        rest = tuple(cell[name] for name in ("batch", "classes", "dim") if name != axis)
        times[rest, cell[axis]] = cell["microseconds"]["folded K=1"]
    pairs = {
        rest: times[rest, values[1]] / times[rest, values[0]]
        for rest, value in times
        if value == values[1] and (rest, values[0]) in times
    }
    if not pairs:
        return None
    largest = max(rest[0] for rest in pairs)
    ratios = [ratio for rest, ratio in pairs.items() if rest[0] == largest]
    return math.log(statistics.median(ratios)) / math.log(values[1] / values[0])
