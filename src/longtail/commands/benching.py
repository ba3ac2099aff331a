"""The command that measures, and makes the tables."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from longtail.config import Config, MachineConfig
from longtail.errors import UserError
from longtail.terminal import first_process, print_lines


@dataclass(frozen=True)
class Bench:
    """Reproduce a table of the paper: run what is missing, then write the table."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """A folder of recipes, such as cifar-lt or momentum; or what is measured without any: speed,
    images, compactness, embeddings, stream, cost, scale."""
    seeds: int | None = None
    """Seeds of every cell; each recipe's own number by default."""
    only: tuple[str, ...] = ()
    """Run only recipes whose path holds one of these words."""
    root: Path | None = None
    """Folder of the data sets; else $LONGTAIL_DATA. For embeddings and stream, of .npz files."""
    recipes: Path = Path("recipes")
    """Where the recipes are."""
    results: Path = Path("results")
    """Where result files are kept and looked for."""
    runs: Path = Path("runs")
    """Where the runs themselves go."""
    machine: MachineConfig = field(default_factory=MachineConfig)
    images: int = 115_846
    """Rows of the generated set that `bench images` is measured on; ImageNet-LT has as many."""
    rows: int = 1_000_000
    """Of the array that scale makes and fits on."""
    dry_run: bool = False
    """List the runs and the expected time, and stop."""

    examples = """
      longtail bench cifar-lt --root ~/data --dry-run
      longtail bench cifar-lt --root ~/data --only cifar100-lt-100 --seeds 3
      longtail bench compactness --root ~/data --seeds 2
      longtail bench tiny-imagenet-lt --root ~/data
      longtail bench speed --root ~/data
      longtail bench images
      longtail bench embeddings --root features --seeds 3
      longtail bench cost --device cpu"""

    def run(self) -> None:
        """Run and print the table."""
        from longtail import bench

        if self.name in MEASURED:
            return MEASURED[self.name](self)
        opened = bench.Bench.open(
            self.name, recipes=self.recipes, results=self.results, runs=self.runs
        )
        wanted = opened.missing(self.seeds, self.only)
        for recipe, seed in wanted:
            print(f"{recipe.cell}  {recipe.name}  seed {seed}")
        seconds = opened.expected_seconds(wanted)
        about = "" if seconds is None else f", about {seconds:.0f} s on the device of the others"
        print(f"{len(wanted)} runs to do{about}")
        if self.dry_run:
            return
        from longtail.console import Console

        console = Console()
        try:
            opened.run(wanted, root=self.root, machine=self.machine, progress=console)
        finally:
            console.close()
            if first_process():
                print(f"written to {bench.write_table(opened, Path('README.md'))}")


def _speed(asked: Bench) -> None:
    _measures_at_once(asked)
    from longtail import speed
    from longtail.data import load

    config = Config.preset("cifar100-lt:100").with_options(
        method="deconfound", device=asked.machine.device
    )
    data = load("cifar100-lt:100", root=asked.root)
    found = speed.bench_speed(config, data, asked.results / "speed" / "speed.json")
    header, rows = speed.table(found)
    print_lines(header, rows)


def _compactness(asked: Bench) -> None:
    from longtail import bench, compactness
    from longtail.console import Console

    opened = bench.Bench.open(
        compactness.BENCH, recipes=asked.recipes, results=asked.results, runs=asked.runs
    )
    cells = compactness.cells(opened, asked.only or compactness.ONLY, asked.seeds or 1)
    for recipe, seed in cells:
        print(f"{recipe.cell}  {recipe.name}  seed {seed}")
    if asked.dry_run:
        return
    console = Console()
    try:
        measured = compactness.bench_compactness(
            opened, cells, root=asked.root, machine=asked.machine, progress=console
        )
    finally:
        console.close()
    header, rows = compactness.table(measured)
    print_lines(header, rows)


def _images(asked: Bench) -> None:
    if asked.dry_run:
        raise UserError("bench images measures at once, for about five minutes: no --dry-run")
    from longtail import throughput

    config = Config.preset("imagenet-lt").with_options(method="deconfound")
    setting = throughput.Setting(
        config=replace(config, machine=asked.machine),
        folder=asked.runs / "images",
        images=asked.images,
        files=min(asked.images, 4096),
    )
    found = throughput.bench_images(setting, asked.results / "images" / "images.json")
    print_lines(*throughput.table(found))


def _embeddings(asked: Bench) -> None:
    from longtail.benches import embedded

    if asked.root is None:
        raise UserError("bench embeddings needs --root, a folder of .npz files of longtail embed")
    cells = embedded.missing(asked.root, asked.results, asked.seeds or 3, asked.only)
    if not embedded.has_imbalanced_learn():
        print("imbalanced-learn is not installed: oversampling is left out")
    print(f"{len(cells)} fits to do")
    if asked.dry_run:
        return
    device = "cuda" if asked.machine.device == "cuda" else "cpu"  # times of one kind by default
    for cell in embedded.bench_embeddings(cells, asked.results, device):
        print(f"{cell.file.stem}  {cell.classifier}  seed {cell.seed}")
    print(f"written to {embedded.write_table(asked.results)}")


def _stream(asked: Bench) -> None:
    _measures_at_once(asked)
    from longtail.benches import stream

    files = sorted(asked.root.glob("*.npz")) if asked.root else []
    pools = [stream.Pool.of(file) for file in files] or [stream.Pool.digits()]
    for path in stream.bench_stream(pools, asked.seeds or 3, asked.results):
        print(path)
    print(f"written to {stream.write_table(asked.results)}")


def _cost(asked: Bench) -> None:
    _measures_at_once(asked)
    from longtail.benches import cost
    from longtail.engine import launch

    device = launch(asked.machine).device.type
    print(f"written to {cost.bench_cost(asked.results, device)}")


def _scale(asked: Bench) -> None:
    _measures_at_once(asked)
    from longtail.benches import scale

    if asked.rows < 1000:
        raise UserError(f"--rows {asked.rows}: scale begins at 1,000 rows")
    print(f"written to {scale.bench_scale(asked.results, asked.rows)}")


def _measures_at_once(asked: Bench) -> None:
    if asked.dry_run:
        raise UserError(f"bench {asked.name} measures at once, for some minutes: no --dry-run")


MEASURED: dict[str, Callable[[Bench], None]] = {
    "speed": _speed,
    "images": _images,
    "compactness": _compactness,
    "embeddings": _embeddings,
    "stream": _stream,
    "cost": _cost,
    "scale": _scale,
}
"""Benches that are no folder of recipes."""
