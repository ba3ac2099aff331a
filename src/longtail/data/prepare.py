"""From an unread source to data that is ready to be trained on."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import torch

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.base import Data, Split, count
from longtail.data.checks import check_labels, drop_small
from longtail.data.cut import cut
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.reader import read
from longtail.data.sources import Memory, Source

LEAST_STD = 1 / 255
"""One grey level: a channel that never changes must not be divided by nothing."""
CHUNK = 1024
SAMPLE = 2048
"""Streamed images that mean and deviation are counted on."""


def prepare(source: Source, *, name: str, ratio: float | None, config: DataConfig) -> Data:
    """Check, cut, read, hold out: the same for every kind of source.

    Counts, hash, mean and std are those of the training part before anything is held out.

    Args:
        source: what a loader gave.
        name: as the user typed it, without the ratio.
        ratio: imbalance to cut to; None to take all.
        config: what to drop and to hold out.
    """
    if config.evaluate_on == "val":
        kept = {part: rows for part, rows in source.parts.items() if part != "test"}
        source = replace(source, parts=kept)
    if config.image_size is not None and isinstance(source.train.store, Memory):
        raise UserError(
            f"--image-size is for folders, lists and parquet files: {name} has its own size"
        )
    check_labels(source)
    source = drop_small(source, config.min_count)
    if ratio is not None:
        source = drop_small(cut(source, ratio), config.min_count)
    holding = config.val_fraction > 0 and "val" not in source.parts
    found = read(source, config, copies=2 if holding else 1)
    source, parts = found.source, found.parts
    _check_shapes(parts)
    train, val = parts["train"], parts.get("val")
    mean, std = (source.mean, source.std) if source.mean and source.std else _statistics(train)
    rest, sha256 = train, found.sha256
    if holding:
        rest, val = hold_out(train, config.val_fraction)
        if not len(val):
            raise UserError(
                f"--val-fraction {config.val_fraction:g} holds out no image: the largest class "
                f"has {max(count(train.labels, len(source.classes)).images)}"
            )
        how = f"{sha256['train']} {config.val_fraction:g}"  # the draw is always the same
        sha256 = {**sha256, "val": hashlib.sha256(how.encode()).hexdigest()}
    return Data(
        name=name,
        ratio=ratio,
        classes=source.classes,
        train=rest,
        val=val,
        test=parts.get("test"),
        counts=count(train.labels, len(source.classes)),
        subset_sha256=sha256["train"],
        evaluated_sha256=sha256.get("test", sha256.get("val", "")),
        mean=mean,
        std=std,
        files=config,
    )


def hold_out(split: Split, fraction: float, *, seed: int = 0) -> tuple[Split, Split]:
    """Hold out a fraction of each class; at least one image of it stays.

    Args:
        split: the whole.
        fraction: of each class, rounded to the nearest number of images.
        seed: of the draw.

    Returns:
        The rest and the held-out part, both in the order of `split`.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"fraction {fraction:g} is out of range: it is from 0 to below 1")
    random = np.random.RandomState(seed)  # the stream of this generator is frozen
    held = torch.zeros(len(split), dtype=torch.bool)
    for label in range(int(split.labels.max()) + 1):
        places = torch.nonzero(split.labels == label).flatten()
        order = torch.from_numpy(random.permutation(len(places)))
        chosen = min(math.floor(fraction * len(places) + 0.5), max(len(places) - 1, 0))
        held[places[order[:chosen]]] = True
    return split.take(torch.nonzero(~held).flatten()), split.take(torch.nonzero(held).flatten())


def _check_shapes(parts: dict[str, Split]) -> None:
    """All parts must hold images of one size."""
    shape = tuple(parts["train"].inputs.shape[1:])
    for name, part in parts.items():
        other = tuple(part.inputs.shape[1:])
        if other != shape:
            raise UserError(
                f"the {name} images are {other} and the training images {shape} (channels, "
                "height, width): pass --image-size to bring them to one size"
            )


def _statistics(train: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the 0..1 scale; none for embeddings.

    Of streamed images a sample is looked at.
    """
    inputs = train.inputs
    if inputs.ndim == 2:
        return (), ()
    if isinstance(inputs, StreamedImages):
        inputs = inputs.sample(SAMPLE)
    channels = inputs.shape[1]
    histogram = torch.zeros(channels, 256, dtype=torch.int64)
    # counting grey levels is exact, and in chunks it takes no memory to speak of
    for chunk in inputs.split(CHUNK):
        for channel in range(channels):
            histogram[channel] += torch.bincount(chunk[:, channel].flatten(), minlength=256)
    share = histogram.double() / histogram[0].sum()  # (C, 256)
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ levels
    std = (share @ levels.square() - mean.square()).clamp(min=LEAST_STD**2).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
