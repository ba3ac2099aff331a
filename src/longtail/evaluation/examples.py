"""Example photographs of an evaluation: what the worst classes were taken for, as thumbnails.

Shapes: N test images, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from longtail.data.base import Split
from longtail.data.decoding.thumbnails import encode_thumbnail

NAME = "examples.parquet"
WORST_CLASSES = 6
PER_CLASS = 3
"""Most confident mistakes of each of the worst classes."""
MOST_CONFIDENT = 12
"""Most confident mistakes of all classes."""
SIDE = 96
"""Pixels of the longer side of a thumbnail."""
SCHEMA = pa.schema(
    {
        "file": pa.string(),
        "label": pa.int32(),
        "prediction": pa.int32(),
        "probability": pa.float32(),
        "thumbnail": pa.binary(),
    }
)


@dataclass(frozen=True)
class Example:
    """A test image, its class and its prediction at the run's own alpha."""

    row: int
    """Row of the evaluated part."""
    label: int
    prediction: int
    probability: float
    """Probability of the prediction."""


def make_examples(logits: Tensor, part: Split) -> pa.Table | None:
    """Make the table of examples of the evaluated `part`, whose logits are `logits` (N, C).

    Its columns are those of `SCHEMA`; a thumbnail is a JPEG. Inputs that are not pictures of 1 or 3
    channels, such as embeddings, have no table.
    """
    if part.inputs.ndim != 4 or part.inputs.shape[1] not in (1, 3):
        return None
    chosen = choose_examples(logits, part.labels.to(logits.device))
    taken = part.take(torch.tensor([example.row for example in chosen], dtype=torch.long))
    columns = {
        "file": [None] * len(chosen) if taken.files is None else taken.files.cast(pa.string()),
        "label": [example.label for example in chosen],
        "prediction": [example.prediction for example in chosen],
        "probability": [example.probability for example in chosen],
        "thumbnail": [draw_thumbnail(image) for image in taken.load_inputs()] if chosen else [],
    }
    return pa.table(columns, SCHEMA)


def choose_examples(logits: Tensor, labels: Tensor) -> list[Example]:
    """Choose confident mistakes, and a correct image of each class that they are taken for.

    The mistakes are the most confident ones of the worst classes, and those of all classes.
    """
    top, predictions = logits.max(1)
    probabilities = (top - logits.logsumexp(1)).exp()
    order = probabilities.argsort(descending=True, stable=True)
    columns = (order, labels[order], predictions[order], probabilities[order])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    examples = [Example(*row) for row in rows]
    mistakes = [example for example in examples if example.label != example.prediction]
    chosen = mistakes[:MOST_CONFIDENT]
    right = labels[predictions == labels]
    hits, seen = (torch.bincount(c, minlength=logits.shape[1]).tolist() for c in (right, labels))
    for worst in find_worst(hits, seen):
        of_class = [example for example in mistakes if example.label == worst]
        chosen += [example for example in of_class[:PER_CLASS] if example not in chosen]
    wanted = dict.fromkeys(example.prediction for example in chosen)
    correct: dict[int, Example] = {}
    for example in examples:
        if example.label == example.prediction and example.label in wanted:
            correct.setdefault(example.label, example)
    return [*chosen, *correct.values()]


def find_worst(hits: Sequence[int], seen: Sequence[int]) -> list[int]:
    """Return classes with mistakes, the lowest accuracy first; on ties the most images first.

    `hits` are the correct images of each class (C,), `seen` all of its images (C,).
    """
    failed = [c for c in range(len(seen)) if hits[c] < seen[c]]
    return sorted(failed, key=lambda c: (hits[c] / seen[c], -seen[c]))[:WORST_CLASSES]


def draw_thumbnail(image: Tensor) -> bytes | None:
    """Encode an image (C, H, W) uint8 of 1 or 3 channels as a JPEG of at most `SIDE` pixels."""
    pixels = image.permute(1, 2, 0).squeeze(-1).cpu().numpy()
    return encode_thumbnail(Image.fromarray(pixels), SIDE)
