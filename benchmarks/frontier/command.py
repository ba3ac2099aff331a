"""Trainings of variants of a recipe, each evaluated with every post-hoc rule.

Every training appends one line of JSON to a file as soon as it has ended. Several processes can
share a device: each takes its share of the trainings, skips those that have a line already, and
resumes what was interrupted. `frontier-search` evaluates on held-out training images, and
`frontier` on the test part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from benchmarks.common.data_folder import check_data, list_missing
from benchmarks.common.result_files import append_line, format_spread, read_lines
from benchmarks.common.shards import describe_trainings, name_shared
from benchmarks.frontier import page, search
from benchmarks.frontier.sets import VariantUnit, estimate_units, read_units, select_missing
from longtail.cli.output import print_lines
from longtail.core.config import MachineConfig
from longtail.core.console import Console
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.evaluation.accuracy import accuracy, score
from longtail.evaluation.alpha import choose_alpha
from longtail.evaluation.likelihood import fit_likelihood
from longtail.evaluation.result import round_floats
from longtail.methods.base import RuleInputs
from longtail.methods.deconfound import ALPHAS
from longtail.methods.logit_adjustment import subtract_prior
from longtail.methods.self_prior import STRENGTHS, subtract_self_prior
from longtail.nn.heads import Head, NormalisedHead
from longtail.runs.fit import run_jobs
from longtail.runs.folder import Run
from longtail.runs.plan import Job, resolve
from longtail.runs.reopen import OpenRun, reopen
from longtail.training.loop import Progress

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


def run_command(command: "BenchCommand") -> None:
    """Train and evaluate the missing variants of a shard, then write the page."""
    held_out = command.name == search.NAME
    variants = command.variants or ("search" if held_out else "final")
    units = read_units(variants, seeds=command.seeds, held_out=held_out, only=command.only)
    folder = command.results / command.name
    out = command.out or folder / f"{Path(variants).stem}.jsonl"
    lines = read_lines(folder, out)
    wanted = select_missing(units, command.shard, lines)
    for unit in wanted:
        print(f"{unit.variant}  seed {unit.seed}")
    seconds = estimate_units(wanted, lines)
    print(describe_trainings(len(wanted), out, seconds, name_shared(lines)))
    if wanted:
        print(f"evaluated on {'held-out images' if held_out else 'the test part'}")
    names = [unit.config.data for unit in wanted]
    if command.dry_run:
        for line in list_missing(names, command.root):
            print(line)
        return
    check_data(names, command.root)
    place, root, machine = command.runs / "frontier", command.root, command.machine
    with Console() as console:
        found = bench_frontier(
            wanted, out, runs=place, root=root, machine=machine, progress=console
        )
        made = list(found)
    if made:
        print_lines(*table(made))
        print(f"written to {out}")
    write_page = search.write_search_page if held_out else page.write_frontier_page
    print(f"written to {write_page(command.results)}, from the files in {folder}")


def bench_frontier(
    units: Sequence[VariantUnit],
    out: Path,
    *,
    runs: Path,
    root: Path | None,
    machine: MachineConfig,
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Train and evaluate `units` one by one; append the line of each to `out` and yield it."""
    loaded: dict[Any, Data] = {}
    for unit in units:
        config = replace(unit.config, machine=machine)
        config = config.with_options(root=root) if root else config
        source = config.data, config.files
        if source not in loaded:
            loaded[source] = data_sets.load(*source)
        job = Job(*resolve(config), Run(runs / unit.place))
        (run,) = run_jobs([job], data=loaded[source], resume=True, progress=progress)
        line = make_line(unit, reopen(run, loaded[source]))
        append_line(out, line)
        yield line


def make_line(unit: VariantUnit, opened: OpenRun) -> dict[str, Any]:
    """Make the line of results of a finished training: every rule at every strength."""
    result, config = opened.job.run.result, opened.job.config
    made_by = ("recipe_id", "training_id", "weights_sha256", "git", "device", "versions")
    costs = ("seconds", "capture_seconds", "images", "images_per_second")
    images = ("subset_sha256", "evaluated_sha256")
    line = {
        "variant": unit.variant,
        "seed": unit.seed,
        "data": config.data,
        "evaluated_on": unit.evaluated_on,
        "options": unit.options,
        "method": config.method,
        **{key: result[key] for key in ("backbone", *made_by, *costs, *images)},
        "train": result["train"],
        "compiled": config.machine.compile,
        "rules": score_rules(opened),
    }
    rounded: dict[str, Any] = round_floats(line)
    return rounded


def score_rules(opened: OpenRun) -> dict[str, dict[str, Any]]:
    """Return the accuracies of each post-hoc rule, of the head as trained, and with flips."""
    data, features = opened.data, opened.evaluation.features
    labels = data.train.labels.to(features.train.device)
    head = opened.model.head
    inputs = RuleInputs(head, features.train, labels, features.held_out, data.counts)
    pair = features.evaluated, opened.mirrored_features(data.evaluated)

    def rate(head: Head, alpha: float = 0.0) -> dict[str, Any]:
        plain, mirrored = (score(head, part, data.evaluated.labels).at(alpha) for part in pair)
        return {**_figures(plain, data), "flips": _figures((plain + mirrored) / 2, data)}

    rules: dict[str, dict[str, Any]] = {"as-trained": {"0": rate(head)}}
    if isinstance(head, NormalisedHead):
        rules["tde"] = {f"{alpha:g}": rate(head, alpha) for alpha in ALPHAS}
        if features.held_out is not None:
            rules["tde"]["chosen"] = choose_alpha(head, *features.held_out)
    strengths = [strength for strength in STRENGTHS if strength]
    rules["self-prior"] = {
        f"{strength:g}": rate(subtract_self_prior(inputs, strength=strength))
        for strength in strengths
    }
    rules["logit-adjustment"] = {
        f"{tau:g}": rate(subtract_prior(inputs, tau=tau)) for tau in strengths
    }
    return rules


def _figures(logits: Tensor, data: Data) -> dict[str, float | None]:
    labels = data.evaluated.labels.to(logits.device)
    figures = accuracy(logits, labels, data.counts)
    nll = fit_likelihood(logits, labels).nll
    return {**figures.splits(), "class_mean": figures.class_mean, "nll": nll}


SHOWN = (("as-trained", "0"), ("tde", "1"), ("self-prior", "1"), ("logit-adjustment", "1"))
"""Rules, at strengths that were fixed beforehand, in the table."""


def table(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for a terminal: class means over the seeds, by variant."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        place = (line["variant"], line["data"], line["backbone"], line["evaluated_on"])
        groups.setdefault(place, []).append(line)
    rows = []
    for cells, group in groups.items():
        figures = []
        for rule, strength in SHOWN:
            found = [line["rules"].get(rule, {}).get(strength) for line in group]
            figures.append(format_spread(each["class_mean"] for each in found if each))
        chosen = [line["rules"].get("tde", {}).get("chosen") for line in group]
        seconds = format_spread((line["seconds"] for line in group), 0)
        rows.append([*cells, str(len(group)), *figures, format_spread(chosen, 2), seconds])
    header = ["variant", "data", "backbone", "part", "seeds"]
    rules = [rule if strength == "0" else f"{rule} {strength}" for rule, strength in SHOWN]
    return [*header, *rules, "alpha", "seconds"], rows
