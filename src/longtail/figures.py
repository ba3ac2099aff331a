"""The figures, one function each: results in, matplotlib figure out."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

COLOURS = {
    "baseline": "#777777",
    "cosine": "#56b4e9",
    "cosine-tde": "#0072b2",
    "capsule": "#f0e442",
    "capsule-tde": "#e69f00",
    "deconfound": "#009e73",
    "deconfound-tde": "#d55e00",
}
"""One colour a method everywhere, from the palette of Okabe and Ito that colour-blind readers can
tell apart."""
OTHERS = ("#cc79a7", "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""A second sign beside the colour, as lengths of ink and gap."""


def styles(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Colour and dashes of each method; those without a colour of their own take one in turn."""
    others, dashes = cycle(OTHERS), cycle(DASHES)
    return [(COLOURS.get(name) or next(others), next(dashes)) for name in methods]


def accuracy_by_rank(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure:
    """Accuracy of each class, head to tail, with the training counts behind it.

    Args:
        results: result files; those of one method are averaged over their seeds.
        names: class names, in the order of the labels.
    """
    counts = np.array(results[0]["counts"])
    order = np.argsort(-counts, kind="stable")
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    behind = axes.twinx()
    behind.bar(range(len(counts)), counts[order], color="#dddddd", width=1.0)
    behind.set_ylabel("training images")
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
    for method in dict.fromkeys(r["method"] for r in results):
        values = [r["per_class"] for r in results if r["method"] == method]
        per_class = np.array(values, dtype=float).mean(axis=0)  # (C,)
        axes.plot(per_class[order], marker="o", ms=3, label=method, color=COLOURS.get(method))
    if len(names) <= 40:
        axes.set_xticks(range(len(names)), [names[c] for c in order])
    axes.set(xlabel="class, most to fewest training images", ylabel="accuracy (%)", ylim=(-3, 103))
    axes.legend(frameon=False, fontsize="small")
    return figure
