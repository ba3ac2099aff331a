"""Write models to files: safetensors, ONNX, torch.export, or a pretrained folder.

Each file is compared with the run's own model, total - alpha * indirect (Eq. 8), before it is
written, and gets a model card beside it.
"""

import copy
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from longtail.core.errors import UserError, list_some, unknown_error
from longtail.core.files import check_own, write_bytes
from longtail.core.names import make_file_name
from longtail.core.seals import BLANK, KEY, MARK, seal
from longtail.nn.heads import NormalisedHead
from longtail.runs.folder import FILES, Run
from longtail.runs.store import CONFIG
from longtail.serving.calibrated import CalibratedModel
from longtail.serving.card import render_card
from longtail.serving.model import ModelDescription, ServedModel, fixed_alpha_error
from longtail.serving.read import (
    DESCRIPTION,
    MODEL_CONFIG,
    SEALED,
    WEIGHTS,
    OnnxNetwork,
    read_description,
    read_folder,
    require_packages,
)

BATCHES = (1, 2, 5)
"""Batch sizes at which a graph must agree with the model."""
TOLERANCE = 1e-4
"""Allowed error of a logit, relative to the largest."""
ALPHAS = (0.0, 1.5)
"""Alphas at which a graph with adjustable alpha must agree with the model."""
LARGEST_ONNX = 2**31 - 2**24
"""Most bytes of weights in one file: protobuf's limit, less room for the graph."""
EXPORTED = MARK + rb'|"longtail":"\{|\x08longtail\x12|/longtail\.json'
"""Regular expression that matches in every exported file.

Earlier versions wrote no seal, but a description as .safetensors, .onnx and .pt2 store it.
"""
CARD = "README.md"
CARD_MARK = rb"library_name: longtail"
"""Line of every model card."""
CHECKPOINT = "checkpoint.safetensors"
"""File of `retrofit`: the original network with new weights in its last layer."""


def export(
    run: Run | Path | str,
    to: str | None = None,
    out: Path | str | None = None,
    *,
    alpha: float | None = None,
    alpha_input: bool = False,
    background: str | None = None,
) -> Path:
    """Write the model of a finished run to one file, with a model card beside it.

    Args:
        run: a run or its folder, or a folder of `retrofit` or `save_pretrained`.
        to: safetensors, onnx or torch-export; by default by the suffix of `out`, else safetensors.
        out: the file; METHOD with the format's suffix, in the current folder, by default.
        alpha: alpha to fold into the weights; the run's own by default.
        alpha_input: keep alpha as a second input of the graph instead.
        background: class that keeps its total effect (Eq. 9); the run's own by default.

    Raises:
        UserError: if there is no model to export, or the file would differ from the run's model.
    """
    to = _choose_format(to, out)
    if alpha_input and alpha is not None:
        raise UserError(
            "--alpha folds it in and --alpha-input keeps it adjustable: pass one of them"
        )
    trained = read_folder(run.folder if isinstance(run, Run) else Path(run))
    if background is not None:
        trained = trained.with_background(background)
    if alpha_input and not trained.about.dial:
        raise fixed_alpha_error(trained.about)
    model = trained if alpha_input else trained.fold(alpha)
    path = _choose_file(trained.about, to, out)
    _, write = WRITERS[to]
    content, graph = write(model)
    _check(trained, model, graph, to)
    write_bytes(path, content)
    write_bytes(card_path(path), render_card(model.about, path.name).encode())
    return path


def _choose_format(to: str | None, out: Path | str | None) -> str:
    """Return the format to write: the given one, or that of the suffix of `out`."""
    if to is not None and to not in WRITERS:
        raise unknown_error("format", to, WRITERS, f"one of {', '.join(WRITERS)}")
    if to or out is None:
        return to or "safetensors"
    formats = {suffix: name for name, (suffix, _) in WRITERS.items()}
    if Path(out).suffix not in formats:
        raise UserError(f"{out} must end in one of {', '.join(formats)}")
    return formats[Path(out).suffix]


