"""The finding of a report: the best method in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from longtail import methods
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.evaluation import tables
from longtail.training.schedule import schedule_stages


def find_best(groups: Sequence[tables.SeedGroup], measure: str) -> int:
    """Return the number of the group with the highest mean of `measure`, on ties the first."""
    return max(range(len(groups)), key=lambda number: _mean(groups[number], measure))


def state_finding(groups: Sequence[tables.SeedGroup], measure: str) -> str:
    """Return the best group, its lead, network, epochs and seeds as a sentence.

    `measure` is a column of the table: the class mean, or overall accuracy.
    """
    best = groups[find_best(groups, measure)]
    first, seeds = best.results[0], len(best.results)
    figure = tables.format_figure(tables.row(best.results).figures[measure])
    name = measure if measure == tables.CLASS_MEAN else "accuracy"
    network = first["backbone"] + (", frozen" if first.get("train", {}).get("freeze") else "")
    cost = f"{_describe_epochs(first)}, {count_noun(seeds, 'seed')}"
    lead = _describe_lead(best, groups, measure)
    return (
        f"{best.label} reaches {figure} % {name} on {tables.data_name(first)}{lead}; "
        f"{network}, {cost}."
    )


def _describe_epochs(result: Mapping[str, Any]) -> str:
    """Return the epochs of each learning-rate schedule of a training, as in '200 + 20 epochs'.

    `--epochs` counts those of a stage whose share is 1, such as the first of `decouple-crt`.
    """
    epochs = result["epochs"]
    try:
        stages = methods.build(result["method"], result["options"]).stages
    except UserError:  # another version, or the user's own: only --epochs is known
        return count_noun(epochs, "epoch")
    spans = dict.fromkeys(scheduled.span for scheduled in schedule_stages(stages, epochs))
    *others, last = (stop - start for start, stop in spans)
    if not others:
        return count_noun(last, "epoch")
    return " + ".join(f"{number:,}" for number in (*others, last)) + " epochs"


def _describe_lead(best: tables.SeedGroup, groups: Sequence[tables.SeedGroup], measure: str) -> str:
    """Compare `best` with the baseline, else with the next best, else with itself at alpha 0."""
    others = [group for group in groups if group is not best]
    if others:
        baselines = [group for group in others if group.results[0]["method"] == "baseline"]
        other = max(baselines or others, key=lambda group: _mean(group, measure))
        rival, value = other.label, _mean(other, measure)
    else:
        values = [_at_zero(result, measure) for result in best.results if result["alpha"]]
        present = [value for value in values if value is not None]
        if not present:
            return ""
        rival, value = "alpha 0", sum(present) / len(present)
    gap = f"{_mean(best, measure) - value:.1f}"
    if gap in ("0.0", "-0.0"):
        return f", level with {rival}"
    doubt = ", within its own 95 % interval" if _covers(best, value, measure) else ""
    side = "below" if gap.startswith("-") else "above"
    return f", {gap.lstrip('-')} points {side} {rival}{doubt}"


def _mean(group: tables.SeedGroup, measure: str) -> float:
    figure = tables.row(group.results).figures[measure]
    return figure[0] if figure else 0.0


def _covers(group: tables.SeedGroup, value: float, measure: str) -> bool:
    """Return whether `value` lies in the interval of `measure` of every seed of `group`."""
    name = measure.replace(" ", "_")
    intervals = [result.get("intervals", {}).get(name) for result in group.results]
    return all(interval and interval[0] <= value <= interval[1] for interval in intervals)


def _at_zero(result: Mapping[str, Any], measure: str) -> float | None:
    at_zero: Mapping[str, float | None] = result["sweep"].get("0", {})
    return at_zero.get(measure.replace(" ", "_"))
