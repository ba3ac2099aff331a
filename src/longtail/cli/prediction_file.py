"""A file of predictions that several processes write, and that a repeated command completes."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from longtail.cli.prediction_lines import Lines
from longtail.core.files import replace_atomically
from longtail.core.progress import log_progress
from longtail.data.decoding.cache import hash_file
from longtail.serving.part_files import PART, Parts, share_parts
from longtail.serving.predictor import Predictor


def write_predictions(
    out: Path,
    model: Predictor,
    source: Path,
    images: Sequence[str],
    lines: Lines,
    options: Mapping[str, Any],
    fabric: Fabric,
) -> list[tuple[str, str]]:
    """Write the predictions of `images` to `out`, in their order.

    Args:
        out: the file to write.
        model: the model.
        source: the file or folder that it was loaded from.
        images: the image files.
        lines: how to format them.
        options: those of `Predictor.stream`.
        fabric: the processes, each of which classifies a share of the images.

    Returns:
        On rank 0 the unreadable images with the reasons; nothing on other ranks.
    """
    size = PART // model.batch_size * model.batch_size or PART  # whole batches
    cut = [images[i : i + size] for i in range(0, len(images), size)]
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    names = hashlib.sha256("\0".join(images).encode(errors="surrogateescape")).hexdigest()
    # of rank 0 only: copies on the disks of other machines may have other times
    states = fabric.broadcast(_hash_states(images) if fabric.global_rank == 0 else "")
    about = {
        "part": size,
        "images": [names, states],
        "model": [hash_file(file.absolute()) for file in files],
        "description": model.about.to_json(),
        "alpha": model.alpha,
        "format": lines.format.__name__,
        "options": dict(options),
    }
    with share_parts(out, about, len(cut), fabric) as parts:
        mine = {number: cut[number] for number in parts.mine}
        _classify(model, mine, size, lines, options, parts)
        fabric.barrier()
        skipped = _join(out, lines.header, parts) if fabric.global_rank == 0 else []
        fabric.barrier()
    return skipped


def _hash_states(images: Sequence[str]) -> str:
    """Return the SHA-256 of the sizes and times of change of the images."""
    sha = hashlib.sha256()
    for image in images:
        state: tuple[int, ...] = ()
        with suppress(OSError, ValueError):  # the reader reports it
            found = os.stat(image)
            state = (found.st_size, found.st_mtime_ns)
        sha.update(f"{state}\n".encode())
    return sha.hexdigest()


def _classify(
    model: Predictor,
    mine: Mapping[int, Sequence[str]],
    size: int,
    lines: Lines,
    options: Mapping[str, Any],
    parts: Parts,
) -> None:
    """Write the parts of this rank, of `size` images each, as soon as they are complete."""
    # one stream over all parts, so that the next images are decoded while a part is written
    every = list(chain.from_iterable(mine.values()))
    predictions = model.stream(every, **options)
    for number, images in log_progress("classified", mine.items(), len(every), size):
        text: list[str] = []
        skipped: list[tuple[str, str]] = []
        for image, prediction in zip(images, predictions, strict=False):
            if isinstance(prediction, str):
                skipped.append((image, prediction))
            else:
                text.append(lines.format(image, prediction))
        parts.write(number, json.dumps({"text": "".join(text), "skipped": skipped}).encode())


def _join(out: Path, header: str, parts: Parts) -> list[tuple[str, str]]:
    """Write `out` from all parts and delete them; return the unreadable images with the reasons."""
    skipped: list[tuple[str, str]] = []
    with replace_atomically(out) as temporary, temporary.open("wb") as file:
        file.write(header.encode())
        for part in map(json.loads, parts.read()):
            file.write(part["text"].encode(errors="surrogateescape"))
            skipped += [(image, reason) for image, reason in part["skipped"]]
    parts.remove()
    return skipped
