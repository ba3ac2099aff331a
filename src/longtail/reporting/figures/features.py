"""Figures from the weights and data of runs: fig:2 (decomposition) and fig:5 (gradcam).

Shapes: N test images, D features, K heads.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.evaluation.result import class_means
from longtail.nn.heads import NormalisedHead
from longtail.reporting.figures import canvas, style
from longtail.reporting.figures.groups import rank_classes, read_same_data
from longtail.reporting.gradcam import compactness, compute_maps
from longtail.runs.compare import Source, read_all
from longtail.runs.reopen import OpenRun, OwnData, reopen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 120
"""Test images of each split to draw as dots."""
EXAMPLES = 6
"""Images that `gradcam` shows by default."""


@canvas.apply_style
def draw_decomposition(sources: Sequence[Source], *, data: OwnData = None) -> "Figure":
    """fig:2: features of a run, split into a part along the head direction and the rest."""
    found = read_all(sources)
    if len(found) != 1:
        raise UserError(f"decomposition takes one run, not {len(found)}")
    opened = reopen(found[0].run, data)
    head, x = opened.evaluation.head, opened.evaluation.features.evaluated
    if not isinstance(head, NormalisedHead):
        raise UserError(
            f"{found[0].source} has no head direction: pass a run of deconfound, cosine or capsule"
        )
    along, rest = (part.norm(dim=1).cpu() for part in decompose(head, x))
    figure = canvas.panels(2)
    _draw_plane(figure.axes[0], along, rest, opened)
    _draw_shares(figure.axes[1], 100 * along**2 / (along**2 + rest**2), opened)
    figure.suptitle(f"{opened.job.config.method} on {opened.data.full_name}", fontsize=8)
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
    axes.legend()


def _draw_shares(axes: "Axes", shares: Tensor, opened: OpenRun) -> None:
    """Draw the share of |x|² along the head direction, by class rank."""
    counts, labels = opened.data.counts.images, opened.evaluation.scores.labels.cpu()
    means = class_means(shares, labels, len(counts))
    seen = set(labels.tolist())
    values = [means[c] if c in seen else float("nan") for c in rank_classes(counts)]
    colour = style.styles([opened.job.config.method])[0][0]
    axes.plot(range(1, len(counts) + 1), values, color=colour)
    axes.set(xlabel="class, by rank (1 has the most training images)", ylim=(0, 100))
    axes.set_ylabel("mean |d|² / |x|² of test images (%)")


@canvas.apply_style
def draw_gradcam(
    sources: Sequence[Source], *, images: Sequence[int] = (), layer: str = "", data: OwnData = None
) -> "Figure":
    """fig:5: Grad-CAM of the true class for several runs, for TDE of the TDE logit.

    `images` are rows of the test set; by default the first image of classes spread over the ranks,
    so that nobody picks them by their looks. The number below a map is its compactness.
    """
    found = read_same_data(sources)
    if not found:
        raise UserError("gradcam needs at least one run")
    opened = [reopen(found[0].run, data)]
    opened += [reopen(item.run, opened[0].data) for item in found[1:]]  # read the data once
    test = opened[0].data.evaluated
    rows = torch.tensor(list(images) or example_images(test.labels, opened[0].data.counts.images))
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(test):
        raise UserError(
            f"--images {' '.join(map(str, rows.tolist()))}: must be rows of the test set, "
            f"from 0 to {len(test) - 1}"
        )
    shown = test.take(rows)
    maps = [compute_maps(run, shown, layer) for run in opened]  # (B, h, w) each
    views = [run.preprocess.crop(shown.load_inputs()) for run in opened]  # (B, C, H, W) each
    figure = canvas.panels(len(rows), 1 + len(opened), size=(1.05, 1.2))
    axes = np.array(figure.axes).reshape(1 + len(opened), len(rows))
    for column, label in enumerate(shown.labels.tolist()):
        name, count = opened[0].data.classes[label], opened[0].data.counts.images[label]
        _draw_image(axes[0, column], views[0][column])
        axes[0, column].set_title(f"{name}\n{count} images", fontsize=7)
        for row, (values, view) in enumerate(zip(maps, views, strict=True), start=1):
            _draw_image(axes[row, column], view[column], values[column])
    axes[0, 0].set_ylabel("image", fontsize=7)
    for row, item in enumerate(found, start=1):
        alpha = f"\nalpha {item.result['alpha']:g}" if item.result["alpha"] else ""
        axes[row, 0].set_ylabel(item.result["method"] + alpha, fontsize=7)
    return figure


def example_images(labels: Tensor, counts: Sequence[int]) -> list[int]:
    """Rows of the first test image of classes spread evenly from head to tail."""
    seen = set(labels.tolist())
    order = [c for c in rank_classes(counts) if c in seen]
    number = min(EXAMPLES, len(order))
    chosen = [order[round(i * (len(order) - 1) / max(1, number - 1))] for i in range(number)]
    return [int((labels == c).nonzero()[0]) for c in chosen]


def _draw_image(axes: "Axes", image: Tensor, values: Tensor | None = None) -> None:
    """Draw an input image (C, H, W), with a map (h, w) over it and its compactness below."""
    shown = image.permute(1, 2, 0).squeeze(-1) if values is None else _overlay(image, values)
    pixels = shown.numpy().astype("uint8")
    # no resampling: the file keeps the original pixels, and the viewer enlarges them
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="none")
    if values is not None:
        share = float(compactness(values[None]))
        axes.set_xlabel("empty" if share != share else f"{100 * share:.0f} %", fontsize=7)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _overlay(image: Tensor, values: Tensor) -> Tensor:
    """Blend the grey image (C, H, W) with the colours of the map (h, w) to (H, W, 3)."""
    from matplotlib import colormaps

    smooth = F.interpolate(values[None, None], image.shape[1:], mode="bilinear")[0, 0]
    level = smooth / smooth.max().clamp(min=1e-12)
    colours = 255 * torch.from_numpy(colormaps["viridis"](level.numpy()))[..., :3]
    return 0.45 * image.float().mean(0)[..., None] + 0.55 * colours
