"""The features of a run in two parts: one along the head direction, and the rest (fig:2).

Shapes: N test images, D features, K heads.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.evaluation.result import class_means
from longtail.nn.heads import NormalisedHead
from longtail.reporting.class_order import rank_classes
from longtail.reporting.figures import canvas, style
from longtail.reporting.figures.groups import require_single_labels
from longtail.runs.compare import Source, read_all
from longtail.runs.own_data import OwnData
from longtail.runs.reopen import OpenRun, reopen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 120
"""Test images of each split to draw as dots."""


@canvas.apply_style
def draw_decomposition(sources: Sequence[Source], *, data: OwnData = None) -> "Figure":
    """Draw a run's features, split into a part along the head direction and the rest (fig:2)."""
    found = read_all(sources)
    if len(found) != 1:
        raise UserError(f"decomposition takes one run, not {len(found)}")
    require_single_labels(found[0], "decomposition")
    opened = reopen(found[0].run, data)
    head, x = opened.evaluation.head, opened.evaluation.features.evaluated
    if not isinstance(head, NormalisedHead):
        raise UserError(
            f"{found[0].source} has no head direction: pass a run of deconfound, cosine or capsule"
        )
    along, rest = (part.norm(dim=1).cpu() for part in decompose(head, x))
    figure = canvas.make_panels(2)
    _draw_plane(figure.axes[0], along, rest, opened)
    _draw_shares(figure.axes[1], 100 * along**2 / (along**2 + rest**2), opened)
    config = opened.job.config
    name = canvas.make_literal(opened.data.full_name)
    title = f"{config.method} on {name}, seed {config.seed}"
    figure.suptitle(title, fontsize=8)
    return figure


def decompose(head: NormalisedHead, x: Tensor) -> tuple[Tensor, Tensor]:
    """Split features x (N, D) into their projection on the head direction and the rest.

    As in Section 3 of the paper, x = rest + d with d = |x| cos(x, d^) d^, for each of the K heads.
    """
    parts = x.unflatten(1, (head.heads, -1))  # (N, K, D/K)
    direction = head.direction
    along = (parts * direction).sum(-1, keepdim=True) * direction
    return along.flatten(1), (parts - along).flatten(1)


def _draw_plane(axes: "Axes", along: Tensor, rest: Tensor, opened: OpenRun) -> None:
    """Draw images as dots at (|d|, |rest|), and their mean as three arrows."""
    labels = opened.evaluation.scores.labels.cpu()
    for split, classes in opened.data.counts.splits.items():
        rows = torch.isin(labels, torch.tensor(classes)).nonzero().flatten()
        rows = rows[:: max(1, -(-len(rows) // SHOWN))]  # evenly over the classes
        if len(rows):
            colour = style.SPLITS[split][0]
            marker = {"many": ".", "medium": "+", "few": "x"}[split]
            x, y = along[rows].numpy(), rest[rows].numpy()
            axes.plot(x, y, marker, color=colour, ms=3, alpha=0.6, label=split)
    d, left = float(along.mean()), float(rest.mean())
    arrows = {"d": ((0.0, 0.0), (d, 0.0)), "x - d": ((d, 0.0), (d, left)), "x": ((0, 0), (d, left))}
    for name, (start, end) in arrows.items():
        tip = {"arrowstyle": "-|>", "color": "black", "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=end, xytext=start, arrowprops=tip)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        beside = (-14, 8) if name == "x" else (4, 4)
        axes.annotate(name, middle, xytext=beside, textcoords="offset points", fontweight="bold")
    axes.set(xlabel="|d|, along the head direction (feature units)")
    axes.set(ylabel="|x - d|, what is left (feature units)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _draw_shares(axes: "Axes", shares: Tensor, opened: OpenRun) -> None:
    """Draw the share of |x|² along the head direction, by class rank."""
    counts, labels = opened.data.counts.images, opened.evaluation.scores.labels.cpu()
    means = class_means(shares, labels, len(counts))
    seen = set(labels.tolist())
    values = [means[c] if c in seen else float("nan") for c in rank_classes(counts)]
    colour = style.choose_looks([opened.job.config.method])[0][0]
    axes.plot(range(1, len(counts) + 1), values, color=colour)
    canvas.set_rank_axis(axes, len(counts), canvas.RANK)
    axes.set_ylim(0, 100)
    axes.set_ylabel("mean |d|² / |x|² of test images (%)")
