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
from longtail.serving.model import ModelDescription, ServedModel, read_run

DESCRIPTION = "longtail"
"""Key of the model's description in the metadata of every format."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def read_folder(folder: Path) -> ServedModel:
    """Read the model of a run folder, or of a folder that `save_pretrained` wrote."""
    if (folder / "config.yaml").exists():
        return read_run(folder)
    if not (folder / CONFIG).exists() or not (folder / WEIGHTS).exists():
        raise UserError(
            f"{folder} is neither a run (no config.yaml) nor a saved model (no {CONFIG} with "
            f"{WEIGHTS})"
        )
    about = ModelDescription.from_json((folder / CONFIG).read_text(), str(folder / CONFIG))
    model = ServedModel.build(about, str(folder))
    return model.load_weights(read_tensors(folder / WEIGHTS), str(folder))


def read_safetensors(path: Path) -> ServedModel:
    """Read the model of a .safetensors file that longtail export wrote."""
    tensors, source = read_tensors(path), str(path)
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(DESCRIPTION)
    if text is None:
        raise UserError(
            f"{path} holds weights without a description of the model: pass the folder of the run, "
            "or a file that longtail export wrote"
        )
    model = ServedModel.build(ModelDescription.from_json(text, source), source)
    return model.load_weights(tensors, source)


def start_onnx_session(content: bytes) -> Any:
    """Start an onnxruntime session on the CPU for the bytes of a file."""
    require_packages("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not logged
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def require_packages(*packages: str) -> None:
    """Raise an error if a package of the extra `onnx` is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise UserError(
                f"ONNX needs {package}, which is not installed: pip install longtail[onnx]"
            )


def read_onnx(path: Path) -> tuple[ModelDescription, Any]:
    """Read the description in an ONNX file and start a session for it."""
    try:
        # from bytes, so that the file cannot make the runtime read other files
        session = start_onnx_session(path.read_bytes())
        text = session.get_modelmeta().custom_metadata_map.get(DESCRIPTION)
    except UserError:
        raise
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise UserError(
            f"{path} is not an ONNX model, or is truncated: {str(error).splitlines()[0]}"
        ) from None
    if text is None:
        raise UserError(f"{path} was not written by longtail export: run it with onnxruntime")
    about = ModelDescription.from_json(text, str(path))
    if session.get_outputs()[0].shape[-1] != len(about.classes):
        raise UserError(f"{path} names {len(about.classes)} classes, but its graph has others")
    return about, session
