"""Changed copies of real images, and the share of them that the audit finds.

A draw takes some images of a data set. Each is changed, saved as JPEG and added to the data as a
part of its own. It is found if the duplicate search of `longtail audit` groups it with its
original. Every change is searched for alone, because other copies could connect the two.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from benchmarks.common.result_files import format_spread, read_all, write_json, write_page
from longtail.core.config import DataConfig
from longtail.core.environment import environment
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import decode
from longtail.data.duplicates import RowPlace
from longtail.data.inspection import LEAST_SIDE, Inspection, find_duplicates, inspect, inspect_part
from longtail.data.load import open_unread
from longtail.data.sources import Part
from longtail.evaluation import tables

NAME = "audit"
SETS = {
    "plantdoc-lt": "PlantDoc-LT, short side from 100 px",
    "tiny-imagenet-lt": "Tiny-ImageNet-LT, 64 px",
    "cifar100-lt:10": "CIFAR-100-LT, 32 px",
}
"""Data sets and their names in the table."""
COPIES = 400
"""Images of a draw."""
ADDED = "copies"
"""Name of the part that holds the copies."""


@dataclass(frozen=True)
class Change:
    """What is done to a copy."""

    scale: float = 1.0
    """Factor of the sides."""
    light: float = 1.0
    """Factor of the pixel values."""
    quality: int = 90
    """Quality of the JPEG."""

    def apply(self, image: Image.Image) -> bytes:
        """Return the changed image as a JPEG."""
        width, height = (round(self.scale * side) for side in image.size)
        if self.scale != 1:
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        if self.light != 1:
            image = ImageEnhance.Brightness(image).enhance(self.light)
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=self.quality)
        return stream.getvalue()


CHANGES = {
    "JPEG 60": Change(quality=60),
    "half size": Change(scale=0.5),
    "double size": Change(scale=2.0),
    "15% brighter": Change(light=1.15),
    "15% darker": Change(light=0.85),
    "all three": Change(scale=0.6, light=1.1, quality=60),
}
ABOUT = f"""Percentage of changed copies that `longtail audit` groups with their originals: mean
and deviation over draws of {COPIES} images. The copies of one change lie among all images of the
data set. They are JPEGs of quality 90, but for `JPEG 60`. `all three` is JPEG 60, 0.6 of the size
and 10% brighter. Copies with a side below {LEAST_SIDE} pixels are compared only for equality, so
none of them is found. `groups` counts the groups of duplicates among the images as they are."""


def bench_copies(root: Path | None, seeds: int, results: Path) -> Iterator[Path]:
    """Measure the draws of every data set that have no file yet; yield each file written."""
    for data in SETS:
        paths = [results / NAME / f"{data.replace(':', '-')}-s{seed}.json" for seed in range(seeds)]
        missing = {seed: path for seed, path in enumerate(paths) if not path.exists()}
        if missing:
            inspection = inspect(*open_unread(data, root=root))
            for seed, path in missing.items():
                found = {"data": data, **measure_draw(inspection, seed), **environment(cuda=False)}
                write_json(path, found)
                yield path


def measure_draw(inspection: Inspection, seed: int) -> dict[str, Any]:
    """Measure all changes of the images that `seed` draws."""
    images = dict(inspection.read_rows(draw_rows(inspection, seed)))
    originals = {row: Image.fromarray(decode(blob)) for row, blob in images.items()}
    return {
        "seed": seed,
        "images": sum(inspection.count_readable().values()),
        "groups": len(inspection.duplicates),
        "copies": len(originals),
        "changes": {
            name: measure_copies(
                inspection, {row: change.apply(image) for row, image in originals.items()}
            )
            for name, change in CHANGES.items()
        },
    }


def draw_rows(inspection: Inspection, seed: int) -> list[RowPlace]:
    """Draw readable images without replacement, in the order of the parts."""
    rows = [
        RowPlace(part, place)
        for part, facts in inspection.facts.items()
        for place in np.flatnonzero(facts.sizes[:, 0]).tolist()
    ]
    random = np.random.default_rng(seed)
    drawn = random.choice(len(rows), min(COPIES, len(rows)), replace=False)
    return [rows[number] for number in sorted(drawn.tolist())]


def measure_copies(inspection: Inspection, copies: Mapping[RowPlace, bytes]) -> dict[str, Any]:
    """Add the copy of each row to the data, search for duplicates, and count the copies found."""
    blobs = list(copies.values())
    store = ImageStore(
        lambda rows: (blobs[row] for row in rows.tolist()), lambda row: f"copy {row}", DataConfig()
    )
    added = Part.whole(store, torch.zeros(len(blobs), dtype=torch.int64))
    facts = inspect_part(added)
    groups = list(
        find_duplicates(
            {**inspection.source.parts, ADDED: added}, {**inspection.facts, ADDED: facts}
        )
    )
    # of equal images only the first is compared with others
    first = {row: group.rows[0] for group in groups if group.exact for row in group.rows}
    missed = []
    for place, row in enumerate(copies):
        pair = {first.get(each, each) for each in (row, RowPlace(ADDED, place))}
        if not any(pair <= set(group.rows) for group in groups):
            missed.append(row)
    compared = facts.comparable.tolist()
    return {
        "found": 100 * (1 - len(missed) / len(copies)),
        "compared": sum(compared),
        "missed_though_compared": [
            f"{row.part} {row.place}"
            for row, known in zip(copies, compared, strict=True)
            if known and row in missed
        ],
    }


def write_table(results: Path) -> Path:
    """Write RESULTS/audit.md from the result files."""
    return write_page(results, NAME, [ABOUT, tables.markdown(*table(read_all(results / NAME)))])


def table(found: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the percentage of copies found, by data set and change."""
    rows = []
    for data, name in SETS.items():
        draws = [one for one in found if one["data"] == data]
        if draws:
            shares = [
                format_spread(one["changes"][change]["found"] for one in draws)
                for change in CHANGES
            ]
            first = draws[0]
            rows.append(
                [name, f"{first['images']:,}", str(len(draws)), *shares, str(first["groups"])]
            )
    return ["data", "images", "draws", *CHANGES, "groups"], rows
