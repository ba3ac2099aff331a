"""Figures over classes, ordered by their number of training images.

Figures: accuracy before and after (class-rank), fig:1(b) (feature-norm), spfig:1 (weight-norm) and
Appendix A of the paper (cosine-by-class).
"""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.reporting.class_order import rank_classes
from longtail.reporting.figures import canvas
from longtail.reporting.figures.canvas import RANK, Spread
from longtail.reporting.figures.groups import Group, group_results, read_same_data
from longtail.runs.compare import Source, StoredResult, check_equal, read_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
"""Columns of a legend below the classes."""


@canvas.apply_style
def draw_class_rank(sources: Sequence[Source]) -> "Figure":
    """Draw accuracy by class rank: a dot for each class, a line for the mean of its neighbours."""
    groups = group_results(read_same_data(sources))
    counts = groups[0].first["counts"]
    order, ranks = rank_classes(counts), range(1, len(counts) + 1)
    width = choose_window(len(counts))
    rows = math.ceil(len(groups) / COLUMNS)
    figure = canvas.make_panels(1, size=(6.8, 3.0 + 0.16 * rows))  # the rows of a legend below
    (axes,) = figure.axes
    for group in groups:
        dots = group.by_class("per_class", order)
        means = [float("nan") if dot is None else dot[0] for dot in dots]
        axes.plot(ranks, means, ".", color=group.look[0], alpha=0.45, ms=4, markeredgewidth=0)
        canvas.draw_line(axes, ranks, smooth(group, order, width), group.look, _add_seeds(group))
    around = f"; line: mean of {width} neighbours" if width > 1 else ""
    canvas.set_rank_axis(axes, len(counts), f"{RANK}{around}")
    axes.set(ylabel=groups[0].measure, ylim=(0, 100))
    _mark_splits(axes, counts)
    figure.legend(loc="outside lower center", ncols=COLUMNS)
    behind = axes.twinx()
    behind.fill_between(ranks, [counts[c] for c in order], color="#e8e8e8", step="mid", lw=0)
    behind.set_ylabel("training images (grey)", color="#777777")
    behind.set_ylim(bottom=0)
    behind.spines["right"].set_visible(True)
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
    return figure


@canvas.apply_style
def draw_feature_norm(sources: Sequence[Source]) -> "Figure":
    """Draw the mean length of the features of each class, head to tail (fig:1(b))."""
    return _draw_by_rank(sources, "feature_norm", "mean |x| of test images")


@canvas.apply_style
def draw_weight_norm(sources: Sequence[Source]) -> "Figure":
    """Draw the length of the classifier's weight of each class, head to tail (spfig:1)."""
    return _draw_by_rank(sources, "weight_norm", "|w|, length of the weight")


@canvas.apply_style
def draw_cosine_by_class(sources: Sequence[Source]) -> "Figure":
    """Draw the mean cos(x, d) of each class (Appendix A).

    The paper finds it equal over classes after balanced training. Each data set has a panel; the
    most imbalanced one sets the order and splits of all panels.
    """
    panels = list(group_cosines(read_all(sources)).items())
    panels = [(canvas.make_literal(name), groups) for name, groups in panels]
    (first, groups), counts = panels[0], panels[0][1][0].first["counts"]
    splits = " / ".join(average_splits(groups[0], "class_cos", counts))
    known = {group.label: group.by_class("class_cos", rank_classes(counts)) for group in groups}
    figure = canvas.make_panels(len(panels), size=(3.9, 2.7))
    for axes, (name, groups) in zip(figure.axes, panels, strict=True):
        for group in groups:
            figures = group.by_class("class_cos", rank_classes(counts))
            label = _add_means(group, "class_cos", counts)
            label += f"\ndeviation {measure_unevenness(figures):.3f}"
            if name != first and group.label in known:
                same = correlate(figures, known[group.label])
                label += f", correlation with {first} {same:.2f}"
            canvas.draw_line(axes, range(1, len(counts) + 1), figures, group.look, label)
        axes.set_title(f"trained on {name}", pad=14)
        canvas.set_rank_axis(axes, len(counts), f"class, by its rank in {first}")
        axes.set_ylim(0, 1)
        axes.set_ylabel("mean cos(x, d) of test images (0 to 1)")
        _mark_splits(axes, counts)
        axes.legend(loc="lower left", title=f"over classes: mean of {splits}, deviation")
    return figure


