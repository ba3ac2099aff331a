"""Golden results: what this machine computes today, to compare after every change of structure.

    python -m benchmarks.golden record /tmp/golden.json
    python -m benchmarks.golden compare /tmp/golden.json

Only the command line and public names are used, so that one script serves trees of any layout.
Figures depend on the CPU: record and compare on the same machine, at the same number of threads.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIGURES = (
    *("overall", "many", "medium", "few", "per_class", "sweep", "alpha", "alpha_rule", "tau"),
    *("mean_cos", "class_cos", "feature_norm", "weight_norm", "counts", "subset_sha256"),
    *("training_id", "ap", "ap_rare", "ap_common", "ap_frequent"),
)
"""Fields of a result that a change of structure must leave as they are, to the last digit."""

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
    """Run this Python with `words`; return what it printed."""
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
    """The figures of every run below `folder`, by the run's place in it."""
    found = {}
    for path in sorted(folder.rglob("result.json")):
        result = json.loads(path.read_text())
        place = str(path.parent.relative_to(folder))
        found[place] = {name: result[name] for name in FIGURES if name in result}
    return found


def embedded(data: str) -> Callable[[Path], Any]:
    """Every method on an embedded data set, two seeds."""

    def train(folder: Path) -> Any:
        words = ("train", data, "--method", "all", "--seeds", "2", "--device", "cpu")
        python("-m", "longtail", *words, "--out", "runs", cwd=folder)
        return results(folder / "runs")

    return train


def streamed(folder: Path) -> Any:
    """A folder of images, streamed; its model exported to ONNX and asked for logits."""
    python("-c", PHOTOS, "photos", cwd=folder)
    words: tuple[str, ...] = ("photos", "--method", "deconfound-tde", "--alpha", "auto", "--stream")
    words += ("--image-size", "16", "--augment", "resized-crop", "--backbone", "conv4")
    words += ("--epochs", "4", "--batch-size", "8", "--lr", "0.05", "--device", "cpu")
    python("-m", "longtail", "train", *words, "--out", "runs", cwd=folder)
    python("-m", "longtail", "export", "runs", "--to", "onnx", "-o", "model.onnx", cwd=folder)
    logits = python("-c", LOGITS, "model.onnx", "3", "16", "16", cwd=folder)
    return {"result": results(folder / "runs"), "onnx": json.loads(logits)}


def detector(folder: Path) -> Any:
    """A tiny detector on a few photographs' worth of generated boxes."""
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
    python(
        "-m", "longtail", "detect", "train", *words, "--workers", "1", "--out", "run", cwd=folder
    )
    found = json.loads((folder / "run" / "result.json").read_text())
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
    (root / f"instances_{split}.json").write_text(json.dumps(content))
"""


def estimators(folder: Path) -> Any:
    """Probabilities of the three scikit-learn classifiers."""
    return json.loads(python("-c", ESTIMATORS, cwd=folder))


def commands(folder: Path) -> Any:
    """The commands that help lists."""
    lines = python("-m", "longtail", "--help", cwd=folder).splitlines()
    return [line.split("  ")[1] for line in lines if line.startswith("  longtail ")]


PIECES: dict[str, Callable[[Path], Any]] = {
    "commands": commands,
    "estimators": estimators,
    "detector": detector,
    "streamed": streamed,
    "digits-lt": embedded("digits-lt"),
    "letters-lt": embedded("letters-lt"),
}


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Where two trees of plain values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = dict.fromkeys([*before, *after])
        pairs = [(f"{place}/{name}", before.get(name), after.get(name)) for name in names]
        return [line for name, a, b in pairs for line in differences(a, b, name)]
    return [] if before == after else [f"{place}: {str(before)[:100]} -> {str(after)[:100]}"]


def main(action: str, file: str, *pieces: str) -> None:
    """Record the golden results in `file`, or compare with it; of some `pieces`, or of all."""
    path = Path(file)
    known = json.loads(path.read_text()) if path.exists() else {}
    wrong = []
    for name in pieces or PIECES:
        with tempfile.TemporaryDirectory() as folder:
            found = json.loads(json.dumps(PIECES[name](Path(folder))))
        if action == "record":
            known[name] = found
            path.write_text(json.dumps(known, indent=1))
        else:
            wrong += differences(known[name], found, name)
        print(f"{name}: {action}ed" if action == "record" else f"{name}: compared", flush=True)
    sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
