"""Inputs with several labels per image, written from a grammar as in `attack/grammar.py`."""

import io
import json
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.attack.grammar import IMAGES, Written, encode_image

LABELS = ("x", "y", "é ü", "1", "2.0", "nan", "", " ", "=1+1", "\x1b[0m", "9" * 30, "None", "[1]")
KINDS = ("u1", "<f2", "<U3", "S1", "<c8", "<M8[s]")
CELLS: tuple[Any, ...] = (None, [], [None], [[]], ["x", 1], [0, 0, 1], [-1], [2**62], [0.5], ["x"])
"""Strange cells of a column of lists."""


def write_list(random: Random) -> Written:
    """Write a list of 'path label,label' lines."""
    few, least = _choose_labels(random), random.choice((1, 1, 1, 0))
    lines = [f"{image}\t{_join(few, ',', random, least)}" for image in IMAGES]
    if random.random() < 0.3:
        odd = random.choice(("", "x,", ",", "x,,y", "1,x", "x, y", "x|y"))
        lines[random.randrange(len(lines))] = f"ant/0.png\t{odd}"
    return Written("\n".join(lines).encode(), sum(bool(line.strip()) for line in lines))


def write_csv(random: Random) -> Written:
    """Write a table with a column of labels, or with a column of 0 and 1 for each."""
    few, separator = _choose_labels(random), random.choice(("|", ";", ",", "/", " ", "||"))
    names = [random.choice(("labels", "tags", "label", " Labels ", "class"))]
    rows = [[image, _join(few, separator, random)] for image in IMAGES]
    if random.random() < 0.3:
        names = random.sample(("cat", "dog", "", "path", "Split", "bee"), 3)
        bits = random.choice((("0", "1"), ("0.0", "1.0"), ("True", "false"), ("0", "1", "2", "")))
        rows = [[image, *(random.choice(bits) for _ in names)] for image in IMAGES]
    if random.random() < 0.3:
        names.append("split")
        rows = [[*row, random.choice(("train", "train", "test", "val"))] for row in rows]
    table = [["path", *names], *rows]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in table]
    return Written(("\n".join(quoted) + "\n").encode(), len(rows))


def _choose_labels(random: Random) -> list[str]:
    """Choose labels, often sound ones alone."""
    return [*("x", "y", "z"), *random.sample(LABELS, random.choice((0, 0, 2)))]


def _join(labels: list[str], separator: str, random: Random, least: int = 0) -> str:
    return separator.join(random.choice(labels) for _ in range(random.randint(least, 3)))


def write_npz(random: Random) -> Written:
    """Write embeddings and arrays of 0 and 1, of many types and shapes."""
    rows, noise = 12, np.random.RandomState(random.randrange(2**31))
    arrays: dict[str, Any] = {}
    suffixes = random.choice((("",), ("_train", "_test"), ("_train", "_val", "_test")))
    width, kind = random.choice((3, 3, 3, 3, 2, 1, 0)), random.choice(("?", "<i8", "<f4", *KINDS))
    for suffix in suffixes:
        hot: Any = noise.rand(rows, width) < 0.4
        hot[0] = True  # no label is without an image
        hot = hot.astype("<i8").astype(kind)
        if random.random() < 0.15 and width and kind in ("<i8", "<f4"):
            hot[0, 0] = random.choice((2, -1) if kind == "<i8" else (np.nan, np.inf, 0.5))
        if random.random() < 0.15:
            hot = random.choice((hot[:-1], hot[:, :, None], np.arange(rows) % 3))
        arrays |= {f"x{suffix}": noise.rand(rows, 5).astype("<f4"), f"y{suffix}": hot}
    if random.random() < 0.3:
        classes = random.choice((["a", "b", "c"], ["a", "b"], ["a", "a", "b"], [1, 2, 3], []))
        arrays["classes"] = np.array(classes)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return Written(file.getvalue(), rows * len(suffixes))


def write_parquet(random: Random) -> Written:
    """Write a table of encoded images with a column of lists."""
    rows = 12
    images = [{"bytes": encode_image(n, "png"), "path": f"{n}.png"} for n in range(rows)]
    lists: dict[str, list[Any]] = {
        "names": [random.sample(("x", "y", "z"), random.randrange(4)) for _ in range(rows)],
        "numbers": [random.sample(range(3), random.randrange(4)) for _ in range(rows)],
        "bits": [[random.randrange(2) for _ in range(3)] for _ in range(rows)],
        "floats": [[float(random.randrange(2)) for _ in range(3)] for _ in range(rows)],
    }
    kind = random.choice(list(lists))
    lists["bits"][0] = lists["floats"][0] = [1, 1, 1]
    labels, column = lists[kind], random.choice(("label", "labels", "target"))
    if random.random() < 0.4:
        labels[random.randrange(rows)] = random.choice(CELLS)
    try:
        cells = pa.array(labels)
    except (pa.ArrowException, OverflowError):  # no column holds both
        cells = pa.array([str(cell) for cell in labels])
    if kind == "bits" and random.random() < 0.3 and all(cell and len(cell) == 3 for cell in labels):
        cells = cells.cast(pa.list_(cells.type.value_type, 3))
    table = pa.table({"image": images, column: cells})
    if random.random() < 0.5:
        names = random.choice((["a", "b", "c"], ["a"], None, 3, []))
        inner: Any = {"_type": "ClassLabel", "names": names}
        about = random.choice(({"_type": "Sequence", "feature": inner}, [inner], inner, [], None))
        stored = json.dumps({"info": {"features": {column: about}}})
        table = table.replace_schema_metadata({"huggingface": stored})
    file = io.BytesIO()
    parquet.write_table(table, file)
    return Written(file.getvalue(), rows)
