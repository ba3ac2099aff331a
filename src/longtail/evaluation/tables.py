"""One table: a row for each method, mean and standard deviation over its seeds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SPLITS = ("overall", "many", "medium", "few")
CLASS_MEAN = "class mean"
ROUNDING = 1e-3
"""Result files keep six digits, so that figures further apart than this do differ."""
PARTS = {"test": "test", "val": "validation", "train": "training"}
"""What may be judged on, and what it is called."""


@dataclass(frozen=True)
class Row:
    """The runs of one method that differ only in their seed."""

    method: str
    """With what sets it apart from other rows of the same method."""
    alpha: str
    seeds: int
    figures: dict[str, tuple[float, float | None] | None]
    """Mean and deviation of each split, and of the class mean; None for an empty one, no deviation
    for one seed."""

    def cells(self, columns: Sequence[str]) -> list[str]:
        """As text: what `HEADER` names, then the figures of `columns`."""
        return [
            self.method,
            self.alpha,
            str(self.seeds),
            *(format_figure(self.figures[name]) for name in columns),
        ]


SAME = (
    *("method", "data", "ratio", "backbone", "heads", "tau", "gamma", "momentum", "lr"),
    *("epochs", "batch_size", "subset_sha256", "evaluated_sha256", "evaluated_on", "alpha_rule"),
)
"""What runs of one row have in common, besides the rest of their training and options."""
UNSAID = ("method", "data", "ratio", "subset_sha256", "evaluated_sha256")
"""Of these, what no label repeats."""
COMMON = ("backbone", "epochs", "batch_size", "lr", "momentum", "held_out")
"""What every result tells of the settings that methods share."""
OF_METHOD = (
    *("tde", "alpha", "heads", "tau", "gamma", "mean_momentum", "mean_decay"),
    *("focal_gamma", "eql_share"),
)
"""Settings that are a method's own."""
HEADER = ("method", "alpha", "seeds")


@dataclass(frozen=True)
class SeedGroup:
    """Results that differ only in their seed."""

    label: str
    """The method, and what sets it apart from other groups of the same method."""
    results: tuple[Mapping[str, Any], ...]


def group_seeds(results: Iterable[Mapping[str, Any]]) -> list[SeedGroup]:
    """Groups in order of first appearance; in none of them does a seed occur twice.

    An early file does not tell all: it goes with the first group that it does not contradict.
    """
    results = list(results)
    options = {name for result in results for name in result.get("options", {})}
    groups: list[tuple[dict[str, Any], list[Mapping[str, Any]]]] = []
    for result in results:
        own = _facts(result, options)
        for known, members in groups:
            agree = all(known[name] == own[name] for name in known.keys() & own.keys())
            if agree and all(other["seed"] != result["seed"] for other in members):
                known.update(own)
                members.append(result)
                break
        else:
            groups.append((own, [result]))
    labels = _labels([known for known, _ in groups])
    return [SeedGroup(*pair) for pair in zip(labels, (tuple(m) for _, m in groups), strict=True)]


def _facts(result: Mapping[str, Any], options: Iterable[str]) -> dict[str, Any]:
    """What a result tells of itself, but for its seed and what was chosen for that seed."""
    facts = {name: result[name] for name in SAME if name in result}
    if result.get("alpha_rule") == "fixed":
        facts["alpha"] = result["alpha"]
    elif result.get("alpha_rule") and result["alpha"] is None:
        facts.pop("tau", None)
    parts = ("train", "files", "inference")  # a classifier has the second, a detector the third
    own = {name: value for part in parts for name, value in result.get(part, {}).items()}
    own.pop("evaluate_on", None)  # evaluated_on tells
    if "options" in result:  # a setting that is a field of the result is told there
        own |= {n: result["options"].get(n, "default") for n in options if n not in result}
    return own | facts


def _labels(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    labels: list[str] = []
    for known in groups:
        peers = [peer for peer in groups if peer["method"] == known["method"]]
        said = (*SAME, "alpha", *sorted(known.keys() - {*SAME, "alpha"}))
        differing = [
            f"{name.replace('_', ' ')} {known[name]}"
            for name in said
            if name in known
            and name not in UNSAID
            and any(peer.get(name, known[name]) != known[name] for peer in peers)
        ]
        label = ", ".join([known["method"], *differing])
        again = sum(other.partition(" (again")[0] == label for other in labels)
        labels.append(label + (f" (again, {again + 1})" if again else ""))
    return labels


def list_differences(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that are no method's own in which results differ, as in 'epochs 6, 12'."""
    told = [_common(result) for result in results]
    values: dict[str, dict[str, None]] = {}
    for name, value in (item for each in told for item in each.items()):
        values.setdefault(name, {})[str(value)] = None
    return [
        f"{name.replace('_', ' ')} {', '.join(found)}"
        for name, found in values.items()
        if len(found) > 1
    ]


def _common(result: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that two methods of an honest comparison share."""
    parts = ("train", "inference", *["options"] * ("inference" in result))  # a detector's network
    own = {name: value for part in parts for name, value in result.get(part, {}).items()}
    shared = {name: result[name] for name in COMMON if name in result} | own
    return {name: value for name, value in shared.items() if name not in OF_METHOD}


def rows(results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """A row for each group of results that differ only in their seed."""
    return [replace(row(group.results), method=group.label) for group in group_seeds(results)]


def row(results: Sequence[Mapping[str, Any]]) -> Row:
    """All `results` as one row."""
    return Row(
        method=results[0]["method"],
        alpha=_alphas([r["alpha"] for r in results]),
        seeds=len(results),
        figures={
            **{split: spread([r[split] for r in results]) for split in SPLITS},
            CLASS_MEAN: spread([class_mean(r.get("per_class", ())) for r in results]),
        },
    )


def class_mean(per_class: Iterable[float | None]) -> float | None:
    """Mean over classes, however many images each has; one that was not judged is left out."""
    judged = [value for value in per_class if value is not None]
    return sum(judged) / len(judged) if judged else None


def is_uneven(results: Iterable[Mapping[str, Any]]) -> bool:
    """Whether overall, the mean over images, is not the class mean.

    So it is where the part that was judged has more images of some classes than of others.
    """
    pairs = ((r["overall"], class_mean(r.get("per_class", ()))) for r in results)
    return any(mean is not None and abs(mean - overall) > ROUNDING for overall, mean in pairs)


def columns(uneven: bool) -> tuple[str, ...]:
    """The accuracies of a table: the class mean only where it says something else than overall."""
    return (*SPLITS, CLASS_MEAN) if uneven else SPLITS


def data_name(result: Mapping[str, Any]) -> str:
    """The data set with its ratio, as `longtail.load` takes it."""
    ratio = result["ratio"]
    return result["data"] + (f":{ratio:g}" if ratio else "")


def spread(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """Mean and standard deviation (n - 1) of what is there."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    deviation = statistics.stdev(present) if len(present) > 1 else None
    return statistics.fmean(present), deviation


def format_figure(figure: tuple[float, float | None] | None, digits: int = 1) -> str:
    """As in 71.9 ± 0.3; a dash for nothing."""
    if figure is None:
        return "-"
    mean, deviation = figure
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    whole = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)


def _alphas(values: Sequence[float | None]) -> str:
    texts = dict.fromkeys("-" if value is None else f"{value:g}" for value in values)
    return ", ".join(texts)
