"""Data sets in a few words: their text at a prompt, and their tables in a notebook."""

from typing import TYPE_CHECKING

import torch

from longtail.core.errors import list_some
from longtail.core.notebook import html_table

if TYPE_CHECKING:
    from longtail.data.base import Data

PARTS = {"train": "training", "val": "validation", "test": "test"}
SPLITS = {
    "many": "many (more than 100 images)",
    "medium": "medium (20 to 100)",
    "few": "few (fewer than 20)",
}
SHOWN = 5
"""Class names of a split that are shown."""


def describe_inputs(shape: torch.Size) -> str:
    """Describe inputs of `shape`, images (N, C, H, W) or embeddings (N, D), in words."""
    kind = "images" if len(shape) == 4 else "embeddings"
    return f"{shape[0]:,} {kind} of {'x'.join(map(str, shape[1:]))}"


def describe_data(data: "Data") -> str:
    """Describe a data set on one line."""
    parts = ", ".join(f"{images:,} {PARTS[part]}" for part, images in _count_images(data).items())
    kind = "embeddings" if data.embeddings else "images"
    shape = "x".join(map(str, data.train.inputs.shape[1:]))
    splits = ", ".join(f"{len(c)} {split}" for split, c in data.counts.splits.items())
    return (
        f"{data.full_name!r}: {len(data.classes)} classes ({splits}), imbalance ratio "
        f"{data.counts.imbalance:.3g}, {kind} of {shape}: {parts}"
    )


def describe_as_html(data: "Data") -> str:
    """Describe a data set as two tables: its parts, and its many, medium and few classes."""
    images, counts = _count_images(data), data.counts.images
    kind = "embeddings" if data.embeddings else "images"
    title = f"{data.full_name}: {len(data.classes)} classes, imbalance ratio "
    parts = html_table(
        ("part", kind),
        [(PARTS[part], number) for part, number in images.items()],
        f"{title}{data.counts.imbalance:.3g}",
    )
    rows = [
        (
            SPLITS[split],
            len(classes),
            sum(counts[c] for c in classes),
            list_some([data.classes[c] for c in classes], SHOWN),
        )
        for split, classes in data.counts.splits.items()
    ]
    return parts + html_table(("classes", "number", f"training {kind}", "such as"), rows)


def _count_images(data: "Data") -> dict[str, int]:
    """Count the rows of each part."""
    parts = {"train": data.train, "val": data.val, "test": data.test}
    return {name: len(part) for name, part in parts.items() if part is not None}
