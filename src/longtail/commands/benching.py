"""The command that measures, and makes the tables."""

from collections.abc import Callable
from dataclasses import dataclass, field
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
    """cifar-lt, shapes-lvis, lvis, speed, or detection-speed."""
    seeds: int | None = None
    """Seeds of every cell; each recipe's own number by default."""
    only: tuple[str, ...] = ()
    """Run only recipes whose path holds one of these words."""
    root: Path | None = None
    """Folder of the data sets; else $LONGTAIL_DATA."""
    recipes: Path = Path("recipes")
    """Where the recipes are."""
    results: Path = Path("results")
    """Where result files are kept and looked for."""
    runs: Path = Path("runs")
    """Where the runs themselves go."""
    machine: MachineConfig = field(default_factory=MachineConfig)
    dry_run: bool = False
    """List the runs and the expected time, and stop."""

    examples = """
      longtail bench cifar-lt --root ~/data --dry-run
      longtail bench cifar-lt --root ~/data --only cifar100-lt-100 --seeds 3
      longtail bench shapes-lvis --seeds 1
      longtail bench speed --root ~/data
      longtail bench detection-speed"""

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
            print(f"{recipe.cell}  {recipe.config.method}  seed {seed}")
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
    if asked.dry_run:
        raise UserError("bench speed measures at once, for about two minutes: no --dry-run")
    from longtail import speed
    from longtail.data import load

    config = Config.preset("cifar100-lt:100").with_options(
        method="deconfound", device=asked.machine.device
    )
    data = load("cifar100-lt:100", root=asked.root)
    found = speed.bench_speed(config, data, asked.results / "speed" / "speed.json")
    header, rows = speed.table(found)
    print_lines(header, rows)


def _detection(asked: Bench) -> None:
    from longtail.console import Console
    from longtail.detection.bench import DetectionBench, write_table

    opened = DetectionBench.open(
        asked.name, recipes=asked.recipes, results=asked.results, runs=asked.runs
    )
    wanted = opened.missing(asked.seeds, asked.only)
    for recipe, seed in wanted:
        print(f"{recipe.place}  seed {seed}")
    trainings = {(recipe.place.parent, recipe.config.training, seed) for recipe, seed in wanted}
    print(f"{len(wanted)} results to make, from {len(trainings)} trainings")
    if asked.dry_run:
        return
    console = Console()
    try:
        device = asked.machine.device
        opened.run(wanted, root=asked.root, device=device, progress=console)
    finally:
        console.close()
        if first_process():
            print(f"written to {write_table(opened)}")


def _detection_speed(asked: Bench) -> None:
    if asked.dry_run:
        raise UserError("bench detection-speed measures at once: no --dry-run")
    from longtail.detection import speed

    found = speed.bench_speed(asked.results / "detection-speed", asked.machine.device)
    header, rows = speed.table(found)
    print_lines(header, rows)


MEASURED: dict[str, Callable[[Bench], None]] = {
    "speed": _speed,
    "shapes-lvis": _detection,
    "lvis": _detection,
    "detection-speed": _detection_speed,
}
"""Benches whose recipes are no classifiers, or that have none."""
