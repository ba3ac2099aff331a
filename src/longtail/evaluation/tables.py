"""Tables of results: a row for each method, with mean and standard deviation over its seeds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

SPLITS = ("overall", "many", "medium", "few")
CLASS_MEAN = "class mean"
ROUNDING = 1e-3
"""Result files keep six digits: accuracies further apart than this differ."""
PARTS = {"test": "test", "val": "validation", "train": "training"}
"""Names of the parts that a run may be evaluated on."""
V = TypeVar("V", str, float | str)


@dataclass(frozen=True)
class Row:
    """A table row: runs that differ only in their seed."""

    method: str
    """The method, with the settings that differ from other rows of the same method."""
    alpha: str
    """Values of alpha over the seeds, separated by commas."""
    seeds: int
    """Number of seeds."""
    figures: dict[str, tuple[float, float | None] | None]
    """Mean and standard deviation of each split and of the class mean. None if there is no value;
    the deviation is None for a single seed."""

    def cells(self, columns: Sequence[str]) -> list[str]:
        """Text of the cells under `HEADER`, then under `columns`."""
        figures = [format_figure(self.figures[name]) for name in columns]
        return [self.method, self.alpha, str(self.seeds), *figures]


ROW_FIELDS = (
    *("method", "data", "ratio", "backbone", "heads", "tau", "gamma", "momentum", "lr"),
    *("epochs", "batch_size", "subset_sha256", "evaluated_sha256", "evaluated_on", "alpha_rule"),
)
"""Fields that are equal in all results of a row, as are their options of training and loading."""
UNLABELLED_FIELDS = ("method", "data", "ratio", "subset_sha256", "evaluated_sha256")
"""The `ROW_FIELDS` that a row's label never shows."""
SHARED_SETTINGS = ("backbone", "epochs", "batch_size", "lr", "momentum", "held_out")
"""Fields with settings that every method has."""
METHOD_SETTINGS = (
    *("tde", "alpha", "heads", "tau", "gamma", "mean_momentum", "mean_decay"),
    *("focal_gamma", "eql_share"),
)
"""Settings that belong to single methods, so that a comparison of methods need not share them."""
HEAD_SETTINGS = ("heads", "tau", "gamma")
"""Settings of the shipped head, which may differ between the seeds of `auto`."""
HEADER = ("method", "alpha", "seeds")
"""Names of the first columns; the accuracies follow."""


@dataclass(frozen=True)
class SeedGroup:
    """Results that differ only in their seed."""

    label: str
    """The method, with the settings that differ from other groups of the same method."""
    results: tuple[Mapping[str, Any], ...]


def group_seeds(results: Iterable[Mapping[str, Any]]) -> list[SeedGroup]:
    """Group results that differ only in their seed, in order of first appearance.

    No group has a seed twice: a result whose seed is already in its group starts another one.
    """
    results = list(results)
    options = {name for result in results for name in result["options"]}
    groups: list[tuple[dict[str, Any], list[Mapping[str, Any]]]] = []
    for result in results:
        settings = _row_settings(result, options)
        for known, members in groups:
            if known == settings and all(other["seed"] != result["seed"] for other in members):
                members.append(result)
                break
        else:
            groups.append((settings, [result]))
    labels = _make_labels([known for known, _ in groups])
    return [SeedGroup(*pair) for pair in zip(labels, (tuple(m) for _, m in groups), strict=True)]


def _row_settings(result: Mapping[str, Any], options: Iterable[str]) -> dict[str, Any]:
    """All settings of a result except its seed and values chosen for that seed."""
    # not those of the head that this seed shipped, nor what that head does not have
    left_out = {name for name in HEAD_SETTINGS if "rule" in result or result.get(name) is None}
    fields = {name: result[name] for name in ROW_FIELDS if name in result.keys() - left_out}
    if result.get("alpha_rule") == "fixed":
        fields["alpha"] = result["alpha"]
    elif result.get("alpha_rule") and result["alpha"] is None:
        fields.pop("tau", None)  # the rule chose it for this seed
    parts = ("train", "files", "inference")  # only classifiers have files, only detectors inference
    settings = {name: value for part in parts for name, value in result.get(part, {}).items()}
    settings.pop("evaluate_on", None)  # same as evaluated_on
    # a result's own field takes precedence over an option
    own = result.keys() - left_out - {"rule"}  # which is what this seed chose, if any was open
    settings |= {n: result["options"].get(n, "default") for n in options if n not in own}
    return settings | fields


