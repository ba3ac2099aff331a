"""The command `python -m benchmarks NAME` for recipes of detectors."""

from typing import TYPE_CHECKING

from benchmarks.detection.bench import DetectionBench
from benchmarks.registry import find_room
from longtail.cli.output import is_first_process
from longtail.core.console import Console
from longtail.detection.config import DetectionMachineConfig

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


def run_command(command: "BenchCommand") -> None:
    """Run the missing recipes and seeds, then write the table."""
    bench = DetectionBench.open(
        command.name, recipes=command.recipes, results=command.results, runs=command.runs
    )
    bench = bench.again(find_room(command.name)) if command.again else bench
    wanted = bench.missing(command.seeds, command.only)
    wanted = bench.take_shard(wanted, command.seeds, command.shard)
    for recipe, seed in wanted:
        print(f"{recipe.place}  seed {seed}")
    trainings = len(bench.trainings(wanted))
    work = f"{len(wanted)} results to make, from {trainings} trainings"
    print(bench.describe_work(work, wanted))
    if command.dry_run:
        for line in bench.describe_refusal(wanted):
            print(line)
        return
    if wanted:
        bench.prepare_runs()
    try:
        with Console() as console:
            machine = DetectionMachineConfig.from_machine(command.machine)
            bench.run(wanted, root=command.root, machine=machine, progress=console)
    finally:
        if is_first_process() and bench.started:
            print(f"written to {bench.write_page()}")
