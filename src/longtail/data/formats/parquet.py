"""Parquet files in Hugging Face's image layout, whole or in shards.

A part is `train.parquet`, or shards as the Hub names them, `train-00000-of-00002.parquet`. The
columns are an image, a struct with the encoded `bytes`, and a label. Class names come from the
schema's metadata under `huggingface`, where Hugging Face's own writer puts them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError
from longtail.data.decoding.cache import CachedStore, describe_size, hash_file
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import StoredImage
from longtail.data.formats.columns import (
    ImageColumns,
    find_image_columns,
    find_part,
    find_split,
    split_rows,
)
from longtail.data.formats.folder import PARTS
from longtail.data.label_sets import join_labels, recognise_sets
from longtail.data.labels import LabelledPart
from longtail.data.sources import Source

SHARD = re.compile(
    r"(?P<word>[a-z]+)(-(?P<number>\d+)-of-(?P<total>\d+)(-\w+)?)?\.parquet", re.IGNORECASE
)
"""Name of a file of a part; a hash may follow the number of shards."""


def find_folder(root: Path) -> Path | None:
    """Return the folder with the training part: `root`, or one below it, such as `data`."""
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    holding = [folder for folder in folders if "train" in find_parts(folder)]
    if root in holding or len(holding) < 2:
        return holding[0] if holding else None
    shown = ", ".join(str(folder) for folder in holding)
    raise UserError(f"{root} has several sets of parquet files: pass one of {shown}")


def find_evaluated(root: Path) -> tuple[str, Path] | None:
    """Find a file of the test part, else of the validation part, where no training part lies."""
    if find_folder(root):
        return None
    for folder in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
        parts = find_parts(folder)
        for part in ("test", "val"):
            if part in parts:
                return part, parts[part][0]
    return None


def find_parts(folder: Path) -> dict[str, list[Path]]:
    """Find the files of each part in `folder`; of two words for a part the first counts."""
    files = _group_files(folder)
    found = {part: [word for word in words if word in files] for part, words in PARTS.items()}
    return {part: files[words[0]] for part, words in found.items() if words}


def _group_files(folder: Path) -> dict[str, list[Path]]:
    """Group the files in `folder` by the word that their names begin with."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        if match := SHARD.fullmatch(path.name):
            files.setdefault(match["word"].lower(), []).append(path)
    return files


def open_file(path: Path, *, config: DataConfig) -> Source:
    """Open one file with its shards as the training part; a training file with the other parts."""
    match = SHARD.fullmatch(path.name)
    word = match["word"].lower() if match else ""
    if find_part(word) == "train" and path in (beside := find_parts(path.parent))["train"]:
        return open_source(beside, config=config)
    shards = _group_files(path.parent)[word] if match and match["total"] else [path]
    return open_source({"train": shards}, config=config)


def open_source(files: Mapping[str, Sequence[Path]], *, config: DataConfig) -> Source:
    """Open the data set of the files of each part.

    A cut keeps the first rows of each class: such files are written shuffled, and every smaller
    subset is then part of a larger one.
    """
    problems = Problems()
    parts = {part: _open_part(paths, config) for part, paths in files.items()}
    labelled = {name: part for name, (part, _) in parts.items()}
    words = parts["train"][1]
    if words is not None and len(files) == 1:
        labelled = _split_part(labelled["train"], words, files["train"][0], problems)
    elif any(split is not None for _, split in parts.values()):
        folder = files["train"][0].parent
        problems.warnings.append(f"{folder}: parts are files, so the column 'split' is not read")
    if others := _list_others(files):
        read = ", ".join(path.name for paths in files.values() for path in paths[:1])
        folder = files["train"][0].parent
        problems.warnings.append(f"{folder}: reads only {read}, and ignores {', '.join(others)}")
    return replace(join_labels(labelled, config=config, problems=problems), shuffled=True)


def _split_part(
    part: LabelledPart, words: Sequence[Any], path: Path, problems: Problems
) -> dict[str, LabelledPart]:
    """Split a part by the words of its column `split`; one word for all rows splits nothing."""
    column = f"the column 'split' of {path}"
    parts = split_rows(words, column, part.store.describe, problems)
    if len(parts) == 1 and "train" not in parts:
        problems.warnings.append(f"{column} has the word '{words[0]}' alone, so it is not read")
        return {"train": part}
    if "train" not in parts:
        problems.add(f"{column} has no row with 'train'")
        problems.raise_all()
    return {
        name: part._replace(labels=[part.labels[row] for row in rows], rows=rows)
        for name, rows in parts.items()
    }


