"""The command line: each command parses, calls one library function, prints.

Nothing here imports torch before it is needed, so that help answers at once.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from longtail.config import Config, MachineConfig
from longtail.errors import UserError, unknown

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Train:
    """Train methods on a data set and judge them at the last epoch."""

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
        seeds = range(self.config.seed, self.config.seed + (self.seeds or 1))
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
        _print_table([run.result for run in runs])
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

        alpha = self.alpha if self.alpha in (None, "auto") else _number("--alpha", self.alpha)
        result = evaluate(self.folder, alpha).to_json()  # type: ignore[arg-type]
        if self.json:
            print(json.dumps(result))
        else:
            _print_table([result])


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
        _print_lines(["alpha", "overall", "many", "medium", "few"], lines)


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
        _print_table([run.result for run in runs])
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
            print(f"written to {bench.write_table(opened, Path('README.md'))}")

    def _speed(self) -> None:
        from longtail import speed
        from longtail.data import load

        config = Config.preset("cifar100-lt:100").with_options(
            method="deconfound", device=self.machine.device
        )
        data = load("cifar100-lt:100", root=self.root)
        found = speed.bench_speed(config, data, self.results / "speed" / "speed.json")
        header, rows = speed.table(found)
        _print_lines(header, rows)


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
            _print_lines(["option", "default"], [[f"--{o.name}", str(o.default)] for o in options])
        elif self.out:
            print(f"written to {listing.write(self.out)}")
        else:
            _print_lines(list(listing.HEADER), [listing.row(name) for name in listing.by_year()])


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

        _print_lines(["data", "what", "found"], [list(row) for row in available(self.root)])


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


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; a user's mistake is one paragraph and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        command = parse(arguments)
        if command is not None:
            command()
    except UserError as error:
        print(f"longtail: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nlongtail: interrupted; go on with --resume", file=sys.stderr)
        sys.exit(130)


def parse(arguments: list[str]) -> Callable[[], None] | None:
    """The command that `arguments` ask for; None after printing help or version."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return None
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"longtail {version('longtail')}")
        return None
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS, "list them: longtail --help")
    kind = COMMANDS[name]
    if kind is Train:
        return parse_train(rest).run
    parsed, extra = _tyro(name, kind, rest)
    if extra:
        raise _unknown_option(extra[0], kind, {})
    return parsed.run


def parse_train(arguments: list[str]) -> Train:
    """Two passes: the data set's name, or a recipe, sets the defaults of every other option."""
    plain = [word for word in arguments if word not in ("-h", "--help")]
    first, _ = _tyro("train", Train, plain)
    preset = Config.preset(first.config.data)
    if first.recipe:
        try:
            preset = Config.from_yaml(first.recipe.read_text(), str(first.recipe))
        except OSError as error:
            raise UserError(f"the recipe cannot be read: {error}") from None
    parsed, extra = _tyro("train", Train, arguments, default=Train(config=preset))
    options = _method_options(extra, parsed.config.method)
    config = parsed.config.with_options(**options)
    return Train(**{**vars(parsed), "config": config})


def _method_options(words: list[str], method: str) -> dict[str, str]:
    """`--heads 4 --tau=8` as a mapping; a flag that no asked-for method has is refused here."""
    if not words:
        return {}
    from longtail import methods

    names = list(methods.registry()) if method == "all" else method.split(",")
    known = {option for name in names for option in methods.options_of(name)}
    options: dict[str, str] = {}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        flag, has_value, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in known:
            raise _unknown_option(word, Train, dict.fromkeys(known))
        if not has_value and not pending:
            raise UserError(f"{flag} needs a value")
        options[name] = value if has_value else pending.pop(0)
    return options


def _tyro(name: str, kind: type, arguments: list[str], **default: Any) -> tuple[Any, list[str]]:
    description = f"{(kind.__doc__ or '').strip()}\n\nExamples:{kind.examples}"  # type: ignore[attr-defined]
    return tyro.cli(
        kind,
        args=arguments,
        prog=f"longtail {name}",
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
        return_unknown_args=True,
        **default,
    )


def _unknown_option(word: str, kind: type, more: Mapping[str, None]) -> UserError:
    known = [f"--{name.replace('_', '-')}" for name in [*_flags(kind), *more]]
    if not word.startswith("-"):
        return UserError(f"unexpected argument '{word}' (see longtail --help)")
    return unknown("option", word.partition("=")[0], known, "list them: add --help")


def _flags(kind: type) -> list[str]:
    names: list[str] = []
    for item in fields(kind):
        inner = item.type if isinstance(item.type, type) else None
        names += _flags(inner) if inner and is_dataclass(inner) else [item.name]
    return names


def overview() -> str:
    """What `longtail --help` prints."""
    lines = ["Long-tailed recognition: bring the rare classes back.", "", "Commands:"]
    for name, kind in COMMANDS.items():
        lines.append(f"  longtail {name:<9} {(kind.__doc__ or '').splitlines()[0]}")
    lines += ["", "Each command has --help with examples. Start with: longtail demo"]
    return "\n".join(lines)


def parse_alphas(text: str) -> list[float]:
    """'0:3:0.25' from first to last, or '0,0.5,1'."""
    if ":" not in text:
        return [_number("--alphas", part) for part in text.split(",")]
    parts = [_number("--alphas", part) for part in text.split(":")]
    if len(parts) != 3 or parts[2] <= 0 or parts[1] < parts[0]:
        raise UserError(f"--alphas is FIRST:LAST:STEP with a positive step, not '{text}'")
    first, last, step = parts
    return [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{option} takes numbers, not '{text}'") from None


def _print_table(results: list[dict[str, Any]]) -> None:
    from longtail import tables

    _print_lines(list(tables.HEADER), [row.cells() for row in tables.rows(results)])


def _print_lines(header: list[str], lines: list[list[str]]) -> None:
    """Left-aligned first column, the rest as wide as it needs."""
    columns = list(zip(header, *lines, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    for line in (header, *lines):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
