"""Split accuracies against a dial: alpha (fig:3 of the paper) and momentum (fig:1(c))."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.reporting.figures import canvas, style
from longtail.reporting.figures.groups import Group, Spread, group_results
from longtail.runs.compare import Source, check_same_data, read_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASIS = 0.98
"""The momentum that fig:1(c) measures change from."""
Path = dict[float, dict[str, Spread]]
"""Value of the dial -> split -> mean and deviation over seeds."""


@canvas.apply_style
def alpha(sources: Sequence[Source]) -> "Figure":
    """fig:3: split accuracies against alpha, a panel for each training."""
    found = read_all(sources)
    check_same_data(found)
    groups = trainings(group_results(found))
    figure = canvas.panels(len(groups))
    for axes, group in zip(figure.axes, groups, strict=True):
        path = alpha_path(group)
        for split, (colour, dash) in style.SPLITS.items():
            figures = [point[split] for point in path.values()]
            if any(figure is not None for figure in figures):
                canvas.line(axes, list(path), figures, colour=colour, dash=dash, label=split)
        for own in sorted({r["alpha"] for r in group.results if r["alpha"]}):
            axes.axvline(own, color="#999999", linewidth=0.8, linestyle=":")
        axes.set(title=group.label, ylim=(0, 100))
        axes.set(xlabel="alpha (dotted: the run's own)", ylabel="accuracy (%)")
        axes.legend(ncols=2, loc="upper right")
    return figure


def trainings(groups: Sequence[Group]) -> list[Group]:
    """Those with an alpha; what shares a training, as `X` and `X-tde`, is drawn once.

    Taken is that with most seeds, then one that has an alpha of its own.
    """
    dialled = [group for group in groups if len(group.first["sweep"]) > 1]
    if not dialled:
        names = ", ".join(group.label for group in groups)
        raise UserError(f"no alpha in {names}: pass runs of deconfound, cosine or capsule")
    best: list[Group] = []
    for group in sorted(dialled, key=_telling, reverse=True):
        if not any(_ids(group) & _ids(other) for other in best):
            best.append(group)
    return sorted(best, key=dialled.index)


def _ids(group: Group) -> set[str]:
    return {result["training_id"] for result in group.results}


def _telling(group: Group) -> tuple[int, bool]:
    return len(group.results), any(result["alpha"] for result in group.results)


def alpha_path(group: Group) -> Path:
    """Split accuracies at each alpha of the sweep."""
    sweeps = [r["sweep"] for r in group.results]
    return {
        float(a): {s: tables.spread([sweep[a][s] for sweep in sweeps]) for s in tables.SPLITS}
        for a in sweeps[0]
    }


@canvas.apply_style
def momentum(sources: Sequence[Source]) -> "Figure":
    """fig:1(c): relative change of many, medium and few against momentum, from that at 0.98.

    One panel has the rate fixed, one lr / (1 - mu), with which all weights move about as far.
    Legends give the accuracy that change is measured from.
    """
    found = read_all(sources)
    check_same_data(found)
    held = fixed_settings([item.result for item in found])
    figure = canvas.panels(len(held), size=(3.4, 2.9))
    for axes, (title, alike) in zip(figure.axes, held.items(), strict=True):
        path = momentum_path(alike)
        windows = [1 / (1 - mu) for mu in path]
        basis = tables.row([r for r in alike if r["momentum"] == BASIS]).figures
        for split in tables.SPLITS[1:]:
            colour, dash = style.SPLITS[split]
            figures = [point[split] for point in path.values()]
            if any(figure is not None for figure in figures):
                label = f"{split}: {tables.format_figure(basis[split])} %"
                canvas.line(
                    axes, windows, figures, colour=colour, dash=dash, label=label, marker="o"
                )
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks(windows, [f"{mu:g}" for mu in path])
        axes.minorticks_off()
        axes.set(title=title, xlabel="momentum mu (no unit), 1 / (1 - mu) on a log scale")
        axes.set_ylabel(f"relative change from mu {BASIS} (%)")
        axes.set_ylim(top=1.5 * axes.get_ylim()[1])  # room for the legend
        axes.legend(loc="upper right", title=f"split: accuracy at mu {BASIS}")
    return figure


def fixed_settings(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The results with one rate, or one lr / (1 - mu), at several momenta; the basis is there."""
    methods = sorted({result["method"] for result in results})
    if len(methods) > 1:
        raise UserError(
            f"momentum compares one method with itself, and these are {', '.join(methods)}"
        )
    if any("lr" not in result for result in results):
        raise UserError(
            "these results do not tell their lr: make them with python -m benchmarks momentum"
        )
    held = {
        "lr {:g} fixed": lambda r: r["lr"],
        "lr / (1 - mu) = {:g} fixed": lambda r: r["lr"] / (1 - r["momentum"]),
    }
    found = {}
    for title, value_of in held.items():
        for value in sorted({round(value_of(r), 6) for r in results}):
            alike = [r for r in results if round(value_of(r), 6) == value]
            momenta = {r["momentum"] for r in alike}
            if BASIS in momenta and len(momenta) > 1:
                found[title.format(value)] = alike
    if not found:
        raise UserError(
            f"momentum needs results at {BASIS} and at other values with the same lr, or the same "
            "lr / (1 - momentum): make them with python -m benchmarks momentum"
        )
    return found


def momentum_path(results: Sequence[Mapping[str, Any]]) -> Path:
    """Relative change of each split in percent; a seed is compared with itself at the basis."""
    return {mu: _change(results, mu) for mu in sorted({r["momentum"] for r in results})}


def _change(results: Sequence[Mapping[str, Any]], mu: float) -> dict[str, Spread]:
    basis = {r["seed"]: r for r in results if r["momentum"] == BASIS}
    pairs = [(r, basis[r["seed"]]) for r in results if r["momentum"] == mu and r["seed"] in basis]
    return {
        split: tables.spread(
            [100 * (r[split] / b[split] - 1) if b[split] else None for r, b in pairs]
        )
        for split in tables.SPLITS
    }
