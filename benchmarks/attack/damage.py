"""Bit flips and cuts in every file of a run, an export and the cache of decoded images.

Each damaged file is opened in every way that reads it. An answer that differs from that of the
intact files, without a warning, is silent damage.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.attack.mutations import flip
from benchmarks.attack.runs import CLOCK, copy_run, digest, draw_report, predict, train
from benchmarks.attack.tries import Attack, Attempt
from benchmarks.attack.works import train_detector
from longtail.core.errors import UserError
from longtail.core.manifest import forget
from longtail.detection.run import DetectionRun
from longtail.runs.checkpoint import LAST, PREVIOUS
from longtail.runs.folder import FILES, Run
from longtail.runs.store import METRICS
from longtail.serving.evaluate import evaluate
from longtail.serving.verification import verify_all
from longtail.serving.write import export

PLACES = ("data", "files", "machine")
"""Options of a run that may change, because the results do not depend on them."""
EXPORTS = (
    *("model.safetensors", "model.onnx"),
    *("pretrained/model.safetensors", "pretrained/config.json"),
)


def list_attacks(templates: Path) -> Iterator[Attack]:
    """List the attacks: flips and cuts of what finished runs, exports and caches hold."""
    for change, damage in (("flip", flip), ("cut", cut)):
        yield Attack(f"{change} run", partial(_begin_run, templates, damage))
        yield Attack(f"{change} unfinished run", partial(_begin_unfinished, templates, damage))
        yield Attack(f"{change} export", partial(_begin_exports, templates, damage))
        yield Attack(f"{change} cache", partial(_begin_cache, templates, damage))
        yield Attack(f"{change} detector", partial(_begin_detector, templates, damage))
        yield Attack(f"{change}, then verify", partial(_begin_verify, templates, damage))


Damage = Callable[[bytes, Random], bytes]
Make = Callable[[Random], Attempt]


def cut(content: bytes, random: Random) -> bytes:
    """Cut off the end, or replace it with zeros as a crash of the system does."""
    place = random.randrange(len(content)) if content else 0
    kept = content[:place]
    return kept if random.random() < 0.5 else kept + bytes(len(content) - place)


def _begin_run(templates: Path, damage: Damage, folder: Path) -> Make:
    """Attack every file of a finished run."""
    run = copy_run(templates, folder)
    return _make_attempts(_list_files(run), damage, partial(_open_run, run), str(run))


def _open_run(run: Path) -> dict[str, Any]:
    """Open a finished run in every way."""
    exported = export(run, out=run.parent / "exported.safetensors")
    opened = Run.open(run)
    return {
        "result": opened.result,
        "environment": opened.environment,
        "metrics": opened.metrics,
        "predictions": opened.predictions.to_pylist(),
        "evaluation": {
            name: value for name, value in evaluate(run).to_json().items() if name not in CLOCK
        },
        "logits": predict(run),
        "report": draw_report(run),
        "export": hashlib.sha256(exported.read_bytes()).hexdigest(),
        "checkpoint": opened.load_checkpoint() is not None,
        "tables": [opened.verify(name).read_bytes() for name in ("sweep.csv", "per_class.csv")],
    }


def _begin_unfinished(templates: Path, damage: Damage, folder: Path) -> Make:
    """Attack a run that was killed before its evaluation, and resume it."""
    os.environ["LONGTAIL_CACHE"] = str(templates / "cache")

    def restore() -> Path:
        shutil.rmtree(folder / "run", ignore_errors=True)
        run = copy_run(templates, folder)
        for name in FILES[: FILES.index(PREVIOUS)]:
            (run / name).unlink(missing_ok=True)
            forget(run / name)
        forget(run / METRICS)
        return run

    def resume() -> dict[str, Any]:
        run = train(templates / "photos", folder / "run", resume=True)
        result = {name: value for name, value in run.result.items() if name not in CLOCK}
        return {"result": result, "weights": digest(run.load_model())}

    restore()
    expected = resume()

    def make(random: Random) -> Attempt:
        run = restore()
        path = random.choice([run / LAST, *_list_files(run)])
        path.write_bytes(damage(path.read_bytes(), random))
        return Attempt(resume, str(run), expected, excused=False)

    return make


def _begin_exports(templates: Path, damage: Damage, folder: Path) -> Make:
    """Attack exported models."""
    for name in EXPORTS:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(templates / name, folder / name)
    files = [folder / name for name in EXPORTS]

    def read_all() -> dict[str, Any]:
        opened = ("model.safetensors", "model.onnx", "pretrained")
        return {name: predict(folder / name) for name in opened}

    return _make_attempts(files, damage, read_all, str(folder))


def _begin_cache(templates: Path, damage: Damage, folder: Path) -> Make:
    """Attack the decoded images."""
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    run = copy_run(templates, folder)

    def read() -> dict[str, Any]:
        return {name: v for name, v in evaluate(run).to_json().items() if name not in CLOCK}

    expected = read()
    intact = {path: path.read_bytes() for path in _list_files(folder / "cache")}

    def make(random: Random) -> Attempt:
        for path, content in intact.items():
            path.write_bytes(content)
        path = random.choice(list(intact))
        path.write_bytes(damage(intact[path], random))
        return Attempt(read, "", expected, excused=False)

    return make


def _begin_detector(templates: Path, damage: Damage, folder: Path) -> Make:
    """Attack every file of a detector's run."""
    run = train_detector(templates, folder / "run", resume=False, overwrite=False).folder

    def read() -> dict[str, Any]:
        opened = DetectionRun.open(run)
        return {
            "options": {n: v for n, v in vars(opened.config).items() if n not in PLACES},
            "result": opened.result,
            "environment": opened.environment,
            "metrics": opened.metrics,
            "categories": opened.categories,
            "weights": digest(opened.load_model()),
            "classes": opened.classes,
            "checkpoint": opened.load_checkpoint() is not None,
        }

    return _make_attempts(_list_files(run), damage, read, str(run))


