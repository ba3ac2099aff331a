"""The commands: each is a dataclass of its options, calls one library function, and prints.

Nothing here imports torch before it is needed, so that help answers at once.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from longtail.config import Config, MachineConfig
from longtail.errors import UserError
from longtail.terminal import first_process, number, parse_alphas, print_lines, print_table

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Train:
    """Train methods on a data set and judge them at the last epoch.

    A method's own options stand anywhere, as in --alpha 1.5 --heads 4: see longtail methods NAME.
    """

    config: Config = field(default_factory=Config)
    out: Path | None = None
    """Run folder; runs/DATA-METHOD by default, OUT/METHOD/sSEED for several methods or seeds."""
    seeds: int | None = None
    """Train this many seeds, from --seed on, and report mean and deviation."""
    recipe: Path | None = None
    """YAML file whose options become the defaults of this command."""
    resume: bool = False
    """Go on with an interrupted run; nothing in its configuration may change."""
    overwrite: bool = False
    """Replace the run that is in the folder."""

    examples = """
      longtail train letters-lt
      longtail train cifar100-lt:100 --root ~/data --method deconfound-tde --alpha 1.5 --seeds 3
      longtail train photos/ --image-size 96 --backbone resnet18 --val-fraction 0.2 --alpha auto
      longtail train letters-lt --method baseline,deconfound,deconfound-tde --out runs/letters
      longtail train letters-lt --method all --seeds 3
      longtail train --list train.txt --test-list test.txt --root images/ --image-size 224"""

    def run(self) -> None:
        """Train, then print the table."""
        from longtail import methods
        from longtail.console import Console
        from longtail.pipeline import fit_all

        if not self.config.data and not self.config.files.list:
            raise UserError("which data? Give a name, a folder or --list (see longtail data)")
        asked = self.config.method
        names = list(methods.registry()) if asked == "all" else asked.split(",")
        source = Path(self.config.data or str(self.config.files.list)).name.replace(":", "-")
        out = self.out or Path("runs") / f"{source}-{asked}"
        if self.resume and self.overwrite:
            raise UserError("--resume goes on with a run and --overwrite replaces it: pass one")
        count = 1 if self.seeds is None else self.seeds
        if count < 1:
            raise UserError(f"--seeds {count}: at least one seed must be trained")
        seeds = range(self.config.seed, self.config.seed + count)
        console = Console()
        try:
            runs = fit_all(
                self.config,
                names,
                seeds,
                out=out,
                resume=self.resume,
                overwrite=self.overwrite,
                progress=console,
            )
        finally:
            console.close()
        print_table([run.result for run in runs])
        if not first_process():
            return
        print(f"written to {out}")
        if len(runs) > 1:
            from longtail.reports import report

            print(f"accuracy by class, head to tail: {report(runs, out / 'report.html')}")


@dataclass(frozen=True)
class Eval:
    """Judge a finished run, at its own alpha or at another."""

    folder: Run
    """Folder of a finished run."""
    alpha: str | None = None
    """A number, or auto: on the run's held-out data, else by the label-free rule."""
    json: bool = False
    """Print the whole result as JSON."""

    examples = """
      longtail eval runs/demo/deconfound-tde/s0
      longtail eval runs/demo/deconfound-tde/s0 --alpha 0.5 --json"""

    def run(self) -> None:
        """Print a table row or JSON."""
        from longtail.finished import evaluate

        alpha = self.alpha if self.alpha in (None, "auto") else number("--alpha", self.alpha)
        result = evaluate(self.folder, alpha).to_json()  # type: ignore[arg-type]
        if self.json:
            print(json.dumps(result))
        else:
            print_table([result])


@dataclass(frozen=True)
class Sweep:
    """Accuracy of a finished run at many alphas, from one pass over the images."""

    folder: Run
    """Folder of a finished run."""
    alphas: str = "0:3:0.25"
    """FIRST:LAST:STEP, or numbers with commas."""

    examples = """
      longtail sweep runs/demo/deconfound-tde/s0
      longtail sweep runs/demo/deconfound-tde/s0 --alphas 0,0.5,1"""

    def run(self) -> None:
        """Print a line for each alpha."""
        from longtail.finished import sweep

        path = sweep(self.folder, parse_alphas(self.alphas))
        lines = [
            [f"{alpha:g}", *("-" if v is None else f"{v:.1f}" for v in point.splits().values())]
            for alpha, point in path.items()
        ]
        print_lines(["alpha", "overall", "many", "medium", "few"], lines)


@dataclass(frozen=True)
class Report:
    """One self-contained page about runs that share their data."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of finished runs."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Where to write it."""

    examples = """
      longtail report runs/demo/*/s* -o report.html"""

    def run(self) -> None:
        """Write the page."""
        from longtail.reports import report

        print(f"written to {report(self.folders, self.out)}")


@dataclass(frozen=True)
class Demo:
    """Train three methods on embedded data and show what comes back: no download, one minute."""

    out: Path = Path("runs/demo")
    """Folder that is made anew."""
    seeds: int = 2
    """Seeds of each method."""

    examples = """
      longtail demo"""

    def run(self) -> None:
        """Train, print the table, write the page."""
        from longtail.console import Console
        from longtail.demo import demo

        console = Console()
        try:
            runs, page = demo(self.out, range(self.seeds), console)
        finally:
            console.close()
        print_table([run.result for run in runs])
        print(f"accuracy by class, head to tail: {page}")


@dataclass(frozen=True)
class Bench:
    """Reproduce a table of the paper: run what is missing, then write the table."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """cifar-lt, or speed."""
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
      longtail bench speed --root ~/data"""

    def run(self) -> None:
        """Run and print the table."""
        from longtail import bench

        if self.name == "speed":
            return self._speed()
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

    def _speed(self) -> None:
        if self.dry_run:
            raise UserError("bench speed measures at once, for about two minutes: no --dry-run")
        from longtail import speed
        from longtail.data import load

        config = Config.preset("cifar100-lt:100").with_options(
            method="deconfound", device=self.machine.device
        )
        data = load("cifar100-lt:100", root=self.root)
        found = speed.bench_speed(config, data, self.results / "speed" / "speed.json")
        header, rows = speed.table(found)
        print_lines(header, rows)


@dataclass(frozen=True)
class Methods:
    """List the methods with their papers and how the paper reads them, or the options of one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")] = ""
    """Show the options of this one."""
    out: Path | None = None
    """Write the table and all options as a Markdown page."""

    examples = """
      longtail methods
      longtail methods deconfound-tde
      longtail methods --out docs/methods.md"""

    def run(self) -> None:
        """Print or write them."""
        from longtail import methods
        from longtail.methods import listing

        if self.name:
            options = methods.options_of(self.name).values()
            print(methods.describe(self.name))
            print_lines(["option", "default"], [[f"--{o.name}", str(o.default)] for o in options])
        elif self.out:
            print(f"written to {listing.write(self.out)}")
        else:
            print_lines(list(listing.HEADER), [listing.row(name) for name in listing.by_year()])


@dataclass(frozen=True)
class DataSets:
    """List the data sets by name, and which of them are found."""

    root: Path | None = None
    """Where to look; else $LONGTAIL_DATA."""

    examples = """
      longtail data --root ~/data"""

    def run(self) -> None:
        """Print them."""
        from longtail.data import available

        print_lines(["data", "what", "found"], [list(row) for row in available(self.root)])


COMMANDS: dict[str, type] = {
    "demo": Demo,
    "train": Train,
    "eval": Eval,
    "sweep": Sweep,
    "report": Report,
    "bench": Bench,
    "methods": Methods,
    "data": DataSets,
}