def _make_labels(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Label each group by its method and its settings that differ within that method."""
    labels: list[str] = []
    for known in groups:
        peers = [peer for peer in groups if peer["method"] == known["method"]]
        names = (*ROW_FIELDS, "alpha", *sorted(known.keys() - {*ROW_FIELDS, "alpha"}))
        shown = [name for name in names if name in known and name not in UNLABELLED_FIELDS]
        differing = [
            f"{name.replace('_', ' ')} {known[name]}"
            for name in shown
            if any(peer.get(name, known[name]) != known[name] for peer in peers)
        ]
        label = ", ".join([known["method"], *differing])
        again = sum(other.partition(" (again")[0] == label for other in labels)
        labels.append(label + (f" (again, {again + 1})" if again else ""))
    return labels


def list_differences(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """List how results differ besides their method: settings, as in 'epochs 6, 12', and images."""
    values: dict[str, dict[str, None]] = {}
    for result in results:
        for name, value in _shared_settings(result).items():
            values.setdefault(name, {})[str(value)] = None
    differing = [(name, texts) for name, texts in values.items() if len(texts) > 1]
    settings = [f"{name.replace('_', ' ')} {', '.join(texts)}" for name, texts in differing]
    return settings + _compare_images(results)


def _compare_images(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the rows that saw more training images than the row with the fewest."""
    known = [result for result in results if result.get("images")]
    seen = {g.label: max(r["images"] for r in g.results) for g in group_seeds(known)}
    if not seen:
        return []
    fewest = min(seen, key=lambda label: seen[label])
    ratios = {label: round(images / seen[fewest], 1) for label, images in seen.items()}
    return [
        f"{label} saw {ratio:,} times as many training images as {fewest}"
        for label, ratio in ratios.items()
        if ratio > 1
    ]


def _shared_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a fair comparison of methods keeps equal."""
    # the options of a detector describe its network, those of a classifier its method
    parts = ("train", "inference", *["options"] * ("inference" in result))
    settings = {name: value for part in parts for name, value in result.get(part, {}).items()}
    settings = {name: result[name] for name in SHARED_SETTINGS if name in result} | settings
    return {name: value for name, value in settings.items() if name not in METHOD_SETTINGS}


def rows(results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row for each group of results that differ only in their seed."""
    return [replace(row(group.results), method=group.label) for group in group_seeds(results)]


def row(results: Sequence[Mapping[str, Any]]) -> Row:
    """One row of all `results`."""
    alphas = dict.fromkeys("-" if r["alpha"] is None else f"{r['alpha']:g}" for r in results)
    figures = {split: spread([r[split] for r in results]) for split in SPLITS}
    figures[CLASS_MEAN] = spread([class_mean(r["per_class"]) for r in results])
    return Row(results[0]["method"], ", ".join(alphas), len(results), figures)


def class_mean(per_class: Iterable[float | None]) -> float | None:
    """Mean over the classes that have an accuracy, whatever their number of images."""
    present = [value for value in per_class if value is not None]
    return sum(present) / len(present) if present else None


def is_uneven(results: Iterable[Mapping[str, Any]]) -> bool:
    """Whether overall accuracy differs from the class mean: some classes have more test images."""
    pairs = ((r["overall"], class_mean(r["per_class"])) for r in results)
    return any(mean is not None and abs(mean - overall) > ROUNDING for overall, mean in pairs)


def columns(uneven: bool) -> tuple[str, ...]:
    """Accuracy columns of a table: the class mean only if it differs from overall."""
    return (*SPLITS, CLASS_MEAN) if uneven else SPLITS


def data_name(result: Mapping[str, Any]) -> str:
    """Name of the data with its imbalance ratio, as `longtail.load` takes it."""
    return f"{result['data']}:{result['ratio']:g}" if result["ratio"] else str(result["data"])


def spread(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """Mean and standard deviation (n - 1) of the values that are not None."""
    present = [value for value in values if value is not None]
    deviation = statistics.stdev(present) if len(present) > 1 else None
    return (statistics.fmean(present), deviation) if present else None


def describe_splits(figures: Mapping[str, float | None]) -> str:
    """Describe accuracies in a line, as in 'overall 71.9, many 80.0, few 60.2'."""
    known = {name: value for name, value in figures.items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in known.items())


def format_figure(figure: tuple[float, float | None] | None, digits: int = 1) -> str:
    """Format mean and deviation, as in 71.9 ± 0.3; a dash for None."""
    if figure is None:
        return "-"
    mean, deviation = figure
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


CHOSEN = ("rule", "strength", "alpha", "tau")
"""Options that held-out data may choose; the first that a result has is the chosen one."""
CANDIDATE_HEADER = ("rule", "held-out NLL", "spread", "behind", "class mean")
"""Header of the candidates that competed on held-out data."""


def name_chosen(result: Mapping[str, Any]) -> str:
    """Return the name of the chosen one of the candidates of a result."""
    value = next(result[n] for n in CHOSEN if result.get(n) is not None)
    return value if isinstance(value, str) else f"{value:g}"


def candidate_rows(candidates: Mapping[str, Mapping[str, float]], chosen: str) -> list[list[str]]:
    """Rows of all candidates under `CANDIDATE_HEADER`, in the order in which they compete."""
    return [
        [
            name,
            f"{c['nll']:.3f}",
            f"{c['spread']:.3f}",
            "chosen" if name == chosen else _format_behind(c),
            f"{c['class_mean']:.1f}",
        ]
        for name, c in candidates.items()
    ]


def _format_behind(candidate: Mapping[str, float]) -> str:
    if "behind" not in candidate:  # of an earlier version
        return "-"
    behind = round(candidate["behind"], 3) + 0.0  # no negative zero
    return format_figure((behind, candidate["behind_error"]), digits=3)


def name_rule(candidate: float | str) -> str:
    """Return the rule of a candidate, such as `tde` of `tde:1`; that of a number has no name."""
    return candidate.partition(":")[0] if isinstance(candidate, str) else ""


def best_of_each_rule(nll: Mapping[V, float]) -> list[V]:
    """Return the likeliest strength of each rule by the `nll` of all, in the order of the rules.

    Numbers are strengths of one rule; `tde:1` is one of `tde`.
    """
    best: dict[str, V] = {}
    for value, found in nll.items():
        rule = name_rule(value)
        if rule not in best or found < nll[best[rule]]:
            best[rule] = value
    return list(best.values())