def group_cosines(found: Sequence[StoredResult]) -> dict[str, list[Group]]:
    """Return the groups with cos(x, d) by data set, the most imbalanced first."""
    for item in found:
        if item.result.get("class_cos") is None:
            raise UserError(
                f"{item.source} has no cos(x, d): {item.result['method']} has no head direction, "
                "or an older version evaluated it. Pass runs of deconfound, cosine or capsule"
            )
        check_equal(
            (str(found[0].source), str(item.source)),
            {
                "data (whatever its ratio)": (found[0].result["data"], item.result["data"]),
                "classes": (len(found[0].result["counts"]), len(item.result["counts"])),
            },
        )
    by_data: dict[str, list[StoredResult]] = {}
    for item in sorted(found, key=lambda i: min(i.result["counts"]) / max(i.result["counts"])):
        by_data.setdefault(tables.data_name(item.result), []).append(item)
    if not by_data:
        raise UserError("cosine-by-class needs runs of deconfound, cosine or capsule")
    if len(by_data) < 2:
        raise UserError(
            "cosine-by-class compares long-tailed with balanced training, but all of these runs "
            f"are on {', '.join(by_data)}: add runs on a balanced subset, such as cifar100-lt:1"
        )
    return {name: group_results(items) for name, items in by_data.items()}


def measure_unevenness(figures: Sequence[Spread]) -> float:
    """Return the standard deviation of the class means in `figures`."""
    return statistics.pstdev(figure[0] for figure in figures if figure is not None)


def correlate(figures: Sequence[Spread], others: Sequence[Spread]) -> float:
    """Return the correlation of the class means that both have; nan if one is constant."""
    pairs = [(a[0], b[0]) for a, b in zip(figures, others, strict=True) if a and b]
    try:
        return statistics.correlation(*zip(*pairs, strict=True))
    except statistics.StatisticsError:
        return float("nan")


def choose_window(classes: int) -> int:
    """Choose the number of neighbouring ranks to average: odd, about a tenth of the classes."""
    return classes // 20 * 2 + 1


def smooth(group: Group, order: Sequence[int], width: int) -> list[Spread]:
    """Return the accuracy at each rank, averaged over `width` ranks, fewer at the ends."""
    half = width // 2
    near = [order[max(0, i - half) : i + half + 1] for i in range(len(order))]
    lines = [
        [tables.spread([result["per_class"][c] for c in classes]) for classes in near]
        for result in group.results
    ]
    return [tables.spread([f[0] for f in at_rank if f]) for at_rank in zip(*lines, strict=True)]


def _draw_by_rank(sources: Sequence[Source], field: str, ylabel: str) -> "Figure":
    groups = group_results(read_same_data(sources))
    counts = groups[0].first["counts"]
    figure = canvas.make_panels(1, size=(5.0, 2.8 + 0.14 * len(groups)))  # the legend is below
    (axes,) = figure.axes
    for group in groups:
        values = group.by_class(field, rank_classes(counts))
        label = _add_means(group, field, counts)
        canvas.draw_line(axes, range(1, len(counts) + 1), values, group.look, label)
    canvas.set_rank_axis(axes, len(counts), RANK)
    axes.set_ylabel(ylabel)
    axes.set_ylim(bottom=0)
    _mark_splits(axes, counts)
    splits = " / ".join(average_splits(groups[0], field, counts))
    figure.legend(loc="outside lower center", title=f"method: mean of {splits}")
    return figure


def average_splits(group: Group, field: str, counts: Sequence[int]) -> dict[str, float]:
    """Return the mean of `field` for each split with classes, over its classes and all seeds."""
    values = group.by_class(field, range(len(counts)))
    means = {
        name: tables.spread([v[0] for c in classes if (v := values[c])])
        for name, classes in ClassCounts(tuple(counts)).splits.items()
    }
    return {name: mean[0] for name, mean in means.items() if mean is not None}


def _add_means(group: Group, field: str, counts: Sequence[int]) -> str:
    means = average_splits(group, field, counts).values()
    return f"{_add_seeds(group)}: {' / '.join(f'{mean:#.3g}' for mean in means)}"


def _add_seeds(group: Group) -> str:
    seeds = len(group.results)
    return group.label + (f" (mean of {seeds} seeds)" if seeds > 1 else "")


def _mark_splits(axes: "Axes", counts: Sequence[int]) -> None:
    """Write the names of the splits above the plot, and draw lines between them."""
    end = 0
    for name, classes in ClassCounts(tuple(counts)).splits.items():
        if not classes:
            continue
        middle, end = end + (len(classes) + 1) / 2, end + len(classes)
        above = axes.get_xaxis_transform()
        axes.text(middle, 1.0, name, color="#555555", transform=above, ha="center", va="bottom")
        if end < len(counts):
            axes.axvline(end + 0.5, color="#bbbbbb", linewidth=0.7, linestyle=":")