def _choose_file(about: ModelDescription, to: str, out: Path | str | None) -> Path:
    """Return the file to write in format `to`; refuse another suffix, and files of others."""
    suffix, _ = WRITERS[to]
    named = make_file_name(str(about.training.get("method", "model")))
    path = Path(f"{named}{suffix}" if out is None else out)
    if path.suffix != suffix:
        raise UserError(f"{path} must end in {suffix} to hold {to}")
    own_folder = any((path.parent / name).exists() for name in (CONFIG, MODEL_CONFIG))
    if own_folder and path.name in (*FILES, CHECKPOINT):
        raise UserError(f"{path} is a file of the run itself: choose another -o")
    check_own(path, EXPORTED, "longtail export")
    check_own(card_path(path), CARD_MARK, "longtail export")
    if out is None and path.exists():
        raise UserError(
            f"{path} exists: pass -o {path} to replace it, or another name to keep both"
        )
    return path


def card_path(path: Path) -> Path:
    """Return the path of the card beside a model file."""
    return path.with_name(f"{path.name}.md")


def save_pretrained(model: ServedModel, folder: Path | str) -> Path:
    """Write `model` to a folder in the layout of model hubs, which `from_pretrained` reads."""
    folder = Path(folder)
    check_folder(folder)
    content, graph = _safetensors(model)
    _check(model, model, graph, "safetensors")
    write_bytes(folder / WEIGHTS, content)
    write_bytes(folder / MODEL_CONFIG, (_describe(model, indent=2) + "\n").encode())
    write_bytes(folder / CARD, render_card(model.about, folder.resolve().name).encode())
    return folder


def check_folder(folder: Path) -> None:
    """Refuse a run's folder, a folder that holds only other programs' files, and a file's name.

    Long commands call this before they begin.
    """
    if folder.suffix in (suffix for suffix, _ in WRITERS.values()):
        name = folder.with_suffix("")
        raise UserError(
            f"{folder} is the name of a file, and a folder is to be written: choose {name}, and "
            f"longtail export {name} -o {folder} then writes the file"
        )
    if (folder / CONFIG).exists():
        raise UserError(f"{folder} is the folder of a run: choose another folder")
    if not folder.is_dir():
        return
    if read_description(folder / WEIGHTS):  # these are written first
        check_own(folder / CARD, CARD_MARK, "longtail")
        return
    if names := sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")):
        raise UserError(
            f"{folder} holds other files ({list_some(names)}) and no model of longtail: choose a "
            "new folder"
        )


def _describe(model: ServedModel, indent: int | None = None) -> str:
    return json.dumps({**model.about.to_json(), SEALED: True}, indent=indent)


Graph = Callable[..., Tensor]
"""A function that computes logits, loaded from the bytes that will be written."""


def _safetensors(model: ServedModel) -> tuple[bytes, Graph]:
    tensors = {**model.state_dict(), **model.stored.to_tensors()}
    weights = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    text = _describe(model)
    metadata = {"format": "pt", DESCRIPTION: text, KEY: BLANK}
    content = seal(_sort_metadata(safetensors.torch.save(weights, metadata)))
    about = ModelDescription.from_json(text, "the file")
    return content, ServedModel.load(about, safetensors.torch.load(content), "the file")


