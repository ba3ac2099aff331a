"""What the processes of DDP draw with `Tail.sampler` and with torch's `WeightedRandomSampler`.

Every figure comes from real processes that meet by gloo and read a `DataLoader`.

Shapes: W processes (ranks), S images that a rank draws in an epoch.
"""

import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, Sampler, WeightedRandomSampler

from benchmarks.common.result_files import read_all, read_result, replace_between, write_json
from benchmarks.registry import RESULTS
from longtail.core.environment import environment
from longtail.evaluation import tables
from longtail.nn.tail import Tail

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "sampler"
COUNTS = (1000, 300, 100, 30, 11)
"""Their sum does not divide by 2 or 4."""
WORLDS = (2, 4)
EPOCHS = 20
OURS, SAME, OWN = "tail.sampler", "one seed", "own seeds"
LABELS = {
    OURS: '`tail.sampler("class")`',
    SAME: "`WeightedRandomSampler`, one seed for all ranks",
    OWN: "`WeightedRandomSampler`, a seed for each rank",
}


def run_command(command: "BenchCommand") -> None:
    """Measure the samplers, and write their table."""
    # the docs show committed figures only
    page = Path("docs/tail.md") if command.results == RESULTS else None
    print(f"written to {bench_sampler(command.results, page)}")


def bench_sampler(results: Path, page: Path | None = None) -> Path:
    """Measure the samplers in 2 and 4 processes; write RESULTS/tail/sampler.json, and the page."""
    labels, rows = _make_labels(), []
    for world in WORLDS:
        drawn = _draw_on_ranks(world)
        for name in LABELS:
            found = _measure(drawn[name], labels)
            resumed = drawn["resumed"] == drawn[OURS][1] if name == OURS else None
            rows.append({"ranks": world, "sampler": name, **found, "resumed": resumed})
    out = results / "tail" / f"{NAME}.json"
    about = environment(cuda=False)
    write_json(out, {"counts": COUNTS, "epochs": EPOCHS, "rows": rows, **about})
    if page and page.exists():
        replace_between(page, NAME, format_table(read_result(out)["rows"]))
    return out


def format_table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the table of `rows` in Markdown."""
    header = ["processes", "sampler", "images a rank", "same image in the same step"]
    header += ["repeated images of the largest class", "class frequencies", "resumes"]
    cells = [
        [
            str(row["ranks"]),
            LABELS[row["sampler"]],
            " ".join(f"{size:,}" for size in row["sizes"]),
            f"{row['same']:.0f} %",
            f"{row['repeated']:.0f} %",
            f"{row['sigma']:.2f} sigma",
            "yes" if row["resumed"] else "no",
        ]
        for row in rows
    ]
    return tables.markdown(header, cells)


def _make_labels() -> Tensor:
    """Return the labels (N,) of images with `COUNTS`."""
    return torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))


def _measure(epochs: Sequence[Sequence[Sequence[int]]], labels: Tensor) -> dict[str, Any]:
    """Measure what all ranks drew in each epoch, (epochs, W, S).

    `sigma` is the root mean square deviation of a class's frequency over all ranks, in standard
    deviations of independent draws; `repeated` is the percentage of the draws of class 0 that show
    an image again.
    """
    same, repeated, squares = [], [], []
    for ranks in epochs:
        steps = list(zip(*ranks, strict=True))
        same += [len(set(step)) < len(step) for step in steps]
        joined = torch.tensor([row for step in steps for row in step])
        largest = joined[labels[joined] == 0]
        repeated.append(1 - len(largest.unique()) / len(largest))
        chance = 1 / len(COUNTS)
        sigma = math.sqrt(len(joined) * chance * (1 - chance))
        seen = torch.bincount(labels[joined], minlength=len(COUNTS))
        squares += [((count - len(joined) * chance) / sigma) ** 2 for count in seen.tolist()]
    return {
        "sizes": sorted({len(rank) for ranks in epochs for rank in ranks}),
        "same": 100 * sum(same) / len(same),
        "repeated": 100 * sum(repeated) / len(repeated),
        "sigma": math.sqrt(sum(squares) / len(squares)),
    }


def _draw_on_ranks(world: int) -> dict[str, Any]:
    """Draw with every sampler in `world` processes; epochs hold the indices of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_draw, (world, folder), nprocs=world)
        ranks = read_all(Path(folder))
    drawn: dict[str, Any] = {
        name: [list(epoch) for epoch in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in LABELS
    }
    return {**drawn, "resumed": [rank["resumed"] for rank in ranks]}


def _draw(rank: int, world: int, folder: str) -> None:
    """Be one rank: draw all epochs with each sampler and write them to FOLDER/RANK.json."""
    torch.set_num_threads(1)
    meet = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    labels = _make_labels()
    tail, weights = Tail.of(labels), (1 / torch.tensor(COUNTS))[labels].tolist()

    def weighted(seed: int) -> WeightedRandomSampler:
        generator = torch.Generator().manual_seed(seed)
        return WeightedRandomSampler(weights, len(labels) // world, generator=generator)

    samplers = {OURS: tail.sampler("class"), SAME: weighted(0), OWN: weighted(rank)}
    drawn: dict[str, Any] = {
        name: [_read(sampler, len(labels)) for _ in range(EPOCHS)]
        for name, sampler in samplers.items()
    }
    drawn["resumed"] = _resume(tail, len(labels))
    Path(folder, f"{rank}.json").write_text(json.dumps(drawn), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _read(sampler: Sampler[int], images: int) -> list[int]:
    """Return the indices that a loader reads in one pass."""
    rows: Any = range(images)
    loader: DataLoader[int] = DataLoader(rows, batch_size=64, sampler=sampler)
    return [int(row) for batch in loader for row in batch]


def _resume(tail: Tail, images: int) -> list[int]:
    """Return the second epoch of this rank, interrupted after 100 images and resumed elsewhere."""
    first, second = tail.sampler("class"), tail.sampler("class")
    _read(first, images)
    begun = iter(first)
    before = [next(begun) for _ in range(100)]
    second.load_state_dict(first.state_dict())
    return before + _read(second, images)
