"""Split accuracies against alpha (fig:3 of the paper) and against momentum (fig:1(c))."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.reporting.figures import canvas, style
from longtail.reporting.figures.canvas import Spread
from longtail.reporting.figures.groups import (
    Group,
    group_results,
    list_swept,
    read_same_data,
)
from longtail.runs.compare import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASIS = 0.98
"""Momentum from which fig:1(c) measures changes."""
SplitPath = dict[float, dict[str, Spread]]
"""Value of alpha or momentum -> split -> mean and deviation over seeds."""


@canvas.apply_style
def draw_alpha(sources: Sequence[Source]) -> "Figure":
    """Draw split accuracies against alpha, one panel for each training (fig:3)."""
    groups = select_trainings(group_results(read_same_data(sources)))
    figure = canvas.make_panels(len(groups))
    for axes, group in zip(figure.axes, groups, strict=True):
        path = collect_alpha_path(group)
        for split, look in style.SPLITS.items():
            figures = [point[split] for point in path.values()]
            if any(figures):
                canvas.draw_line(axes, list(path), figures, look, split)
        for own in sorted({r["alpha"] for r in group.results if r["alpha"]}):
            axes.axvline(own, color="#999999", linewidth=0.8, linestyle=":")
        axes.set(title=group.label, xlabel="alpha (dotted: the run's own)", ylabel=group.measure)
    canvas.start_at_zero(figure)
    canvas.add_shared_legend(figure)
    return figure


def select_trainings(groups: Sequence[Group]) -> list[Group]:
    """Select the groups with an alpha, each training once although `X` and `X-tde` share it.

    Of groups that share a training, the one with most seeds stays, on ties one with alpha above 0.
    A seed of `auto` may have shipped a rule without alpha: it is left out.
    """
    with_alpha = [_keep_swept(group) for group in groups if list_swept(group.results)]
    if not with_alpha:
        names = ", ".join(group.label for group in groups)
        raise UserError(f"no alpha in {names}: pass runs of a method such as deconfound-tde")
    best, shown = [], set[str]()
    alpha_first = sorted(with_alpha, key=lambda g: not any(r["alpha"] for r in g.results))
    for group in sorted(alpha_first, key=lambda g: -len(g.results)):
        ids = {result["recipe_id"] for result in group.results}
        if not ids & shown:
            best.append(group)
            shown |= ids
    return sorted(best, key=with_alpha.index)


def _keep_swept(group: Group) -> Group:
    """Keep the seeds that have an alpha, and count them in the label if others have none."""
    swept, seeds = list_swept(group.results), len(group.results)
    label = group.label if len(swept) == seeds else f"{group.label}, {len(swept)} of {seeds} seeds"
    return replace(group, label=label, results=swept)


def collect_alpha_path(group: Group) -> SplitPath:
    """Collect the split accuracies at each alpha that all sweeps share."""
    sweeps = [r["sweep"] for r in group.results]
    return {
        float(a): {s: tables.spread([sweep[a][s] for sweep in sweeps]) for s in tables.SPLITS}
        for a in sweeps[0]
        if all(a in sweep for sweep in sweeps)
    }


@canvas.apply_style
def draw_momentum(sources: Sequence[Source]) -> "Figure":
    """Draw the change of many, medium and few with momentum, relative to 0.98 (fig:1(c)).

    One panel has a fixed learning rate, one a fixed lr / (1 - mu), at which weights move about
    equally far. The legends show the accuracy at momentum 0.98.
    """
    fixed = group_settings([item.result for item in read_same_data(sources)])
    figure = canvas.make_panels(len(fixed), size=(3.4, 2.9))
    for axes, (title, results) in zip(figure.axes, fixed.items(), strict=True):
        path = compute_momentum_path(results)
        windows = [1 / (1 - mu) for mu in path]
        basis = tables.row([r for r in results if r["momentum"] == BASIS]).figures
        for split in tables.SPLITS[1:]:
            figures = [point[split] for point in path.values()]
            if any(figures):
                label = f"{split}: {tables.format_figure(basis[split])} %"
                canvas.draw_line(axes, windows, figures, style.SPLITS[split], label, marker="o")
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks(windows, [f"{mu:g}" for mu in path])
        axes.minorticks_off()
        axes.set(title=title, xlabel="momentum mu (no unit), 1 / (1 - mu) on a log scale")
        axes.set_ylabel(f"relative change from mu {BASIS} (%)")
        axes.set_ylim(top=1.5 * axes.get_ylim()[1])  # room for the legend
        axes.legend(loc="upper right", title=f"split: accuracy at mu {BASIS}")
    return figure


def group_settings(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group results by lr, then by lr / (1 - mu); each group has `BASIS` and other momenta."""
    methods = {result["method"] for result in results}
    if len(methods) > 1:
        names = ", ".join(sorted(methods))
        raise UserError(
            f"momentum compares runs of one method, but these are of {names}: pass runs of one of "
            "them, each trained with another --momentum"
        )
    settings: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "lr {:g} fixed": lambda r: r["lr"],
        "lr / (1 - mu) = {:g} fixed": lambda r: r["lr"] / (1 - r["momentum"]),
    }
    found = {}
    for title, value_of in settings.items():
        for value in sorted({round(value_of(r), 6) for r in results}):
            equal = [r for r in results if round(value_of(r), 6) == value]
            momenta = {r["momentum"] for r in equal}
            if BASIS in momenta and len(momenta) > 1:
                found[title.format(value)] = equal
    if not found:
        raise UserError(
            f"momentum needs results at {BASIS} and at other values with the same lr, or the same "
            "lr / (1 - momentum): make them with python -m benchmarks momentum"
        )
    return found


def compute_momentum_path(results: Sequence[Mapping[str, Any]]) -> SplitPath:
    """Compute the change of each split in percent, each seed relative to itself at `BASIS`."""
    basis = {r["seed"]: r for r in results if r["momentum"] == BASIS}
    paired = [(r, basis[r["seed"]]) for r in results if r["seed"] in basis]
    path: SplitPath = {mu: {} for mu in sorted({r["momentum"] for r in results})}
    for mu, split in product(path, tables.SPLITS):
        pairs = [(r[split], b[split]) for r, b in paired if r["momentum"] == mu]
        path[mu][split] = tables.spread([100 * (own / base - 1) for own, base in pairs if base])
    return path
