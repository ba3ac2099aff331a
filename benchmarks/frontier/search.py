"""The page of the search for the frontier recipe: its variants on held-out training images."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.common.result_files import read_lines, write_page
from benchmarks.frontier.page import RULES, Line, knows_counts, name_network
from longtail.core.errors import UserError
from longtail.evaluation import tables

NAME = "frontier-search"
NOTE = """Class means in percent, and class-balanced negative log-likelihoods (NLL) with one fitted
scale, of images held out from training: the test part was not read. TDE, self-prior and logit
adjustment have strength 1; the likeliest strength is that of the smallest NLL, among steps of 0.25.
A rule is not applied to a network whose loss knows the counts. Figures of several seeds stand side
by side, seed 0 first. Each table is a set of variants, whose options are in
[variants](../benchmarks/frontier/variants), and has one version of the code. The raw lines are in
[frontier-search](frontier-search); [log.md](frontier-search/log.md) says what they tell."""


def write_search_page(results: Path) -> Path:
    """Write RESULTS/frontier-search.md, with a table for each file of lines.

    Raises:
        UserError: if a line was evaluated on the test part.
    """
    parts = [NOTE]
    for path in sorted((results / NAME).glob("*.jsonl"), key=lambda path: path.stem):
        lines = read_lines(path)
        if any(line["evaluated_on"] != "val" for line in lines):
            raise UserError(f"{path} has a line of the test part, which a search must not read")
        parts += [f"## {path.stem}", describe_set(lines), tabulate(lines)]
    return write_page(results, NAME, parts)


def describe_set(lines: Sequence[Line]) -> str:
    """Return data, networks and commits of a set of variants, and how often 1 is likeliest."""
    data = {line["data"] for line in lines}
    commits = {line["git"] or "unknown" for line in lines}
    networks = set(map(name_network, lines))
    counts = []
    for rule in list(RULES)[1:]:
        found = [find_likeliest(line, rule) for line in lines if _applies(line, rule)]
        counts += [f"for {rule} in {found.count('1')} of {len(found)}"] if found else []
    about = f"{_list(data)}; {_list(networks)}; commit {_list(commits)}."
    likeliest = f" Strength 1 is the likeliest {', '.join(counts)} trainings."
    return f"{about}{likeliest if counts else ''}"


def _list(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def _applies(line: Line, rule: str) -> bool:
    """Return whether a table shows a line under a rule."""
    name, strength = RULES[rule]
    return name in line["rules"] and (strength == "0" or not knows_counts(line))


def find_likeliest(line: Line, rule: str) -> str:
    """Return the strength of a rule at which the images are likeliest."""
    tried = line["rules"][RULES[rule][0]]
    nll: dict[str, float] = {key: tried[key]["nll"] for key in tried if key != "chosen"}
    return min(nll, key=nll.__getitem__)


def tabulate(lines: Sequence[Line]) -> str:
    """Return a table of variants, in the order of their first lines."""
    groups: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        told_apart = [str(line["variant"]), line["data"], line["options"]]
        groups.setdefault(json.dumps(told_apart, sort_keys=True), []).append(line)
    rows = []
    for group in groups.values():
        figures = [
            ", ".join(_read(line, rule, figure) for line in group if _applies(line, rule)) or "-"
            for figure in ("class_mean", "nll")
            for rule in RULES
        ]
        rows.append([str(group[0]["variant"]), str(group[0]["train"]["epochs"]), *figures])
    header = ["variant", "epochs", *RULES, *(f"NLL, {rule}" for rule in RULES)]
    return tables.markdown(header, rows)


def _read(line: Line, rule: str, figure: str) -> str:
    name, strength = RULES[rule]
    digits = 3 if figure == "nll" else 1
    return f"{line['rules'][name][strength][figure]:.{digits}f}"
