"""`python -m benchmarks NAME`: the command that measures, and makes the tables."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.measured import MEASURED, check_options
from longtail.cli.output import is_first_process
from longtail.cli.parser import parse_alone, user_errors
from longtail.core.config import MachineConfig
from longtail.core.errors import unknown

NAMES = f"A folder of recipes, such as cifar-lt or momentum; or one of {', '.join(MEASURED)}."


@dataclass(frozen=True)
class BenchCommand:
    """Reproduce a table of the paper: run what is missing, then write the table."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help=NAMES)]
    seeds: int | None = None
    """Seeds of every cell; each recipe's own number by default."""
    only: tuple[str, ...] = ()
    """Run only recipes whose path holds one of these words; of embeddings, FILE/CLASSIFIER, of
    detection-speed, a part of shapes-lvis, shapes-lvis-1203, shapes-lvis-1203-masks or lvis-v1; of
    images, the names of ways: ceiling, resident, streaming, dataloader."""
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
      python -m benchmarks cifar-lt --root ~/data --dry-run
      python -m benchmarks cifar-lt --root ~/data --only cifar100-lt-100 --seeds 3
      python -m benchmarks compactness --root ~/data --seeds 2
      python -m benchmarks tiny-imagenet-lt --root ~/data
      python -m benchmarks speed --root ~/data
      python -m benchmarks images
      python -m benchmarks embeddings --root features --seeds 3
      python -m benchmarks cost --device cpu
      python -m benchmarks shapes-lvis --seeds 1"""

    def run(self) -> None:
        """Run and print the table."""
        from benchmarks import bench

        check_options(self)
        if self.name in MEASURED:
            return MEASURED[self.name].run(self)
        known = {folder.name for folder in self.recipes.glob("*/")}
        if known and self.name not in known:
            raise unknown("bench", self.name, known | set(MEASURED), NAMES)
        opened = bench.ClassifierBench.open(
            self.name, recipes=self.recipes, results=self.results, runs=self.runs
        )
        wanted = opened.missing(self.seeds, self.only)
        for recipe, seed in wanted:
            print(f"{recipe.cell}  {recipe.name}  seed {seed}")
        print(opened.ahead(f"{len(wanted)} runs to do", wanted))
        if self.dry_run:
            return
        from longtail.cli.output import Console

        # README shows what is committed: figures kept elsewhere are not
        readme = Path("README.md") if self.results == BenchCommand.results else None
        try:
            with Console() as console:
                opened.run(wanted, root=self.root, machine=self.machine, progress=console)
        finally:
            if is_first_process() and opened.begun:
                print(f"written to {bench.write_table(opened, readme)}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one benchmark."""
    with user_errors():
        parse(list(sys.argv[1:] if argv is None else argv)).run()


def parse(arguments: list[str]) -> BenchCommand:
    """The benchmark that `arguments` ask for."""
    command: BenchCommand = parse_alone(BenchCommand, "python -m benchmarks", arguments)
    return command
