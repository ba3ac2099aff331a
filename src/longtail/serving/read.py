"""Model files read without running anything that is in them.

safetensors and ONNX hold numbers and a graph. A torch.export archive may hold pickles, and its
shapes are evaluated as Python when torch loads it: only its raw weights and our description are
read here. Every other file, pickles above all, is refused unread.
"""

import json
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from longtail.core.errors import UserError
from longtail.core.files import read_tensors
from longtail.serving.model import About, ServedModel, read_run

DESCRIPTION = "longtail"
"""The key of what a model says of itself, in every format."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def read_folder(folder: Path) -> ServedModel:
    """The model of a run's folder, or of what `save_pretrained` wrote."""
    if (folder / "config.yaml").exists():
        return read_run(folder)
    if not (folder / CONFIG).exists() or not (folder / WEIGHTS).exists():
        raise UserError(
            f"{folder} is neither a run (no config.yaml) nor a saved model (no {CONFIG} with "
            f"{WEIGHTS})"
        )
    about = About.from_json((folder / CONFIG).read_text(), str(folder / CONFIG))
    return ServedModel.build(about, str(folder)).take(read_tensors(folder / WEIGHTS), str(folder))


def read_safetensors(path: Path) -> ServedModel:
    """The model of a file that longtail export wrote."""
    tensors, source = read_tensors(path), str(path)
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(DESCRIPTION)
    if text is None:
        raise UserError(
            f"{path} holds weights and does not say of which model: pass the folder of the run, or "
            "a file that longtail export wrote"
        )
    return ServedModel.build(About.from_json(text, source), source).take(tensors, source)


UNREADABLE = (
    *(KeyError, IndexError, ValueError, TypeError, AttributeError, OSError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError),  # the last: encrypted, or packed unheard-of
)
"""What reading a crafted archive may raise."""
TYPES = {torch.int64: 5, torch.float32: 7}
"""The numbers that torch.export has for the types of our weights."""


def read_archive(path: Path) -> ServedModel:
    """The model of a torch.export archive, rebuilt from its description and raw weights."""
    try:
        with zipfile.ZipFile(path) as archive:
            root = archive.namelist()[0].split("/")[0]
            text = archive.read(f"{root}/extra/{DESCRIPTION}.json").decode()
            config = archive.read(f"{root}/data/weights/model_weights_config.json")
            shipped = ServedModel.build(About.from_json(text, str(path)), str(path))
            expected = shipped.state_dict()
            weights = {
                name: _raw(archive.read(f"{root}/data/weights/{entry['path_name']}"), entry, like)
                for name, entry in json.loads(config)["config"].items()
                if (like := expected.get(name)) is not None
            }
    except UserError:
        raise
    except UNREADABLE as error:
        raise UserError(
            f"{path} is no torch.export archive of longtail export, or was cut short "
            f"({type(error).__name__}). Nothing of it was run"
        ) from None
    return shipped.take(weights, str(path))


def _raw(content: bytes, entry: dict[str, Any], like: Tensor) -> Tensor:
    """The bytes of one weight as a tensor of the shape and type of `like`."""
    if entry["use_pickle"] or len(content) != like.nbytes:
        raise ValueError("a pickle, or a weight of another size")
    said = entry["tensor_meta"]
    sizes, strides = ([axis["as_int"] for axis in said[name]] for name in ("sizes", "strides"))
    if (said["dtype"], sizes, strides) != (TYPES[like.dtype], [*like.shape], [*like.stride()]):
        raise ValueError("a weight of another type, or in another order")
    return torch.frombuffer(bytearray(content), dtype=like.dtype).reshape(like.shape)


def onnx_session(content: bytes) -> Any:
    """A session of onnxruntime for the bytes of a file, on the CPU."""
    needs("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors come as exceptions
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def needs(*packages: str) -> None:
    """Refuse to go on without the packages of the extra `onnx`."""
    for package in packages:
        if find_spec(package) is None:
            raise UserError(f"ONNX needs {package}, not installed: pip install longtail[onnx]")


def read_onnx(path: Path) -> tuple[About, Any]:
    """What an ONNX file says of itself, and a session of it."""
    try:
        # from bytes: a file cannot make the runtime read another one beside it
        session = onnx_session(path.read_bytes())
        text = session.get_modelmeta().custom_metadata_map.get(DESCRIPTION)
    except UserError:
        raise
    except Exception as error:  # the runtime has a class for each of its errors
        raise UserError(
            f"{path} is no ONNX model, or was cut short: {str(error).splitlines()[0]}"
        ) from None
    if text is None:
        raise UserError(f"{path} was not written by longtail export: run it with onnxruntime")
    about = About.from_json(text, str(path))
    if session.get_outputs()[0].shape[-1] != len(about.classes):
        raise UserError(f"{path} names {len(about.classes)} classes, and its graph has others")
    return about, session
