"""Attack longtail: fuzzed inputs, damaged files, killed processes and full disks.

Every try is seeded by its number, so that a failure of the table can be repeated alone. A try may
read the input or refuse it with an error that names the file; everything else is a failure.
"""

import json
import logging
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.attack import cost, damage, kills, long, ranks, readers, runs
from benchmarks.attack.tallies import FAILURES, Tally, read_tallies, write_tallies
from benchmarks.attack.tries import Attack, run_attack
from benchmarks.common.data_folder import check_data
from benchmarks.common.words import select_words
from longtail.cli.output import print_lines, show
from longtail.core.environment import commit, versions

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

MEMORY_DISK = Path("/dev/shm")
"""Where tries are made if the system has it, because most of them write a small file."""
LONG, COST = "long", "cost"
"""Measurements beside the attacks: long runs, and the price of verified files."""
Planned = tuple[str, Attack, int]
"""The group of an attack, the attack, and its number of tries."""


def run_command(command: "BenchCommand") -> None:
    """Run the attacks and the measurements; exit with code 1 if a try has failed."""
    out = command.results / "attack"
    wanted = select_words([*list_names(), LONG, COST], command.only)
    if COST in wanted:
        check_data([cost.choose_data(command.machine)], command.root)
    tallies = list(_print_tallies(run_attacks(command.tries, out, wanted)))
    if tallies:
        print_lines(*table(tallies))
    if LONG in wanted:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(long.measure_long_runs(out, Path(folder)), indent=1))
    if COST in wanted:
        measured = cost.measure_cost(out, command.root, command.machine)
        print(json.dumps(measured, indent=1))
    if any(tally.failed for tally in tallies):
        sys.exit(1)


def _print_tallies(tallies: Iterable[Tally]) -> Iterator[Tally]:
    """Print each tally with its failures, and yield it."""
    for tally in tallies:
        print(f"{tally.name}: {tally.outcomes.total():,} tries, {tally.failed:,} failures")
        for failure in tally.failures:
            show(f"  seed {failure['seed']}: {failure['outcome']}, {failure['detail']}")
        yield tally


def list_names() -> list[str]:
    """List the names of all attacks, each after its group."""
    return [f"{group} {attack.name}" for group, attack, _ in plan_attacks(1, Path())]


def plan_attacks(tries: int, templates: Path) -> Iterator[Planned]:
    """Spread fuzzed `tries` over all readers.

    A tenth as many flip a bit, a fortieth cut a file, a twentieth kill a process, an eightieth fill
    the disk, and a hundredth kill one of several ranks.
    """
    fuzz = [reader.attack() for reader in readers.READERS]
    fuzz += runs.list_attacks(templates)
    flips, cuts = _part(damage.list_attacks(templates), "flip")
    deaths, full = _part(kills.list_attacks(templates), "kill")
    groups = (
        ("fuzz", fuzz, tries),
        ("damage", flips, tries // 10),
        ("damage", cuts, tries // 40),
        ("kill", deaths, tries // 20),
        ("kill", full, tries // 80),
        ("ranks", list(ranks.list_attacks(templates)), tries // 100),
    )
    for group, attacks, number in groups:
        for attack in attacks:
            yield group, attack, -(-number // len(attacks))


def _part(attacks: Iterable[Attack], start: str) -> tuple[list[Attack], list[Attack]]:
    """Part attacks whose names begin with `start` from the others."""
    every = list(attacks)
    chosen = [attack for attack in every if attack.name.startswith(start)]
    return chosen, [attack for attack in every if attack not in chosen]


def run_attacks(
    tries: int, out: Path, wanted: Collection[str], processes: int = 2
) -> Iterator[Tally]:
    """Run the attacks whose group and name are in `wanted`; write OUT/GROUP.json.

    Tries that OUT/GROUP.json has already are not made again, unless one of them failed at another
    commit.
    """
    if not set(list_names()) & set(wanted):
        return
    torch.set_num_threads(1)
    logging.getLogger("longtail").setLevel(logging.WARNING)
    place = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as made:
        folder, now = Path(made), commit() or "unknown"
        templates = runs.make_templates(folder / "templates")
        for group, attack, number in plan_attacks(tries, templates):
            if f"{group} {attack.name}" not in wanted:
                continue
            path = out / f"{group}.json"
            tallies = read_tallies(path)
            tally = tallies.get(attack.name) or Tally(attack.name)
            if tally.failed and now not in tally.commits:
                tally = Tally(attack.name)
            if seeds := range(tally.outcomes.total(), number):
                tally.extend(run_attack(attack, seeds, folder, processes), now)
                all_tallies = {**tallies, attack.name: tally}.values()
                write_tallies(path, all_tallies, versions=versions(), git=now)
            yield tally


def table(tallies: Sequence[Tally]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table: tries and failures of each attack."""
    words = ("ok", "refused", *FAILURES)
    rows = []
    for tally in tallies:
        counts = [str(tally.outcomes[word]) for word in words]
        rows.append([tally.name, str(tally.outcomes.total()), *counts, f"{tally.seconds:.0f} s"])
    totals = [str(sum(tally.outcomes[word] for tally in tallies)) for word in words]
    tries = sum(tally.outcomes.total() for tally in tallies)
    seconds = sum(tally.seconds for tally in tallies)
    rows.append(["all", str(tries), *totals, f"{seconds:.0f} s"])
    return ["attack", "tries", *words, "time"], rows
