"""Benchmarks other than recipes of classifiers, by the name that users type, and their options."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.versions import ROOMS
from longtail.core.errors import UserError

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

RESULTS = Path("results")
"""The committed results, seen from the root of a checkout."""
OPTIONS = (
    *("seeds", "only", "root", "recipes", "runs", "tries", "images", "rows", "variants", "shard"),
    *("processes", "shared_device", "minutes", "again", "out", "epochs", "dry_run"),
)
"""Options of `python -m benchmarks` that only some benchmarks read, except machine options."""
MACHINE = "machine"
"""Word of a benchmark that reads the options of `MachineConfig`; others may read some of them."""
TRAINING = ("root", "runs", MACHINE, "dry_run")
"""The `OPTIONS` that all benchmarks read that list their trainings before they run them."""
CLASSIFIER_OPTIONS = (
    *TRAINING,
    *("seeds", "only", "recipes", "processes", "shared_device", "minutes", "again"),
)
"""The `OPTIONS` that a folder of recipes of classifiers reads."""
DETECTION_OPTIONS = (*TRAINING, "seeds", "only", "recipes", "shard", "again")
"""The `OPTIONS` that a folder of recipes of detectors reads."""
FRONTIER_OPTIONS = (*TRAINING, "seeds", "only", "variants", "shard", "out")
"""The `OPTIONS` that a set of variants reads."""
AT_LEAST_ONE = ("seeds", "processes", "tries", "images", "epochs")
"""Options that are numbers of something."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that has no recipes, or recipes of detectors."""

    module: str
    """Module of this package whose `run_command` runs it; imported late, since it needs torch."""
    takes: tuple[str, ...] = ()
    """The `OPTIONS` that it reads, `MACHINE`, or single options of a machine."""
    room: str = ROOMS[-1]
    """Room of the package that makes its results, with the rooms above it."""
    table_per_file: bool = False
    """Whether each result file has a table, and so a version of the code, of its own."""

    def run(self, command: "BenchCommand") -> None:
        """Run it, and write its page."""
        import_module(f"benchmarks.{self.module}").run_command(command)


BENCHMARKS = {
    "attack": Benchmark("attack.command", ("only", "tries", "root", MACHINE), table_per_file=True),
    "check": Benchmark("check.command", ("recipes",)),
    "speed": Benchmark("speed.step", ("root", "device"), table_per_file=True),
    "sharing": Benchmark("speed.sharing", ("root", MACHINE)),
    "prices": Benchmark("speed.prices", ("root", MACHINE)),
    "augmentations": Benchmark("speed.augmentations", ("only", "root", MACHINE)),
    "images": Benchmark("speed.throughput", ("images", "only", "runs", MACHINE)),
    "compactness": Benchmark(
        "classifiers.compactness",
        (*TRAINING, "seeds", "only", "recipes", "again"),
        room="reporting",
    ),
    "embeddings": Benchmark(
        "embeddings.embeddings", ("seeds", "only", "root", "device", "dry_run")
    ),
    "stream": Benchmark("embeddings.stream", ("seeds", "root")),
    "cost": Benchmark("speed.cost", ("device",)),
    "trust": Benchmark("trust.command", (*TRAINING, "seeds", "only", "recipes", "shard", "epochs")),
    "scale": Benchmark("embeddings.scale", ("rows",)),
    "audit": Benchmark("audit.command", ("seeds", "only", "images", "root", "runs")),
    "serving": Benchmark("speed.serving", ("seeds", "only", "images", "runs", MACHINE)),
    "frontier": Benchmark("frontier.command", FRONTIER_OPTIONS),
    "frontier-search": Benchmark("frontier.command", FRONTIER_OPTIONS, table_per_file=True),
    "integrations": Benchmark(
        "integrations.command", (*TRAINING, "seeds", "only", "recipes", "shard", "out")
    ),
    "sampler": Benchmark("integrations.sampler"),
    "shapes-lvis": Benchmark("detection.command", DETECTION_OPTIONS, room="detection"),
    "shapes-lvis-1k": Benchmark("detection.command", DETECTION_OPTIONS, room="detection"),
    "lvis": Benchmark("detection.command", DETECTION_OPTIONS, room="detection"),
    "lvis-test": Benchmark("detection.lvis_server", DETECTION_OPTIONS),
    "detection-speed": Benchmark("detection.speed", ("only", "device")),
    "lvis-step": Benchmark("detection.lvis_step", ("only", "runs", MACHINE, "dry_run")),
}
"""Benchmarks by name."""


def find_room(name: str) -> str:
    """Return the room that makes the results of a benchmark; `runs` makes those of classifiers."""
    return BENCHMARKS[name].room if name in BENCHMARKS else "runs"


def has_table_per_file(name: str) -> bool:
    """Return whether each result file of a benchmark has a table of its own."""
    return name in BENCHMARKS and BENCHMARKS[name].table_per_file


def check_options(command: "BenchCommand") -> None:
    """Raise if the benchmark would ignore an option, or if a number is too small.

    A value that equals the default is not noticed.
    """
    takes = BENCHMARKS[command.name].takes if command.name in BENCHMARKS else CLASSIFIER_OPTIONS
    for option, flag in _list_given(command, machine=MACHINE not in takes):
        if option not in takes:
            raise UserError(f"{command.name} has no {flag}: leave it out")
    for option in AT_LEAST_ONE:
        value = getattr(command, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: must be at least 1")
    if command.processes > 1 and command.machine.devices * command.machine.nodes > 1:
        raise UserError("--processes is for one device: leave --devices and --nodes out")
    if command.minutes is not None and not command.minutes > 0:  # nan is not, either
        raise UserError(f"--minutes {command.minutes:g}: must be above 0")


def _list_given(command: "BenchCommand", *, machine: bool) -> Iterator[tuple[str, str]]:
    """Yield the options that have no default value, each with its flag."""
    for option in OPTIONS:
        if getattr(command, option) != getattr(type(command), option):
            yield option, f"--{option.replace('_', '-')}"
    for field in fields(command.machine) if machine else ():
        value = getattr(command.machine, field.name)
        if value != field.default:
            no = "no-" if value is False else ""
            yield field.name, f"--{no}{field.name.replace('_', '-')}"
