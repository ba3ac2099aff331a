"""Read model files without running any code in them.

safetensors files hold only numbers, ONNX files numbers and a graph. `load_model` refuses all other
files, pickles above all, without opening them.
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longtail.core.environment import versions
from longtail.core.errors import UserError
from longtail.core.files import read_tensors
from longtail.core.manifest import DamageError
from longtail.core.plain import check_fields, read_json, read_text
from longtail.core.seals import check_seal, check_sealed_file
from longtail.evaluation import tables
from longtail.evaluation.stored import check_result
from longtail.evaluation.trust import check_trust
from longtail.runs.folder import Run
from longtail.runs.places import describe_runs_below
from longtail.runs.store import CLASS_MEANS, CONFIG
from longtail.serving.model import WAY_OUT, ModelDescription, ServedModel, read_thresholds
from longtail.training.model import Blueprint

DESCRIPTION = "longtail"
"""Key of the model's description in the metadata of every format."""
MODEL_CONFIG, WEIGHTS = "config.json", "model.safetensors"
SEALED = "sealed"
"""Key of a description whose file holds its own hash."""
TRAINING = (
    *("method", "data", "ratio", "seed", "epochs", "recipe_id", "training_id", "weights_sha256"),
    *("subset_sha256", "held_out"),
)
"""Fields of a run's result that describe the training of its model."""

NEEDED = (*TRAINING, *tables.SPLITS, "alpha", "counts", "evaluated_on", "per_class", "sweep")
"""Fields of a run's result that the description of its model holds."""
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".tar")
"""Suffixes of files that torch and others write as pickles."""
EVALUATE_AGAIN = "Delete it, and longtail train --resume evaluates the run again"


