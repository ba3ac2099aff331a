"""Figures from the weights and data of runs: fig:2 (decomposition) and fig:5 (gradcam).

Shapes: N test images, D features, K heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.evaluation.result import class_means
from longtail.nn.heads import NormalisedHead
from longtail.reporting.figures import canvas, style
from longtail.reporting.figures.groups import rank_classes, read_same_data
from longtail.reporting.gradcam import compactness, compute_maps
from longtail.runs.compare import Source, StoredResult, read_all
from longtail.runs.own_data import OwnData
from longtail.runs.reopen import OpenRun, reopen

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
    _require_one_label(found[0], "decomposition")
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
    config = opened.job.config
    title = f"{config.method} on {opened.data.full_name}, seed {config.seed}"
    figure.suptitle(title, fontsize=8)
    return figure


def _require_one_label(found: StoredResult, figure: str) -> None:
    if found.result.get("task") == "multi-label":
        raise UserError(
            f"{figure} groups images by their class, and those of {found.source} have several "
            "labels each: pass runs with one label per image"
        )


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
    colour = style.styles([opened.job.config.method])[0][0]
    axes.plot(range(1, len(counts) + 1), values, color=colour)
    canvas.set_rank_axis(axes, len(counts), canvas.RANK)
    axes.set_ylim(0, 100)
    axes.set_ylabel("mean |d|² / |x|² of test images (%)")


@canvas.apply_style
def draw_gradcam(
    sources: Sequence[Source], *, images: Sequence[int] = (), layer: str = "", data: OwnData = None
) -> "Figure":
    """fig:5: Grad-CAM of the true class for each run; TDE runs explain the TDE logit.

    `images` are rows of the test set; by default the first image of classes spread over the ranks,
    so that nobody picks them by their looks. The number below a map is its compactness. Runs with
    the same maps up to their scale share a row.
    """
    found = read_same_data(sources)
    if not found:
        raise UserError("gradcam needs at least one run")
    _require_one_label(found[0], "gradcam")
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
    several = len({item.result["seed"] for item in found}) > 1
    mapped = [
        MapRow(
            name=_name_row(item.result, with_seed=several),
            views=run.preprocess.crop(shown.load_inputs()),
            maps=compute_maps(run, shown, layer),
        )
        for item, run in zip(found, opened, strict=True)
    ]
    return _draw_maps(opened[0].data, shown.labels.tolist(), merge_rows(mapped))


@dataclass(frozen=True)
class MapRow:
    """A row of `gradcam`: B images as a run sees them, and its maps."""

    name: str
    views: Tensor
    """(B, C, H, W)."""
    maps: Tensor
    """(B, h, w)."""

    @property
    def scaled(self) -> Tensor:
        """The maps, each divided by its largest value, as they are drawn."""
        return self.maps / self.maps.amax((1, 2), keepdim=True).clamp(min=1e-12)

    def looks_like(self, other: "MapRow") -> bool:
        """Whether both rows would look the same."""
        same_shape = self.maps.shape == other.maps.shape and self.views.equal(other.views)
        return same_shape and torch.allclose(self.scaled, other.scaled, atol=1e-3)


def merge_rows(rows: Sequence[MapRow]) -> list[MapRow]:
    """Merge rows that look the same, such as a baseline and one with other lengths of weights."""
    merged: list[MapRow] = []
    for row in rows:
        same = [i for i, other in enumerate(merged) if row.looks_like(other)]
        if same:
            merged[same[0]] = replace(merged[same[0]], name=f"{merged[same[0]].name},\n{row.name}")
        else:
            merged.append(row)
    return merged


def _name_row(result: Mapping[str, Any], *, with_seed: bool) -> str:
    alpha = f"\nalpha {result['alpha']:g}" if result["alpha"] else ""
    seed = f"\nseed {result['seed']}" if with_seed else ""
    return f"{result['method']}{alpha}{seed}"


def _draw_maps(data: Data, labels: Sequence[int], rows: Sequence[MapRow]) -> "Figure":
    """Draw the images above one row of maps for each of `rows`."""
    figure = canvas.panels(len(labels), 1 + len(rows), size=(1.05, 1.2))
    axes = np.array(figure.axes).reshape(1 + len(rows), len(labels))
    for column, label in enumerate(labels):
        _draw_image(axes[0, column], rows[0].views[column])
        title = f"{data.classes[label]}\n{data.counts.images[label]} images"
        axes[0, column].set_title(title, fontsize=7)
        for place, row in enumerate(rows, start=1):
            _draw_image(axes[place, column], row.views[column], row.maps[column])
    for place, name in enumerate(["image", *(row.name for row in rows)]):
        axes[place, 0].set_ylabel(name, fontsize=7)
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