def _list_others(files: Mapping[str, Sequence[Path]]) -> list[str]:
    """List the parquet files beside a training part of that name that no part reads."""
    train = files["train"][0]
    match = SHARD.fullmatch(train.name)
    if not match or find_part(match["word"]) != "train":
        return []
    read = {path for paths in files.values() for path in paths}
    return [path.name for path in sorted(train.parent.glob("*.parquet")) if path not in read]


@dataclass(frozen=True)
class Shards:
    """The rows of one or more files, one file after the other."""

    paths: tuple[Path, ...]
    starts: tuple[int, ...]
    """First row of each file."""
    image: str
    """Column of the images."""
    names: pa.Array
    """(N,) path of each image in its struct, or null."""

    def blobs(self, rows: Tensor) -> Iterator[StoredImage]:
        """Yield the encoded images of ascending `rows`, with one row group in memory at a time."""
        for path, first in zip(self.paths, self.starts, strict=True):
            start = first
            with _read_errors(path), pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    stop = start + file.metadata.row_group(group).num_rows
                    inside = rows[(rows >= start) & (rows < stop)] - start
                    if len(inside):
                        read = file.read_row_group(group, columns=[f"{self.image}.bytes"])
                        for cell in read.column(self.image).take(pa.array(inside.numpy())):
                            image = cell.as_py()
                            yield None if image is None else image["bytes"]
                    start = stop

    def describe(self, row: int) -> str:
        """Describe a row by its file and its place there."""
        shard = bisect_right(self.starts, row) - 1
        return f"row {row - self.starts[shard]} of {self.paths[shard]}"

    def name(self, row: int) -> str:
        """Return the path in the image's struct, else the place of the row."""
        return self.names[row].as_py() or self.describe(row)


def _open_part(paths: Sequence[Path], config: DataConfig) -> tuple[LabelledPart, list[Any] | None]:
    """Open the files of one part, which must have the same layout and classes.

    Also return the values of their column `split`; None if there is none.
    """
    _check_complete(paths)
    shards = [_read_shard(path) for path in paths]
    for path, shard in zip(paths, shards, strict=True):
        if shard.columns != shards[0].columns:
            raise UserError(
                f"{path} and {paths[0].name} differ in their columns or in the classes that their "
                "metadata name, so they are not shards of one part"
            )
    labels = [label for shard in shards for label in shard.labels]
    if not labels:
        raise UserError(f"{paths[0]} has no rows: one for each image is expected")
    image, label, classes = shards[0].columns
    lengths = [len(shard.labels) for shard in shards]
    starts = tuple(accumulate(lengths[:-1], initial=0))
    rows = Shards(tuple(paths), starts, image, pa.concat_arrays([s.names for s in shards]))
    images = ImageStore(rows.blobs, rows.describe, config, row_name=rows.name)

    def content() -> str:
        return f"{' '.join(map(hash_file, paths))} {describe_size(config)}"

    where = f"the column '{label}' of {paths[0]}"
    found, classes = recognise_sets(labels, where, classes)
    part = LabelledPart(CachedStore(images, content), found, where, classes)
    if any(shard.split is None for shard in shards):
        return part, None
    return part, [word for shard in shards for word in shard.split or ()]


class Shard(NamedTuple):
    """All of a file but its images."""

    columns: ImageColumns
    labels: list[Any]
    names: pa.Array
    """(N,) path of each image in its struct, or null."""
    split: list[Any] | None
    """(N,) words of the column `split`; None if there is none."""


def _read_shard(path: Path) -> Shard:
    """Read the labels, the names of the images and the parts of a file."""
    with _read_errors(path), pq.ParquetFile(path) as file:
        columns = find_image_columns(file.schema_arrow, str(path))
        labels = file.read(columns=[columns.label]).column(0).to_pylist()
        names = pa.nulls(len(labels), pa.string())
        if file.schema_arrow.field(columns.image).type.get_field_index("path") >= 0:
            stored = file.read(columns=[f"{columns.image}.path"]).column(0)
            names = pc.struct_field(stored, "path").combine_chunks().cast(pa.string())
        split = find_split(file.schema_arrow.names)
        words = split and file.read(columns=[split]).column(0).to_pylist()
    return Shard(columns, labels, names, words or None)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into an error that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}") from error


def _check_complete(paths: Sequence[Path]) -> None:
    """Check that every shard is there once: the name of each has its number and that of all."""
    matches = [SHARD.fullmatch(path.name) for path in paths]
    shards = {(int(m["total"] or 1), int(m["number"] or 0)) if m else (1, 0) for m in matches}
    total = max(shards)[0]
    if not len(shards) == len(paths) == total or min(shards)[0] < total:
        raise UserError(
            f"{paths[0].parent} has {len(paths)} files of this part, and {paths[0].name} is one of "
            f"{total} by its name: download those that are missing, or remove those that do not "
            "belong to it"
        )