def read_model(path: Path) -> ServedModel:
    """Read the model of a folder or a .safetensors file; do not open any other file."""
    if path.is_dir():
        return read_folder(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix == ".pt2":
        raise UserError(
            f"{path} was not opened: .pt2 files are for torch.export.load. Pass the run folder, or "
            "a .safetensors file of longtail export"
        )
    reason = (
        f"{path} was not opened: {path.suffix} files may be pickles, which can run code when loaded"
        if path.suffix.lower() in PICKLES
        else f"{path} is not a file that longtail reads"
    )
    raise UserError(
        f"{reason}. Pass a run folder, a .safetensors or .onnx file of longtail export, or a "
        "folder of save_pretrained"
    )


def read_folder(folder: Path) -> ServedModel:
    """Read the model of a run folder, or of a folder that `save_pretrained` wrote."""
    if (folder / CONFIG).exists():
        return read_run(folder)
    if not folder.exists():
        raise UserError(f"{folder} does not exist: pass a run, or a folder of save_pretrained")
    if folder.is_file():
        raise UserError(
            f"{folder} is a file: pass a run, or a folder of save_pretrained; "
            "lt.load_model(FILE).save_pretrained(FOLDER) makes one from an export"
        )
    if not is_saved(folder):
        raise UserError(
            f"{folder} is neither a run (no {CONFIG}) nor a saved model (no {MODEL_CONFIG} with "
            f"{WEIGHTS}){describe_runs_below(folder)}"
        )
    about = check_description(folder)
    return ServedModel.load(about, read_tensors(folder / WEIGHTS), str(folder))


def is_saved(folder: Path) -> bool:
    """Return whether a folder looks like one that `save_pretrained` wrote."""
    return (folder / MODEL_CONFIG).exists() and (folder / WEIGHTS).exists()


def name_kind(path: Path) -> str | None:
    """Return what kind of model a path looks like, as in 'a run'; None if like none."""
    try:
        if (path / CONFIG).exists():
            return "a run"
        if is_saved(path):
            return "a saved model"
        is_file = path.suffix in (".safetensors", ".onnx") and path.is_file()
    except OSError:  # no right to look there, or too long a name
        return None
    return "a model file" if is_file else None


def read_run(run: Run | Path | str) -> ServedModel:
    """Read the model of a finished run; its alpha, if it has one, is adjustable."""
    run = Run.open(run)
    result, file = run.result, run.verify("model.json")
    if not run.has(file.name):
        raise UserError(
            f"{run.folder} was written by an older version and has no model.json: delete its "
            "result.json, then longtail train --resume evaluates it again and writes both"
        )
    try:
        tree = read_json(file)
    except UserError as error:
        raise UserError(f"{error}. Train again with longtail train --overwrite") from None
    blueprint = Blueprint.from_json(tree, str(file))
    source = f"{run.folder}/result.json"
    check_fields(result, dict.fromkeys(NEEDED, Any), source, EVALUATE_AGAIN)
    check_result(result, source, EVALUATE_AGAIN)
    weights = run.load_model()
    if run.has("head.safetensors"):
        backbone = {name: w for name, w in weights.items() if name.startswith("backbone.")}
        head = run.load_model("head.safetensors")
        weights = {**backbone, **{f"head.{name}": w for name, w in head.items()}}
    if run.has(CLASS_MEANS):
        weights = {**weights, **run.load_model(CLASS_MEANS)}
    about = ModelDescription(
        blueprint=blueprint,
        classes=tuple(run.classes),
        counts=tuple(result["counts"]),
        alpha=result["alpha"],
        dial=result["alpha"] is not None,
        metrics={
            "evaluated_on": result["evaluated_on"],
            "alpha": result["alpha"],
            **{name: result[name] for name in tables.SPLITS},
            "class_mean": tables.class_mean(result["per_class"]),
            **({"answers": _pick_splits(result["answers"])} if "answers" in result else {}),
            "sweep": result["sweep"],
        },
        training={name: result[name] for name in TRAINING if name in result} | _pick_start(result),
        version=versions()["longtail"],
        trust=check_trust(result, source),
        thresholds=read_thresholds(result),
        background=result.get("background", ""),
    )
    return ServedModel.load(about, weights, str(run.folder))


def _pick_start(result: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the post-hoc rule and the weights that a training started from, where it has them."""
    found = {"rule": result.get("rule"), "weights": result.get("files", {}).get("weights")}
    return {name: value for name, value in found.items() if value is not None}


def _pick_splits(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answers[name] for name in (*tables.SPLITS, "class_mean")}


def check_description(folder: Path) -> ModelDescription:
    """Read the description in a folder of `save_pretrained`; it must be that of its weights."""
    path = folder / MODEL_CONFIG
    try:
        text = read_text(path)
    except UserError as error:
        raise DamageError(f"{error}. {WAY_OUT}") from None
    about = ModelDescription.from_json(text, str(path))
    own = check_safetensors(folder / WEIGHTS)
    if is_sealed(own) and json.loads(text) != json.loads(own or ""):
        raise DamageError(
            f"{path} was changed: {WEIGHTS} beside it holds another description of the model. "
            f"{WAY_OUT}"
        )
    return about


def check_safetensors(path: Path) -> str | None:
    """Return the description in a safetensors file, if any; refuse a file that has changed."""
    sealed = check_sealed_file(path, WAY_OUT)
    text = read_description(path)
    _check_has_seal(text, sealed, path)
    return text


def read_description(path: Path) -> str | None:
    """Return the description in a safetensors file; None if it has none or cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            text: str | None = (file.metadata() or {}).get(DESCRIPTION)
    except (SafetensorError, OSError):
        return None  # whoever reads the tensors reports it
    return text


def _check_has_seal(text: str | None, sealed: bool, path: Path) -> None:
    if is_sealed(text) and not sealed:
        raise DamageError(f"{path} is damaged: its SHA-256 is gone. {WAY_OUT}")


def is_sealed(text: str | None) -> bool:
    """Return whether a description says that its file holds its own hash."""
    try:
        return bool(json.loads(text or "{}").get(SEALED))
    except (ValueError, AttributeError, RecursionError):
        return False  # `ModelDescription.from_json` reports it


def read_safetensors(path: Path) -> ServedModel:
    """Read the model of a .safetensors file that longtail export wrote."""
    text = check_safetensors(path)
    tensors = read_tensors(path)
    if text is None:
        raise UserError(
            f"{path} holds weights without a description of the model: pass the folder of the run, "
            "or a file that longtail export wrote"
        )
    return ServedModel.load(ModelDescription.from_json(text, str(path)), tensors, str(path))


class OnnxNetwork:
    """The graph of an ONNX file, given as bytes, in an onnxruntime session on the CPU."""

    def __init__(self, content: bytes):
        require_packages("onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, not logged
        device = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(content, options, providers=device)
        self.names = [node.name for node in self.session.get_inputs()]

    def __call__(self, inputs: Tensor, alpha: Tensor | float | None = None) -> Tensor:
        """Return logits (B, classes)."""
        values = (inputs.numpy(), np.array(float(alpha or 0.0), dtype=np.float32))
        feed = dict(zip(self.names, values, strict=False))  # alpha only if it is an input
        return torch.from_numpy(self.session.run(None, feed)[0])

    def find_probabilities(self, inputs: Tensor) -> Tensor:
        """Return the second output (B, classes) of a graph without an alpha."""
        return torch.from_numpy(
            self.session.run(["probabilities"], {self.names[0]: inputs.numpy()})[0]
        )


def require_packages(*packages: str) -> None:
    """Raise an error if a package of the extra `onnx` is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise UserError(
                f"ONNX needs {package}, which is not installed: pip install longtail[onnx]"
            )


def read_onnx(path: Path) -> tuple[ModelDescription, OnnxNetwork]:
    """Read the description and the graph of an ONNX file."""
    text, network = open_onnx(path)
    if text is None:
        raise UserError(f"{path} was not written by longtail export: run it with onnxruntime")
    about = ModelDescription.from_json(text, str(path))
    if network.session.get_outputs()[0].shape[-1] != len(about.classes):
        raise UserError(f"{path} names {len(about.classes)} classes, but its graph has others")
    return about, network


def open_onnx(path: Path) -> tuple[str | None, OnnxNetwork]:
    """Open an ONNX file of any program; return the description in it, if any, and the graph."""
    try:
        # from bytes, so that the file cannot make the runtime read other files
        content = path.read_bytes()
        sealed = check_seal(content, str(path), WAY_OUT)
        network = OnnxNetwork(content)
        text = network.session.get_modelmeta().custom_metadata_map.get(DESCRIPTION)
    except UserError:
        raise
    except Exception as error:  # onnxruntime raises many classes without a common base
        reason = str(error).splitlines()[0]
        if type(error).__name__ in ("InvalidProtobuf", "InvalidArgument"):
            raise DamageError(f"{path} is not an ONNX model, or is truncated: {reason}") from None
        raise UserError(f"{path} is an ONNX model that cannot run here: {reason}") from None
    _check_has_seal(text, sealed, path)
    return text, network
