"""Golden results: record what this machine computes now, and compare after a refactoring.

    python -m benchmarks.golden record golden.json
    python -m benchmarks.golden compare golden.json

It uses only the command line and public names, so one script works for any layout of the code.
Figures depend on the CPU: record and compare on the same machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FIGURES = (
    *("overall", "many", "medium", "few", "per_class", "sweep", "alpha", "alpha_rule", "tau"),
    *("mean_cos", "class_cos", "feature_norm", "weight_norm", "counts", "subset_sha256"),
    *("recipe_id", "ap"),
)
"""Fields of a result that a refactoring must not change by a bit."""

PHOTOS = """
import sys, numpy as np
from pathlib import Path
from PIL import Image
random = np.random.RandomState(0)
for part, counts in (("train", (24, 12, 6)), ("val", (3, 3, 3)), ("test", (6, 6, 6))):
    for name, images in zip(("ant", "bee", "cat"), counts):
        folder = Path(sys.argv[1]) / part / name
        folder.mkdir(parents=True)
        for i in range(images):
            pixels = random.randint(255, size=(20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
"""

ESTIMATORS = """
import json, numpy as np, longtail as lt
random = np.random.RandomState(0)
y = np.repeat(np.arange(5), (80, 40, 20, 10, 5))
X = 1 + random.randn(5, 12)[y] + random.randn(len(y), 12)
found = {}
for kind in (lt.DeconfoundTDEClassifier, lt.CosineTDEClassifier, lt.LinearSoftmaxClassifier):
    fitted = kind(random_state=0, epochs=10).fit(X, y)
    found[kind.__name__] = {
        "probabilities": fitted.predict_proba(X[::7]).tolist(),
        "alpha": getattr(fitted, "alpha_", None),
    }
print(json.dumps(found))
"""

LOGITS = """
import json, sys, numpy as np, longtail as lt
model = lt.load_model(sys.argv[1], device="cpu")
images = np.random.RandomState(0).randint(256, size=(3, *map(int, sys.argv[2:])), dtype=np.uint8)
print(json.dumps(model.logits(images).tolist()))
"""


def python(*words: str, cwd: Path) -> str:
    """Run this Python with `words`; return its output."""
    own = {"OMP_NUM_THREADS": "1", "LONGTAIL_CACHE": str(cwd / "cache")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def results(folder: Path) -> dict[str, Any]:
    """Read the figures of every run below `folder`, by its path."""
    found = {}
    for path in sorted(folder.rglob("result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        place = str(path.parent.relative_to(folder))
        found[place] = {name: result[name] for name in FIGURES if name in result}
    return found


def train_all(data: str) -> Callable[[Path], Any]:
    """Return a function that trains every method on a bundled data set with two seeds."""

    def train(folder: Path) -> Any:
        words = ("train", data, "--method", "all", "--seeds", "2", "--device", "cpu")
        python("-m", "longtail", *words, "--out", "runs", cwd=folder)
        return results(folder / "runs")

    return train


def train_streamed(folder: Path) -> Any:
    """Train on a streamed folder of images; export to ONNX and compute logits."""
    python("-c", PHOTOS, "photos", cwd=folder)
    words: tuple[str, ...] = ("photos", "--method", "deconfound-tde", "--alpha", "auto", "--stream")
    words += ("--image-size", "16", "--augment", "resized-crop", "--backbone", "conv4")
    words += ("--epochs", "4", "--batch-size", "8", "--lr", "0.05", "--device", "cpu")
    python("-m", "longtail", "train", *words, "--out", "runs", cwd=folder)
    python("-m", "longtail", "export", "runs", "--to", "onnx", "-o", "model.onnx", cwd=folder)
    logits = python("-c", LOGITS, "model.onnx", "3", "16", "16", cwd=folder)
    return {"result": results(folder / "runs"), "onnx": json.loads(logits)}


def train_detector(folder: Path) -> Any:
    """Train a tiny detector on a few generated images."""
    code = "import json, sys; from pathlib import Path\n" + BOXES
    python("-c", code, "boxes", cwd=folder)
    words: tuple[str, ...] = (
        "boxes",
        "--method",
        "deconfound-tde",
        "--backbone",
        "resnet10t",
        "--width",
        "16",
    )
    words += ("--features", "16", "--image-size", "64", "--max-size", "64", "--epochs", "2")
    words += ("--anchor-scale", "1", "--proposals", "20", "--rois", "12", "--batch-size", "3")
    words += ("--lr", "0.01", "--warmup", "1", "--detections", "5", "--device", "cpu")
    words += ("--workers", "1", "--out", "run")
    python("-m", "longtail", "detect", "train", *words, cwd=folder)
    found = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    return {name: found[name] for name in FIGURES if name in found}


BOXES = """
import numpy as np
from PIL import Image
random = np.random.RandomState(0)
root = Path(sys.argv[1])
(root / "images").mkdir(parents=True)
number = 0
for split, count in (("train", 6), ("val", 3)):
    images, boxes = [], []
    for i in range(count):
        pixels = random.randint(60, size=(64, 64, 3), dtype=np.uint8)
        name = f"{split}{i}.png"
        images.append({"id": i, "file_name": name, "height": 64, "width": 64})
        for category in (1, 2):
            number += 1
            x, y, w, h = (int(v) for v in random.randint(8, 24, size=4))
            pixels[y : y + h, x : x + w] = 120 * category
            polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
            boxes.append({"id": number, "image_id": i, "category_id": category, "area": w * h,
                          "bbox": [x, y, w, h], "segmentation": [polygon], "iscrowd": 0})
        Image.fromarray(pixels).save(root / "images" / name)
    kinds = [{"id": 1, "name": "grey"}, {"id": 2, "name": "white"}]
    content = {"images": images, "annotations": boxes, "categories": kinds}
    (root / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")
"""


def fit_estimators(folder: Path) -> Any:
    """Fit the three scikit-learn classifiers; return their probabilities."""
    return json.loads(python("-c", ESTIMATORS, cwd=folder))


def list_commands(folder: Path) -> Any:
    """List the commands of `longtail --help`."""
    lines = python("-m", "longtail", "--help", cwd=folder).splitlines()
    return [line.split("  ")[1] for line in lines if line.startswith("  longtail ")]


PIECES: dict[str, Callable[[Path], Any]] = {
    "commands": list_commands,
    "estimators": fit_estimators,
    "detector": train_detector,
    "streamed": train_streamed,
    "digits-lt": train_all("digits-lt"),
    "letters-lt": train_all("letters-lt"),
}


def list_differences(before: Any, after: Any, place: str = "") -> list[str]:
    """List the places where two trees of plain values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = dict.fromkeys([*before, *after])
        pairs = [(f"{place}/{name}", before.get(name), after.get(name)) for name in names]
        return [line for name, a, b in pairs for line in list_differences(a, b, name)]
    return [] if before == after else [f"{place}: {str(before)[:100]} -> {str(after)[:100]}"]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.golden",
        description="Record golden results in FILE, or compare the present code with them.",
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", metavar="FILE", type=Path)
    names = f"of {', '.join(PIECES)}; by default all"
    parser.add_argument("pieces", metavar="PIECE", nargs="*", default=[], help=names)
    command = parser.parse_args(argv)
    for name in command.pieces:
        if name not in PIECES:
            parser.error(f"unknown piece {name!r}: choose from {', '.join(PIECES)}")
    if command.action == "compare":
        if not command.file.exists():
            parser.error(f"{command.file} does not exist: make it with record {command.file}")
        known = json.loads(command.file.read_text(encoding="utf-8"))
        missing = [name for name in command.pieces or PIECES if name not in known]
        if missing:
            parser.error(
                f"{command.file} has no {', '.join(missing)}: "
                f"record {command.file} {' '.join(missing)}"
            )
    return command


def main(argv: Sequence[str] | None = None) -> None:
    """Record golden results or compare with them; exit with the differences, if there are any."""
    command = parse(argv)
    path: Path = command.file
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    changes: list[str] = []
    for name in command.pieces or PIECES:
        with tempfile.TemporaryDirectory() as folder:
            found = json.loads(json.dumps(PIECES[name](Path(folder))))
        if command.action == "record":
            known[name] = found
            path.write_text(json.dumps(known, indent=1), encoding="utf-8")
        else:
            changes += list_differences(known[name], found, name)
        print(f"{name}: {'recorded' if command.action == 'record' else 'compared'}", flush=True)
    if changes:
        sys.exit("\n".join(changes))


if __name__ == "__main__":
    main()
