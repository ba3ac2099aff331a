"""Runs to files that other programs take: safetensors, ONNX, torch.export, a pretrained folder.

What a file says is compared with the run's own model, total - alpha * indirect (Eq. 8), before it
is written; a card lies beside it.
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

from longtail.core.errors import UserError, unknown
from longtail.core.files import replace_atomically
from longtail.nn.heads import NormalisedHead
from longtail.runs.folder import FILES, Run
from longtail.serving.card import card
from longtail.serving.model import About, ServedModel, no_dial
from longtail.serving.read import CONFIG, DESCRIPTION, WEIGHTS, needs, onnx_session, read_folder

BATCHES = (1, 2, 5)
"""Sizes at which a graph must agree with the model."""
TOLERANCE = 1e-4
"""Of a logit, as a part of the largest."""
ALPHAS = (0.0, 1.5)
"""Where a graph with a dial must agree."""
LARGEST_ONNX = 2**31 - 2**24
"""Bytes of weights, with room for the graph: protobuf holds no more in one file."""
CARD = "README.md"
CHECKPOINT = "checkpoint.safetensors"
"""Of `retrofit`: the original network with the new weights in its last layer."""


def export(
    run: Run | Path | str,
    to: str = "safetensors",
    out: Path | str | None = None,
    *,
    alpha: float | None = None,
    alpha_input: bool = False,
) -> Path:
    """Write the model of a finished run to one file, and its card beside it.

    Args:
        run: the run or its folder, or that of `retrofit` or `save_pretrained`.
        to: safetensors, onnx or torch-export.
        out: the file; METHOD with the format's suffix, in this folder, by default.
        alpha: folded into the weights; the run's own by default.
        alpha_input: leave alpha free, as a second input of the graph, instead.

    Raises:
        UserError: if there is nothing to export, or what was made differs from the run's model.
    """
    if to not in WRITERS:
        raise unknown("format", to, WRITERS, f"one of {', '.join(WRITERS)}")
    if alpha_input and alpha is not None:
        raise UserError("--alpha fixes it and --alpha-input leaves it free: pass one of them")
    trained = read_folder(run.folder if isinstance(run, Run) else Path(run))
    if alpha_input and not trained.about.dial:
        raise no_dial(trained.about)
    shipped = trained if alpha_input else trained.folded(alpha)
    suffix, write = WRITERS[to]
    path = Path(f"{trained.about.training['method']}{suffix}" if out is None else out)
    if path.suffix != suffix:
        raise UserError(f"{path} is to hold {to}: its name must end in {suffix}")
    if out is None and path.exists():
        raise UserError(f"{path} is there already: -o {path} replaces it, another name keeps both")
    own_folder = any((path.parent / name).exists() for name in ("config.yaml", CONFIG))
    if own_folder and path.name in (*FILES, CHECKPOINT):
        raise UserError(f"{path} is a file of the run itself: choose another -o")
    content, graph = write(shipped)
    _check(trained, shipped, graph, to)
    _write(path, content)
    _write(card_of(path), card(shipped.about, path.name).encode())
    return path


def card_of(path: Path) -> Path:
    """Where the card of a model file lies."""
    return path.with_name(f"{path.name}.md")


def save_pretrained(shipped: ServedModel, folder: Path | str) -> Path:
    """Write `shipped` as a folder in the layout of model hubs, which `from_pretrained` reads."""
    folder = Path(folder)
    if (folder / "config.yaml").exists():
        raise UserError(f"{folder} is the folder of a run: choose another")
    content, graph = _safetensors(shipped)
    _check(shipped, shipped, graph, "safetensors")
    _write(folder / WEIGHTS, content)
    _write(folder / CONFIG, (_description(shipped, indent=2) + "\n").encode())
    _write(folder / CARD, card(shipped.about, folder.name).encode())
    return folder


def _write(path: Path, content: bytes) -> None:
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


def _description(shipped: ServedModel, indent: int | None = None) -> str:
    return json.dumps(shipped.about.to_json(), indent=indent)


Graph = Callable[..., Tensor]
"""What computes the logits, read back from what will be written."""


def _safetensors(shipped: ServedModel) -> tuple[bytes, Graph]:
    weights = {name: w.cpu().contiguous() for name, w in shipped.state_dict().items()}
    said = _description(shipped)
    content = safetensors.torch.save(weights, {"format": "pt", DESCRIPTION: said})
    again = ServedModel.build(About.from_json(said, "the file"), "the file")
    return content, again.take(safetensors.torch.load(content), "the file")


def _onnx(shipped: ServedModel) -> tuple[bytes, Graph]:
    needs("onnx", "onnxscript", "onnxruntime")
    size = sum(weight.nbytes for weight in shipped.state_dict().values())
    if size > LARGEST_ONNX:
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB and one ONNX file holds 2: use --to safetensors"
        )
    names = _input_names(shipped)
    sample, shapes = _sample(shipped, 2), _dynamic(shipped)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.onnx.export(
            shipped,
            sample,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=names,
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces, with the paths of this machine
    program.model.metadata_props[DESCRIPTION] = _description(shipped)
    content = program.model_proto.SerializeToString()
    session = onnx_session(content)

    def run(*inputs: Tensor) -> Tensor:
        feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return content, run


def _torch_export(shipped: ServedModel) -> tuple[bytes, Graph]:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            shipped, _sample(shipped, 2), dynamic_shapes=_dynamic(shipped)
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it has the paths of this machine
        described = {f"{DESCRIPTION}.json": _description(shipped)}
        torch.export.save(program, content, extra_files=described)
        content.seek(0)
        return content.getvalue(), torch.export.load(content).module()


WRITERS: dict[str, tuple[str, Callable[[ServedModel], tuple[bytes, Graph]]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
    "torch-export": (".pt2", _torch_export),
}
"""Format to its suffix and what makes the bytes of a file, with what they compute."""


def _input_names(shipped: ServedModel) -> list[str]:
    inputs = "embeddings" if shipped.about.blueprint.embeddings else "images"
    return [inputs, "alpha"] if shipped.about.dial else [inputs]


def _dynamic(shipped: ServedModel) -> tuple[dict[int, torch.export.Dim] | None, ...]:
    batch = {0: torch.export.Dim("batch")}
    return (batch, None) if shipped.about.dial else (batch,)


def _sample(shipped: ServedModel, batch: int, alpha: float = 1.0) -> tuple[Tensor, ...]:
    """Inputs of a batch of noise, always the same."""
    generator = torch.Generator().manual_seed(batch)
    shape = (batch, *shipped.about.blueprint.shape)
    if shipped.about.blueprint.embeddings:
        inputs = torch.rand(shape, generator=generator)
    else:
        inputs = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return (inputs, torch.tensor(alpha)) if shipped.about.dial else (inputs,)


@torch.no_grad()
def _check(trained: ServedModel, shipped: ServedModel, graph: Graph, what: str) -> None:
    """Refuse a `graph` of `shipped` that says something else than the `trained` model."""
    trained = copy.deepcopy(trained).cpu()
    for batch in BATCHES:
        for alpha in ALPHAS if shipped.about.dial else (shipped.about.alpha,):
            inputs = _sample(shipped, batch, alpha or 0.0)
            turned = isinstance(trained.head, NormalisedHead) and alpha is not None
            dial = (torch.tensor(alpha),) if turned else ()
            expected, got = trained(inputs[0], *dial), graph(*inputs)
            if got.shape != expected.shape:
                raise UserError(
                    f"the {what} graph gives {tuple(got.shape)} for a batch of {batch}, the model "
                    f"{tuple(expected.shape)}: nothing was written"
                )
            apart = (got - expected).abs().max().item()
            if not apart <= TOLERANCE * max(1.0, expected.abs().max().item()):
                raise UserError(
                    f"the {what} graph and the model differ by {apart:.2g} in a logit (batch "
                    f"{batch}): nothing was written. --to safetensors keeps the weights as they are"
                )
