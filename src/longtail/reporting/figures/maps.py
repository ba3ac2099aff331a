"""Grad-CAM of test images, a row of maps for each run (fig:5).

Shapes: B images (B, C, H, W), maps (B, h, w).
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.core.names import shorten
from longtail.data.base import Data
from longtail.reporting.class_order import rank_classes
from longtail.reporting.figures import canvas
from longtail.reporting.figures.groups import read_same_data, require_single_labels
from longtail.reporting.gradcam import compute_compactness, compute_maps
from longtail.runs.compare import Source
from longtail.runs.own_data import OwnData
from longtail.runs.reopen import reopen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLES = 6
"""Images that `gradcam` shows by default."""
NAME_WIDTH = 17
"""Letters of a class name that fit above an image; a name takes up to two lines."""


@canvas.apply_style
def draw_gradcam(
    sources: Sequence[Source], *, images: Sequence[int] = (), layer: str = "", data: OwnData = None
) -> "Figure":
    """Draw Grad-CAM of the true class for each run; TDE runs explain the TDE logit (fig:5).

    `images` are rows of the test set; by default the first image of classes spread over the ranks,
    so that nobody picks them by their looks. The number below a map is its compactness. Runs with
    the same maps up to their scale share a row.
    """
    found = read_same_data(sources)
    if not found:
        raise UserError("gradcam needs at least one run")
    require_single_labels(found[0], "gradcam")
    opened = [reopen(found[0].run, data)]
    opened += [reopen(item.run, opened[0].data) for item in found[1:]]  # read the data once
    if opened[0].data.embeddings:
        raise UserError(
            f"gradcam draws images, and {found[0].source} was trained on embeddings: pass runs on "
            "images"
        )
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
        """Return whether both rows would look the same."""
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
    figure = canvas.make_panels(len(labels), 1 + len(rows), size=(1.05, 1.2))
    axes = np.array(figure.axes).reshape(1 + len(rows), len(labels))
    for column, label in enumerate(labels):
        _draw_image(axes[0, column], rows[0].views[column])
        lines = textwrap.wrap(shorten(data.classes[label], 2 * NAME_WIDTH), NAME_WIDTH)
        lines = [*map(canvas.make_literal, lines), f"{data.counts.images[label]} images"]
        title = "\n".join(lines)
        axes[0, column].set_title(title, fontsize=7)
        for place, row in enumerate(rows, start=1):
            _draw_image(axes[place, column], row.views[column], row.maps[column])
    for place, name in enumerate(["image", *(row.name for row in rows)]):
        axes[place, 0].set_ylabel(name, fontsize=7)
    figure.supxlabel("below each map: the share of its mass in its top tenth", fontsize=7)
    return figure


def example_images(labels: Tensor, counts: Sequence[int]) -> list[int]:
    """Return the rows of the first test images of classes spread evenly from head to tail."""
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
        share = float(compute_compactness(values[None]))
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
