"""Inputs written from a grammar: mostly right, with one strange part, and the rows they hold.

A grammar knows the right answer, so that a reader that drops a row in silence is found.
"""

import io
import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from benchmarks.attack.mutations import VALUES, WORDS, mutate_tree

IMAGES = tuple(f"{name}/{number}.png" for name in ("ant", "bee", "cat") for number in range(4))
"""Image files beside a list or a table."""


class Written(NamedTuple):
    """The bytes of a file, and the number of rows in it; None if no answer is wrong."""

    content: bytes
    rows: int | None = None


Grammar = Callable[[Random], Written]


def make_pixels(seed: int, side: int = 8) -> NDArray[np.uint8]:
    """Make a picture of noise (H, W, 3)."""
    return np.random.RandomState(seed).randint(0, 256, (side, side, 3), dtype=np.uint8)


def encode_image(seed: int, kind: str, side: int = 8) -> bytes:
    """Encode a picture of noise."""
    file = io.BytesIO()
    Image.fromarray(make_pixels(seed, side)).save(file, kind)
    return file.getvalue()


def write_list(random: Random) -> Written:
    """Write a list of 'path label' lines."""
    texts = random.random() < 0.5
    kinds = ("x", "é ü", "\x1b[31m", "a\x0cb", "🐜", "b") if texts else ("0", "1", "2", "٣", "00")
    lines = [f"{image}\t{random.choice(kinds)}" for image in IMAGES]
    for _ in range(random.randrange(3)):
        odd = random.choice(("", "  ", "x y", "ant/0.png 12345678901234567890123456"))
        odd = random.choice((odd, f"{'n' * 300}.png 1", "a\0b.png 1", "ant/0.png -1", "#"))
        lines.insert(random.randrange(len(lines) + 1), odd)
    end = random.choice(("\n", "\r\n", "\n\n"))
    content = (random.choice(("", "\ufeff")) + end.join(lines)).encode()
    return Written(content, sum(bool(line.strip()) for line in lines))


def write_csv(random: Random) -> Written:
    """Write a table with a header."""
    separator = random.choice((",", ";", "\t"))
    columns = ["path", random.choice(("label", "class", "Label"))]
    extra = random.choice(([], ["split"], ["note"], ["split", "note"], ["label"]))
    words = ("x", "y", "é", "=1+1", "\x1b[0m", "1", "2.0", "nan", "", "9" * 30, '"', "a,b", "a\nb")
    few = random.sample(words, 3)
    rows = []
    for image in IMAGES:
        cells = {
            "path": image,
            "split": random.choice(("train", "train", "test", "val")),
            "note": "?",
        }
        rows.append([cells.get(name, random.choice(few)) for name in columns + extra])
    if random.random() < 0.2:
        random.choice(rows).append("more")
    if random.random() < 0.2:
        random.choice(rows)[0] = random.choice(("", "n" * 300, "a\0b", "missing.png", "/"))
    quoted = [[_quote(cell, separator, random) for cell in row] for row in rows]
    text = "\n".join(separator.join(row) for row in [columns + extra, *quoted]) + "\n"
    return Written((random.choice(("", "\ufeff")) + text).encode(), len(rows))


def _quote(cell: str, separator: str, random: Random) -> str:
    needed = any(letter in cell for letter in (separator, "\n", '"'))
    return '"' + cell.replace('"', '""') + '"' if needed or random.random() < 0.1 else cell


def write_npz(random: Random) -> Written:
    """Write arrays of inputs and labels."""
    rows, noise = random.choice((6, 12)), np.random.RandomState(random.randrange(2**31))
    labels = random.choice(
        (
            "<i8",
            "<i8",
            "<i8",
            "<U3",
            "<u8",
            "<f4",
            "<U3",
            "S3",
            "?",
            "<M8[s]",
            "<c8",
            "<i2",
            "V4",
            "S0",
        )
    )
    inputs = random.choice(
        ("<f4", "<f4", "u1", "u1", "<f8", "<f2", "u1", "<i8", "?", "<c8", "<U3", "<M8[s]", ">f4")
    )
    shapes = ((rows, 5), (rows, 4, 4), (rows, 3, 4, 4), (rows,), (0, 5), (rows, 0), ())
    shape = random.choice(shapes[:3] * 3 + shapes)
    y = (np.arange(rows) % 3).astype("<i8")
    arrays: dict[str, Any] = {
        "x": _cast(np.asarray(noise.rand(*shape)), inputs),
        "y": _cast(y, labels),
    }
    if labels == "S3" and random.random() < 0.5:
        arrays["y"] = np.array([b"\xff\xfe", b"a", b"b"])[y]
    if random.random() < 0.3:
        arrays["classes"] = np.array(
            random.choice((["a", "b", "c"], ["a", "a"], [1, 2, 3], [b"\xff", b"\xfe", b"a"]))
        )
    if random.random() < 0.3:
        arrays = {
            f"{name}_train" if name in "xy" else name: array for name, array in arrays.items()
        }
    if random.random() < 0.2:
        arrays.pop(random.choice(list(arrays)))
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    if random.random() < 0.1:  # a header that asks for terabytes
        content = content.replace(b"'shape': (6,", b"'shape': (6" + b"0" * 12 + b",")
    return Written(content, rows)


