"""Read model files without running any code in them.

safetensors files hold only numbers, ONNX files numbers and a graph. `load_model` refuses all other
files, pickles above all, without opening them.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import safe_open

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
