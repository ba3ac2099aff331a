"""Make training data of an unread source: check, cut, read and hold out."""

import hashlib
import logging
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError
from longtail.data.base import ClassCounts, Data, Split, count
from longtail.data.checks import (
    check_labels,
    describe_duplicates,
    drop_small_classes,
    find_duplicates,
    mark_copies,
)
from longtail.data.cut import cut
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.label_sets import describe_sets
from longtail.data.reader import read_parts
from longtail.data.sources import MemoryStore, Source
from longtail.data.stratification import choose_held_out

log = logging.getLogger(__name__)

LEAST_STD = 1 / 255
"""One grey level, so that a constant channel is not divided by zero."""
CHUNK = 1024
"""Images whose grey levels are counted at a time."""
SAMPLE = 2048
"""Streamed images that mean and deviation are computed from."""


def prepare(source: Source, *, name: str, ratio: float | None, config: DataConfig) -> Data:
    """Check, cut to `ratio` if there is one, read and hold out, for every kind of source.

    Counts, hash, mean and std are those of the training part before anything is held out.
    """
    source = _select_rows(source, name, ratio, config)
    holds_out = config.val_fraction > 0 and "val" not in source.parts
    if config.val_fraction and not holds_out:
        log.warning(
            "--val-fraction %g is not used: %s has a validation part", config.val_fraction, name
        )
    source, splits, sha256 = read_parts(source, config, name, copies=2 if holds_out else 1)
    train, val = splits["train"], splits.get("val")
    known = (source.mean, source.std) if source.mean and source.std else None
    mean, std = known or _channel_statistics(train)
    counts, rest = count(train.labels, len(source.classes)), train
    if holds_out:
        rest, val = hold_out(train, config.val_fraction)
        _check_held_out(val, train, counts, config)
        how = f"{sha256['train']} {config.val_fraction:g}"  # the draw is always the same
        how += " copies together" if train.has_copies else ""  # earlier versions parted them
        sha256["val"] = hashlib.sha256(how.encode()).hexdigest()
    return Data(
        name=name,
        ratio=ratio,
        classes=source.classes,
        train=rest,
        val=val,
        test=splits.get("test"),
        counts=counts,
        subset_sha256=sha256["train"],
        evaluated_sha256=sha256.get("test", sha256.get("val", "")),
        mean=mean,
        std=std,
        files=config,
    )


def _select_rows(source: Source, name: str, ratio: float | None, config: DataConfig) -> Source:
    """Return the rows of `source` that are used, checked, cut and with their copies marked."""
    if config.evaluate_on == "val":
        kept = {part: rows for part, rows in source.parts.items() if part != "test"}
        source = replace(source, parts=kept)
    _check_options(source, name, ratio, config)
    if source.multi_label:
        log.info("%s has %s", name, describe_sets(source.train.labels))
    problems = Problems(source.problems)
    with problems.collect():
        check_labels(source)
        source = drop_small_classes(source, config.min_count, name)
    if ratio is not None:
        problems.raise_all()  # a cut needs images of every class
        source = cut(source, ratio, config.subset_seed)
        source = drop_small_classes(source, config.min_count, name)
    groups = find_duplicates(source)
    if warnings := [*source.missing, *source.warnings, *describe_duplicates(source, groups)]:
        log.warning("\n".join(warnings))
    source = mark_copies(source, groups)
    return replace(source, problems=tuple(problems.errors))  # reading adds its own


def _check_options(source: Source, name: str, ratio: float | None, config: DataConfig) -> None:
    """Refuse options that have no effect on `source`."""
    if config.image_size is not None and isinstance(source.train.store, MemoryStore):
        raise UserError(
            f"--image-size is for folders, lists and parquet files: {name} has its own size"
        )
    if config.subset_seed and ratio is None:
        raise UserError(
            f"--subset-seed {config.subset_seed} chooses images for a cut to a ratio, and {name} "
            "is not cut: leave it out"
        )


def _check_held_out(val: Split, train: Split, counts: ClassCounts, config: DataConfig) -> None:
    """Refuse a held-out part `val` of `train` that has no image."""
    if not len(val):
        raise UserError(
            f"--val-fraction {config.val_fraction:g} holds out no image: the largest class "
            f"has {max(counts.images)}"
            + (", and copies with two labels are not held out" if train.has_copies else "")
        )


def hold_out(split: Split, fraction: float, *, seed: int = 0) -> tuple[Split, Split]:
    """Hold out a fraction of each class, rounded, but never its last image.

    Images with several labels are held out so that each label comes close to this. Copies of an
    image count as one and stay together, and none is held out if they differ in their labels.
    Returns the rest and the held-out part, both in the order of `split`.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"fraction {fraction:g} is out of range: it must be at least 0 and below 1")
    choose = choose_held_out if split.labels.ndim == 2 else _choose_of_classes
    if split.copies is None:
        held = choose(split.labels, fraction, seed=seed)
    else:
        # `first` is the first row of each image, (M,), and `image` the image of each row, (N,)
        _, first, image = np.unique(split.copies, return_index=True, return_inverse=True)
        held = choose(split.labels[first], fraction, seed=seed)[image]
        differs = (split.labels != split.labels[first][image]).reshape(len(split), -1).any(1)
        held &= torch.from_numpy(~np.isin(image, image[differs]))
    return split.take(torch.nonzero(~held).flatten()), split.take(torch.nonzero(held).flatten())


def _choose_of_classes(labels: Tensor, fraction: float, *, seed: int) -> Tensor:
    """Choose the held-out images, (N,) bool, of single `labels` (N,)."""
    random = np.random.RandomState(seed)  # the stream of this generator is frozen
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(int(labels.max()) + 1):
        places = torch.nonzero(labels == label).flatten()
        order = torch.from_numpy(random.permutation(len(places)))
        chosen = min(math.floor(fraction * len(places) + 0.5), max(len(places) - 1, 0))
        held[places[order[:chosen]]] = True
    return held


def _channel_statistics(train: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and deviation of each channel on the 0..1 scale; none for embeddings."""
    inputs = train.inputs
    if inputs.ndim == 2:
        return (), ()
    if isinstance(inputs, StreamedImages):  # a sample is enough
        inputs = inputs.decode_sample(SAMPLE)
    histogram = torch.zeros(inputs.shape[1], 256, dtype=torch.int64)
    # counting grey levels is exact, and in chunks it needs little memory
    for chunk in inputs.split(CHUNK):
        for channel, values in enumerate(chunk.unbind(1)):
            histogram[channel] += torch.bincount(values.flatten(), minlength=256)
    share = histogram.double() / histogram[0].sum()  # (C, 256)
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ levels
    std = (share @ levels.square() - mean.square()).clamp(min=LEAST_STD**2).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