def _cast(array: Any, kind: str) -> Any:
    if kind.startswith(("<M", "V")):
        return np.zeros(array.shape, kind)
    return array.astype(kind)


def write_parquet(random: Random) -> Written:
    """Write a table of encoded images."""
    rows = 12
    images: list[Any] = [
        {"bytes": encode_image(number, "png"), "path": f"{number}.png"} for number in range(rows)
    ]
    if random.random() < 0.2:
        images[0] = random.choice((None, {"bytes": None, "path": None}, {"bytes": b"", "path": ""}))
    labels: dict[str, list[Any]] = {
        "numbers": [number % 3 for number in range(rows)],
        "texts": ["é\x1b"[number % 2 : number % 2 + 1] for number in range(rows)],
        "nulls": [None, 0, 1] * 4,
        "floats": [0.5, 1.0, float("nan")] * 4,
        "large": [2**62, -1, 0] * 4,
        "lists": [[1], [2], []] * 4,
        "bytes": [b"\xff", b"a", b"b"] * 4,
    }
    columns: dict[str, Any] = {
        "image": images,
        "label": labels[random.choice(["numbers", "texts", *labels])],
    }
    if random.random() < 0.15:
        columns[random.choice(("labels", "class", "fine_label", "image2"))] = columns["label"]
    table = pa.table(columns)
    if random.random() < 0.1:
        table = table.append_column(random.choice(("label", "image")), table.column("label"))
    if random.random() < 0.5:
        names: Any = random.choice(
            (["a", "b", "c"], [None, "a", "b"], ["a"], "abc", None, 3, [], {})
        )
        features: Any = {"label": {"_type": "ClassLabel", "names": names}}
        about = {"info": {"features": features}}
        about = mutate_tree(about, random) if random.random() < 0.3 else about
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    file = io.BytesIO()
    parquet.write_table(table, file)
    return Written(file.getvalue(), rows)


def make_annotations() -> dict[str, Any]:
    """Make a small annotation file in COCO's format."""
    boxes = [(n, n % 4, n % 3) for n in range(12)]
    return {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 16, "height": 16} for n in range(4)],
        "categories": [{"id": n, "name": name} for n, name in enumerate(("ant", "bee", "cat"))],
        "annotations": [
            {
                **{"id": n, "image_id": image, "category_id": category, "iscrowd": 0},
                **{"bbox": [2, 3, 6, 5], "area": 30, "segmentation": [[2, 3, 8, 3, 8, 8, 2, 8]]},
            }
            for n, image, category in boxes
        ],
    }


def write_coco(random: Random) -> Written:
    """Write annotations, one of them strange."""
    tree = make_annotations()
    odd = random.choice(tree["annotations"])
    place = random.choice(("bbox", "image_id", "category_id", "id", "segmentation", "iscrowd"))
    value = random.choice(VALUES)
    change = random.randrange(4)
    if change == 0:
        odd[place] = value
    elif change == 1:
        odd["bbox"][random.randrange(4)] = value
    elif change == 2:
        tree["annotations"][random.randrange(12)] = value
    else:
        del odd[place]
    return Written(json.dumps(tree).encode())


OPTIONS: dict[str, tuple[str, ...]] = {
    "train": ("epochs", "batch_size", "lr", "momentum", "milestones", "schedule", "augment", "ema"),
    "files": ("root", "list", "val_fraction", "image_size", "corrupt", "min_count", "evaluate_on"),
    "machine": ("device", "devices", "precision", "workers", "save_seconds", "graph"),
    "options": ("heads", "tau", "alpha", "gamma"),
}
TOP = ("data", "method", "backbone", "weights", "seed", "flips", "adaptive", "recipe_name", "seeds")


def write_recipe(random: Random) -> Written:
    """Write a recipe with strange values of known options."""
    tree: dict[str, Any] = {"data": "letters-lt", "train": {"epochs": 2}}
    for _ in range(random.randint(1, 3)):
        part = random.choice((*OPTIONS, ""))
        target = tree.setdefault(part, {}) if part else tree
        if isinstance(target, dict):
            target[random.choice(OPTIONS[part] if part else TOP)] = random.choice(VALUES)
    text = yaml.safe_dump(tree).encode()
    if random.random() < 0.3:
        name = random.choice(OPTIONS["train"]).encode()
        text += b"machine: {devices: " + random.choice(WORDS) + b"}\n" + name + b": 1\n"
    return Written(text)