def _sort_metadata(content: bytes) -> bytes:
    """Sort the metadata of a safetensors file, whose order varies from call to call."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the tensors to 8 bytes
    return len(text).to_bytes(8, "little") + text + content[start:]


def _onnx(model: ServedModel) -> tuple[bytes, Graph]:
    require_packages("onnx", "onnxscript", "onnxruntime")
    size = sum(weight.nbytes for weight in model.state_dict().values())
    if size > LARGEST_ONNX:
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB, but one ONNX file holds 2: use --to safetensors"
        )
    inputs = "embeddings" if model.about.blueprint.embeddings else "images"
    graph = model if model.about.dial else CalibratedModel(model)  # one alpha is calibrated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings about its own code
        program = torch.onnx.export(
            graph,
            _make_inputs(model, 2),
            dynamo=True,
            dynamic_shapes=_dynamic_shapes(model),
            input_names=[inputs, "alpha"] if model.about.dial else [inputs],
            output_names=["logits"] if model.about.dial else ["logits", "probabilities"],
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces hold paths of this machine
    program.model.metadata_props[DESCRIPTION] = _describe(model)
    program.model.metadata_props[KEY] = BLANK
    content = seal(program.model_proto.SerializeToString())
    network = OnnxNetwork(content)
    if isinstance(graph, CalibratedModel):
        _check_probabilities(graph, network)
    return content, network


@torch.no_grad()
def _check_probabilities(graph: CalibratedModel, network: OnnxNetwork) -> None:
    """Raise an error if the probabilities of an ONNX graph are not those of the model."""
    inputs = _make_inputs(graph.model, BATCHES[-1])
    error = (network.find_probabilities(inputs[0]) - graph(*inputs)[1]).abs().max().item()
    if not error <= TOLERANCE:
        raise UserError(
            f"the probabilities of the onnx graph and of the model differ by {error:.2g}: nothing "
            "was written. --to safetensors keeps the weights as they are"
        )


def _torch_export(model: ServedModel) -> tuple[bytes, Graph]:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model, _make_inputs(model, 2), dynamic_shapes=_dynamic_shapes(model)
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it holds paths of this machine
        torch.export.save(program, content, extra_files={f"{DESCRIPTION}.json": _describe(model)})
        sealed = seal(_add_comment(content.getvalue(), BLANK.encode()))
        return sealed, torch.export.load(io.BytesIO(sealed)).module()


def _add_comment(archive: bytes, comment: bytes) -> bytes:
    """Add a comment to a zip file without one, whose last two bytes are the comment's length."""
    assert archive.endswith(b"\0\0")
    return archive[:-2] + len(comment).to_bytes(2, "little") + comment


WRITERS: dict[str, tuple[str, Callable[[ServedModel], tuple[bytes, Graph]]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
    "torch-export": (".pt2", _torch_export),
}
"""Suffix of each format, and the function that makes the bytes of a file and its graph."""


def _dynamic_shapes(model: ServedModel) -> tuple[dict[int, torch.export.Dim] | None, ...]:
    batch = {0: torch.export.Dim("batch")}
    return (batch, None) if model.about.dial else (batch,)


def _make_inputs(model: ServedModel, batch: int, alpha: float = 1.0) -> tuple[Tensor, ...]:
    """Make a batch of noise, the same on every call."""
    generator = torch.Generator().manual_seed(batch)
    shape = (batch, *model.about.blueprint.shape)
    if model.about.blueprint.embeddings:
        inputs = torch.rand(shape, generator=generator)
    else:
        inputs = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return (inputs, torch.tensor(alpha)) if model.about.dial else (inputs,)


@torch.no_grad()
def _check(trained: ServedModel, model: ServedModel, graph: Graph, what: str) -> None:
    """Raise an error if the `graph` of `model` differs from the `trained` model."""
    trained = copy.deepcopy(trained).cpu()
    for batch in BATCHES:
        for alpha in ALPHAS if model.about.dial else (model.about.alpha,):
            inputs = _make_inputs(model, batch, alpha or 0.0)
            has_alpha = isinstance(trained.head, NormalisedHead) and alpha is not None
            alpha_input = (torch.tensor(alpha),) if has_alpha else ()
            expected, got = trained(inputs[0], *alpha_input), graph(*inputs)
            if got.shape != expected.shape:
                raise UserError(
                    f"the {what} graph gives {tuple(got.shape)} for a batch of {batch}, the model "
                    f"{tuple(expected.shape)}: nothing was written"
                )
            error = (got - expected).abs().max().item()
            if not error <= TOLERANCE * max(1.0, expected.abs().max().item()):
                raise UserError(
                    f"the {what} graph and the model differ by {error:.2g} in a logit (batch "
                    f"{batch}): nothing was written. --to safetensors keeps the weights as they are"
                )
