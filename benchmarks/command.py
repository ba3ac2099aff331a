"""The command `python -m benchmarks NAME`, which runs benchmarks and writes their tables."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from benchmarks.common.data_folder import check_data, check_root, list_missing
from benchmarks.registry import BENCHMARKS, RESULTS, check_options, find_room
from longtail.cli.arguments import check_writable
from longtail.cli.failures import user_errors
from longtail.cli.output import is_first_process
from longtail.cli.parser import HELP_WORDS, parse_alone
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError, unknown_error
from longtail.core.names import count_noun

if TYPE_CHECKING:
    from benchmarks.classifiers.bench import ClassifierBench
    from benchmarks.classifiers.recipes import ClassifierRecipe

PROGRAM = "python -m benchmarks"
PLACES = ("root", "recipes", "results", "runs", "out")
"""Options that are paths."""
NAMES = f"A folder of recipes, such as cifar-lt or momentum; or one of {', '.join(BENCHMARKS)}."


@dataclass(frozen=True)
class BenchCommand:
    """Run the missing parts of a benchmark, then write its table."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help=NAMES)]
    seeds: int | None = None
    """Number of seeds of every cell; by default the number in each recipe. For serving: rounds.
    For audit: draws."""
    only: tuple[str, ...] = ()
    """Run only recipes whose path contains one of these words. For compactness: of cifar-lt. For
    embeddings: words of FILE/CLASSIFIER. For other benchmarks: words of the names that they
    measure; a word that none of them contains is refused with a list of the names."""
    root: Path | None = None
    """Folder of data sets, by default $LONGTAIL_DATA; of .npz files for embeddings and stream.
    It must exist."""
    recipes: Path = Path("recipes")
    """Folder of the recipes."""
    results: Path = RESULTS
    """Folder of the result files."""
    runs: Path = Path("runs")
    """Folder for the runs."""
    machine: MachineConfig = field(default_factory=MachineConfig)
    tries: int = 20_000
    """For attack: number of fuzzed inputs. A tenth as many bits are flipped, a fortieth as many
    files are cut, a twentieth as many processes are killed, and a hundredth as many ranks."""
    images: int | None = None
    """Number of generated images. For images: by default 115,846, as many as ImageNet-LT has. For
    audit and serving: by default 20,000."""
    rows: int = 1_000_000
    """For scale: number of generated rows."""
    variants: str | None = None
    """For frontier, which evaluates on the test part, and frontier-search, which evaluates on the
    validation part or on a held-out fifth of each class: a set of variants in
    benchmarks/frontier/variants, or a YAML file; by default `final` and `search`."""
    shard: str = "0/1"
    """For recipes of detectors, frontier, frontier-search, integrations and trust: PART/PARTS of
    the trainings to run here; 0/6 is the first of six. Several processes may share a device."""
    processes: int = 1
    """For recipes of classifiers: number of processes that share the device and the trainings.
    Several fill a GPU better than one, if NVIDIA's MPS is running (nvidia-cuda-mps-control -d). For
    large networks pass a smaller --replicas: each process takes the memory that is free."""
    shared_device: bool = False
    """For recipes of classifiers: say in each result that other commands shared the device. Later
    prices and the seconds in tables skip such results."""
    minutes: float | None = None
    """For recipes of classifiers: run only what should take this long on the clock, with all
    processes, and at least one training. The same command then goes on with the rest."""
    again: bool = False
    """For recipes and compactness: also make results again whose commit is dirty, unknown or has
    other code in the rooms that make them. Whole trainings are made again; their runs lie in
    RUNS/VERSION."""
    out: Path | None = None
    """For frontier, frontier-search and integrations: file that gets a line of JSON for each
    training, by default VARIANTS.jsonl in RESULTS/NAME, or
    RESULTS/integrations/integrations.jsonl. A training that has a line here or in a file of that
    folder is skipped."""
    epochs: int | None = None
    """For trust: epochs of every training, to try the command out."""
    dry_run: bool = False
    """List the runs and the expected time, then stop."""

    examples = """
      python -m benchmarks cifar-lt --root ~/data --dry-run
      python -m benchmarks cifar-lt --root ~/data --only cifar100-lt-100 --seeds 3
      python -m benchmarks cifar-lt --root ~/data --minutes 8 --processes 4
      python -m benchmarks cifar-lt --root ~/data --again --minutes 8
      python -m benchmarks compactness --root ~/data --seeds 2
      python -m benchmarks tiny-imagenet-lt --root ~/data
      python -m benchmarks speed --root ~/data
      python -m benchmarks sharing --root ~/data --compile
      python -m benchmarks images
      python -m benchmarks embeddings --root features --seeds 3
      python -m benchmarks cost --device cpu
      python -m benchmarks audit --root ~/data --only copies
      python -m benchmarks attack --tries 2000 --only recipe
      python -m benchmarks frontier-search --root ~/data --shard 0/6
      python -m benchmarks trust --root ~/data --only cifar100 --shard 0/6
      python -m benchmarks shapes-lvis --seeds 1"""

    def run(self) -> None:
        """Run the benchmark and write its table."""
        from benchmarks.classifiers import bench

        check_options(self)
        check_root(self.root)
        if self.name in BENCHMARKS:
            self._check_outputs()
            return BENCHMARKS[self.name].run(self)
        known = {folder.name for folder in self.recipes.glob("*/")}
        if known and self.name not in known:
            raise unknown_error("benchmark", self.name, known | set(BENCHMARKS), NAMES)
        recipe_bench = bench.ClassifierBench.open(
            self.name, recipes=self.recipes, results=self.results, runs=self.runs
        )
        recipe_bench = recipe_bench.again(find_room(self.name)) if self.again else recipe_bench
        recipe_bench = replace(
            recipe_bench, processes=self.processes, shared_device=self.shared_device
        )
        wanted = recipe_bench.select_work(self.seeds, self.only, self.minutes)
        for recipe, seed in wanted:
            print(f"{recipe.cell}  {recipe.name}  seed {seed}")
        missing = len(recipe_bench.missing(self.seeds, self.only))
        part = f", of {missing:,} that are missing" if len(wanted) < missing else ""
        work = f"{count_noun(len(wanted), 'run')} to do{part}"
        print(recipe_bench.describe_work(work, wanted))
        if note := self._describe_device(recipe_bench, wanted):
            print(note)
        shares = recipe_bench.split_work(wanted, self.processes)
        for line in recipe_bench.describe_shares(shares) if len(shares) > 1 else ():
            print(line)
        names = [recipe.config.data for recipe, _ in wanted]
        if self.dry_run:
            for line in [*recipe_bench.describe_refusal(wanted), *list_missing(names, self.root)]:
                print(line)
            return
        check_data(names, self.root)
        if wanted:
            recipe_bench.prepare_runs()
        try:
            self._run_recipes(recipe_bench, shares)
        finally:
            if is_first_process() and recipe_bench.started:
                self._write_pages(recipe_bench, keep_clean=self.again and bool(wanted))

    def _describe_device(
        self,
        recipe_bench: "ClassifierBench",
        wanted: Sequence[tuple["ClassifierRecipe", int]],
    ) -> str:
        """Say that the price is that of another device; empty if it is not, or without a price."""
        from longtail.core.environment import environment
        from longtail.training.launch import find_accelerator

        known = {measured["device"] for measured in recipe_bench.list_measured(wanted)}
        own = environment(cuda=find_accelerator(self.machine) == "cuda")["device"]
        other = known and own not in known
        return f"here it would run on {own}, which has no price" if other else ""

    def _check_outputs(self) -> None:
        """Refuse places where the results cannot be written, and another program's page."""
        from benchmarks.common.result_files import check_page

        if self.dry_run or self.name == "check":
            return
        check_writable(self.results / self.name, "--results")
        check_page(self.results / f"{self.name}.md")
        if self.out:
            if self.out.is_dir():
                raise UserError(f"--out {self.out} is a folder: pass a file")
            check_writable(self.out, is_file=True)

    def _run_recipes(
        self,
        recipe_bench: "ClassifierBench",
        shares: Sequence[Sequence[tuple["ClassifierRecipe", int]]],
    ) -> None:
        """Run each share in a process of its own, or here if there is only one."""
        from benchmarks.classifiers import processes
        from longtail.core.console import Console

        if len(shares) > 1:
            return processes.run_in_processes(recipe_bench, shares, self.root, self.machine)
        with Console() as console:
            for share in shares:
                recipe_bench.run(share, root=self.root, machine=self.machine, progress=console)

    def _write_pages(self, recipe_bench: "ClassifierBench", *, keep_clean: bool) -> None:
        """Write the table; committed results also give that of the README and tuned recipes.

        The README waits until nothing is missing, and with `keep_clean` for the next command:
        results that are made after it has changed, also by other benchmarks, have no clean commit.
        """
        from benchmarks.classifiers import paper_tables, tuning

        own = self.results == RESULTS
        ready = own and not keep_clean and not recipe_bench.missing(None)
        readme = Path("README.md") if ready else None
        print(f"written to {paper_tables.write_table(recipe_bench, readme)}")
        if own and self.name == tuning.NAME:
            for line in tuning.write_chosen(recipe_bench, self.recipes):
                print(f"written to {line}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one benchmark."""
    with user_errors():
        command = parse(list(sys.argv[1:] if argv is None else argv))
        try:
            command.run()
        except KeyboardInterrupt as interrupt:  # or SIGTERM, which has a class of its own
            # not what a single training says, whose own command would write no result
            raise type(interrupt)("run the same command again") from None


def parse(arguments: list[str]) -> BenchCommand:
    """Parse the command line."""
    if not HELP_WORDS.intersection(arguments):
        _check_words(arguments)
    late = UserError(
        f"--only takes all words after it: put NAME first, as in {PROGRAM} NAME --only WORD"
    )
    try:
        command: BenchCommand = parse_alone(BenchCommand, PROGRAM, arguments)
    except UserError as error:
        if "--only" in arguments and "missing NAME" in str(error):
            raise late from None
        raise
    if "--only" in arguments and not command.only:  # its only word became NAME
        raise late
    given = {name: getattr(command, name) for name in PLACES if getattr(command, name)}
    # shells keep --root=~/data as it is
    places: Any = {name: Path(os.path.expanduser(path)) for name, path in given.items()}
    return replace(command, **places)


def _check_words(arguments: Sequence[str]) -> None:
    """Raise if `--only` has no word or is repeated.

    tyro reads no word as an empty tuple, and the last of two `--only`.
    """
    words = [part for word in arguments for part in _split_value(word)]
    if "--only" not in words:
        return
    if words.count("--only") > 1:
        raise UserError("--only was given twice: write all words after one, as in --only A B")
    following = words[words.index("--only") + 1 :]
    if not following or not following[0] or following[0].startswith("-"):
        raise UserError(
            "--only needs a word of what to run, as in --only cifar100-lt-100; leave it out to run "
            "everything"
        )


def _split_value(word: str) -> list[str]:
    """Split `--only=WORD` in two; other words stay whole."""
    return word.split("=", 1) if word.startswith("--only=") else [word]