def _begin_verify(templates: Path, damage: Damage, folder: Path) -> Make:
    """Attack everything that longtail verify knows: it must find each damage."""
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    run = copy_run(templates, folder)
    evaluate(run)
    places = [run, *_list_files(folder / "cache")]
    for name in (*EXPORTS, "model.pt2"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(templates / name, folder / name)
    places += [folder / "pretrained", *(folder / name for name in (*EXPORTS[:2], "model.pt2"))]

    def read() -> str:
        if damaged := [each for place in places for each in verify_all(place).damage]:
            raise UserError(damaged[0])
        return "nothing found"

    assert read() == "nothing found"
    files = [file for place in places for file in _list_files(place)]
    intact = {path: path.read_bytes() for path in files}

    def make(random: Random) -> Attempt:
        for path, content in intact.items():
            path.write_bytes(content)
        path = random.choice(files)
        changed = damage(intact[path], random)
        path.write_bytes(changed)
        same = changed == intact[path]  # the end was zeros before
        return Attempt(read, str(folder), "nothing found" if same else "damage found")

    return make


def _make_attempts(files: list[Path], damage: Damage, read: Callable[[], Any], names: str) -> Make:
    """Damage one file at a time; the others are intact."""
    expected, intact = read(), {path: path.read_bytes() for path in files}

    def make(random: Random) -> Attempt:
        for path, content in intact.items():
            path.write_bytes(content)
        path = random.choice(files)
        path.write_bytes(damage(intact[path], random))
        return Attempt(read, names, expected, excused=False)

    return make


def _list_files(folder: Path) -> list[Path]:
    """List the files below a folder that hold something; an empty lock has nothing to lose."""
    inside = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    files = (path for path in inside if path.is_file())
    return [path for path in files if path.stat().st_size]
