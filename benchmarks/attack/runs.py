"""Files that longtail wrote, run folders and exports, to be fuzzed as in `attack/readers.py`.

A small classifier is trained once; each process works on its own copy.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.attack.grammar import IMAGES, encode_image
from benchmarks.attack.mutations import (
    mutate_bytes,
    mutate_json,
    mutate_json_lines,
    mutate_tree,
    mutate_yaml,
)
from benchmarks.attack.tries import Attack, Attempt
from longtail.core.errors import UserError
from longtail.core.files import read_tensors, write_tensors
from longtail.core.manifest import NAME as MANIFEST
from longtail.core.seals import DIGITS, MARK, seal
from longtail.data.base import ClassCounts
from longtail.evaluation.trust import describe_trust
from longtail.methods.base import HeldOut, Model
from longtail.reporting.page import report
from longtail.runs.compare import read
from longtail.runs.fit import fit
from longtail.runs.folder import Run
from longtail.serving.adapt import adapt
from longtail.serving.evaluate import evaluate
from longtail.serving.extend import extend
from longtail.serving.model import ServedModel
from longtail.serving.network import TorchNetwork
from longtail.serving.predictor import Predictor, load_model
from longtail.serving.read import WEIGHTS, read_run
from longtail.serving.verification import verify_all
from longtail.serving.write import export

EPOCHS = 2
CLOCK = ("seconds", "capture_seconds", "images_per_second", "git", "training_id")
"""Fields of a result that depend on when it was made."""
UNVERIFIED = 0.75
"""Share of the changed files whose hash is gone or fits, so that their reader sees the change."""


@cache
def make_templates(folder: Path) -> Path:
    """Train a run in `folder`/run, and export it in every format; return `folder`."""
    data = folder / "photos"
    for number, image in enumerate(IMAGES):
        for part in ("train", "test"):
            (data / part / image).parent.mkdir(parents=True, exist_ok=True)
            seed = number if part == "train" else 100 + number
            (data / part / image).write_bytes(encode_image(seed, "png", 16))
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    train(data, folder / "run")
    for file in ("model.safetensors", "model.onnx", "model.pt2"):
        export(folder / "run", out=folder / file)
    load_model(folder / "run").save_pretrained(folder / "pretrained", alpha_input=True)
    shutil.copytree(folder / "pretrained", folder / "bare")
    write_tensors(folder / "bare" / WEIGHTS, read_tensors(folder / "pretrained" / WEIGHTS))
    make_trusted(folder).save_pretrained(folder / "trusted")
    write_tensors(folder / "trusted" / WEIGHTS, read_tensors(folder / "trusted" / WEIGHTS))
    return folder


@cache
def make_trusted(templates: Path) -> Predictor:
    """Give the model of the templates a calibration, from features of noise."""
    served = read_run(templates / "run")
    head = served.head
    random = torch.Generator().manual_seed(0)
    features = torch.randn(60, head.dim, generator=random)
    labels = torch.arange(60) % head.classes
    with torch.no_grad():
        trust = describe_trust(
            *(head(features), features, labels, ClassCounts(served.about.counts)),
            class_means=served.stored.class_means,
        )
    about = replace(served.about, trust=trust)
    stored = replace(served.stored, held_out=HeldOut(features, labels))
    model = ServedModel(Model(served.backbone, head), about, stored)
    return Predictor(about, TorchNetwork(model, "cpu"))


def train(data: Path, out: Path, **options: Any) -> Run:
    """Train a classifier of 16x16 photographs in a second."""
    small: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 3, "lr": 0.01, "image_size": 16}
    small |= {"backbone": "conv4", "device": "cpu", "save_seconds": 0.0, "augment": "crop"}
    made = fit(data, "deconfound-tde", out=out, progress=False, **(small | options))
    assert isinstance(made, Run)
    return made


def predict(path: Path) -> list[float]:
    """Load a model, and compute logits of a fixed picture."""
    model = load_model(path)
    inputs = torch.zeros(1, *model.about.blueprint.shape, dtype=torch.uint8)
    return [round(value, 4) for value in model.logits(inputs).flatten().tolist()]


def answer(path: Path) -> None:
    """Load a model that knows its certainty, and use all that it knows."""
    model = load_model(path)
    pictures = torch.zeros(20, *model.about.blueprint.shape, dtype=torch.uint8).numpy()
    model.predict(list(pictures), sets=0.9, abstain=2, adapt=True)
    export(path, out=path.parent / "exported.safetensors")
    adapt(model, uniform=True, out=path.parent / "adapted")
    extend(model, {"dragonfly": list(pictures[:2])}, out=path.parent / "extended")


def draw_report(run: Path) -> str:
    """Make the report of a run, and return the page."""
    out = run.parent / "report.html"
    return report([run], out).read_text(encoding="utf-8")


def _open_result(run: Path) -> None:
    read(run)
    predict(run)
    draw_report(run)


def _open_environment(run: Path) -> tuple[Any, ...]:
    opened = Run.open(run)
    return opened.made_with, opened.weights_id


def _open_checkpoint(run: Path) -> None:
    """Resume a run that has everything but its last evaluation."""
    (run / "result.json").unlink(missing_ok=True)
    Run.open(run).load_checkpoint()
    train(run.parent / "photos", run, resume=True)


def _evaluate(run: Path) -> float | None:
    return evaluate(run).metrics.accuracy.overall


def _read_predictions(run: Path) -> int:
    return len(Run.open(run).predictions)


def mutate_manifest(content: bytes, random: Random) -> bytes:
    """Change the tree of a manifest, and give it the hash that fits."""
    tree = {name: value for name, value in json.loads(content).items() if name != "sha256"}
    changed = mutate_tree(tree, random)
    if not isinstance(changed, dict):
        return json.dumps(changed).encode()
    own = hashlib.sha256(json.dumps(changed).encode()).hexdigest()
    return json.dumps({**changed, "sha256": own}, indent=1).encode() + b"\n"


def _verify_all(run: Path) -> None:
    if damage := verify_all(run).damage:
        raise UserError(damage[0])


def mutate_unchecked_lines(content: bytes, random: Random) -> bytes:
    """Change a line of JSON after its checksums are gone, as in runs of older versions."""
    return mutate_json_lines(re.sub(rb', "check": "\w+"', b"", content), random)


JSON = (mutate_bytes, mutate_json, mutate_json)
BYTES = (mutate_bytes,)
RUN_FILES: dict[str, tuple[Any, Callable[[Path], Any]]] = {
    "config.yaml": ((mutate_bytes, mutate_yaml), _evaluate),
    "env.json": (JSON, _open_environment),
    "metrics.jsonl": ((mutate_bytes, mutate_json_lines, mutate_unchecked_lines), draw_report),
    "model.json": (JSON, predict),
    "result.json": (JSON, _open_result),
    "per_class.csv": (BYTES, _open_result),
    "slider.json": (JSON, draw_report),
    "predictions.parquet": (BYTES, _read_predictions),
    "examples.parquet": (BYTES, draw_report),
    "model.safetensors": (BYTES, predict),
    "class_means.safetensors": (BYTES, predict),
    "last.pt": (BYTES, _open_checkpoint),
    "manifest.json": ((mutate_bytes, mutate_manifest, mutate_manifest), _verify_all),
}
"""How each file of a run is mutated, and what reads it."""
EXPORTS: dict[str, tuple[Any, ...]] = {
    "model.safetensors": BYTES,
    "model.onnx": BYTES,
    "model.pt2": BYTES,
    "pretrained/config.json": JSON,
    "bare/config.json": JSON,
    "pretrained/model.safetensors": BYTES,
    "trusted/config.json": (mutate_json,),
}


def list_attacks(templates: Path) -> Iterator[Attack]:
    """List the attacks on every file of a run and on every export."""
    for name, (mutations, opens) in RUN_FILES.items():
        yield Attack(f"run {name}", partial(_begin_run, templates, name, mutations, opens))
    for name, mutations in EXPORTS.items():
        yield Attack(f"export {name}", partial(_begin_export, templates, name, mutations))


def copy_run(templates: Path, folder: Path) -> Path:
    """Copy the run of the templates, whose photographs lie where they lay."""
    shutil.copytree(templates / "run", folder / "run", dirs_exist_ok=True)
    if not (folder / "photos").exists():
        (folder / "photos").symlink_to(templates / "photos")
    return folder / "run"


def _begin_run(
    templates: Path,
    name: str,
    mutations: tuple[Any, ...],
    opens: Callable[[Path], Any],
    folder: Path,
) -> Callable[[Random], Attempt]:
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    content = (templates / "run" / name).read_bytes()

    def make(random: Random) -> Attempt:
        run = copy_run(templates, folder)
        if random.random() < UNVERIFIED:
            (run / MANIFEST).unlink()
        path = run / name
        path.unlink(missing_ok=True)
        if random.random() < 0.01:
            path.mkdir()
        else:
            path.write_bytes(_change(content, mutations, random))
        return Attempt(partial(_open_and_restore, opens, run, path), str(run))

    return make


def _open_and_restore(opens: Callable[[Path], Any], run: Path, path: Path) -> Any:
    try:
        return opens(run)
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _begin_export(
    templates: Path, name: str, mutations: tuple[Any, ...], folder: Path
) -> Callable[[Random], Attempt]:
    for saved in ("pretrained", "bare", "trusted"):
        shutil.copytree(templates / saved, folder / saved)
    content, path = (templates / name).read_bytes(), folder / name
    opened = path.parent if "/" in name else path
    opens, named = (answer, "") if "trusted" in name else (predict, opened.name)

    def make(random: Random) -> Attempt:
        changed = _change(content, mutations, random)
        path.write_bytes(_seal_again(changed) if random.random() < UNVERIFIED else changed)
        return Attempt(partial(opens, opened), named)

    return make


def _seal_again(content: bytes) -> bytes:
    """Give a changed file the hash that fits, if it has one."""
    start = content.find(MARK) + len(MARK)
    if start < len(MARK) or start + DIGITS > len(content):
        return content
    return seal(content[:start] + b"0" * DIGITS + content[start + DIGITS :])


def _change(content: bytes, mutations: tuple[Any, ...], random: Random) -> bytes:
    if random.random() < 0.02:
        return random.choice((b"", b"null", b"{}", b"[]", b'"x"', b"0"))
    changed: bytes = random.choice(mutations)(content, random)
    return changed


def digest(tree: Any) -> str:
    """Hash tensors and plain values of any nesting."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            sha.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for name, inner in value.items():
                sha.update(str(name).encode())
                add(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                add(inner)
        else:
            sha.update(repr(value).encode())

    add(tree)
    return sha.hexdigest()
