"""A model that is ready to use: image files, arrays or embeddings in, names and probabilities out.

Shapes: B inputs at a time, images (C, H, W) uint8, embeddings (D,).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.errors import UserError, unknown
from longtail.data.decoding.images import Blob, decode_all
from longtail.nn.heads import check_alpha
from longtail.runs.folder import Run
from longtail.serving import write as exports
from longtail.serving.model import About, ServedModel, no_dial
from longtail.serving.read import read_folder, read_onnx, read_safetensors

BATCH = 64
Picture = str | Path | bytes | Image.Image | NDArray[Any] | Tensor
"""A file, its bytes, an open image, uint8 pixels (H, W), (H, W, C) or (C, H, W), an embedding."""


@dataclass(frozen=True)
class Prediction:
    """What a model says of one input."""

    name: str
    probability: float
    top: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, best first."""


class Network(Protocol):
    """What computes: a batch and alpha to logits (B, classes)."""

    def __call__(self, inputs: Tensor, alpha: float | None) -> Tensor:
        """Logits on the CPU."""


class Predictor:
    """A trained model with the names of its classes; `load_model` makes one."""

    def __init__(self, about: About, network: Network):
        self.about = about
        self._network = network
        self._alpha = about.alpha

    def __repr__(self) -> str:
        method, alpha = self.about.training.get("method"), self.alpha
        return f"Predictor({method}, {len(self.classes)} classes, alpha={alpha})"

    @staticmethod
    def from_pretrained(folder: Path | str) -> "Predictor":
        """What `save_pretrained` wrote; a folder on this machine, nothing is fetched."""
        if not Path(folder).is_dir():
            raise UserError(f"{folder} is no folder: models are read from disk, none is fetched")
        return load_model(folder)

    def save_pretrained(self, folder: Path | str, *, alpha_input: bool = False) -> Path:
        """Write config.json, model.safetensors and a card, the layout of model hubs.

        Args:
            folder: where to.
            alpha_input: leave alpha free, at first where it stands; else it is folded in.
        """
        if not isinstance(self._network, TorchNetwork):
            raise UserError("an ONNX file has a graph and no weights to save: load the run instead")
        shipped = self._network.shipped
        if not alpha_input:
            return exports.save_pretrained(shipped.folded(self.alpha), folder)
        if not self.about.dial or self.alpha is None:
            raise no_dial(self.about)
        return exports.save_pretrained(shipped.turned(self.alpha), folder)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits."""
        return self.about.classes

    @property
    def alpha(self) -> float | None:
        """How much of the indirect effect is taken away; may be set where the model has a dial."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        if not self.about.dial and value != self._alpha:
            raise no_dial(self.about)
        self._alpha = check_alpha(value)

    def logits(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        """Logits (N, classes) of uint8 images (N, C, H, W), or of embeddings (N, D)."""
        if not isinstance(inputs, Tensor):  # torch takes no array that is read-only or reversed
            inputs = torch.from_numpy(np.require(inputs, requirements=("C", "W")))
        blueprint = self.about.blueprint
        kind = torch.float32 if blueprint.embeddings else torch.uint8
        if tuple(inputs.shape[1:]) != blueprint.shape or inputs.dtype != kind:
            raise UserError(
                f"{inputs.dtype} of shape {tuple(inputs.shape)}: this model takes {kind} (N, "
                f"{', '.join(map(str, blueprint.shape))})"
            )
        parts = [self._network(part, self._alpha) for part in inputs.split(BATCH)]
        return torch.cat(parts) if parts else torch.empty(0, len(self.classes))

    def predict(self, images: Picture | Iterable[Picture], *, top: int = 5) -> list[Prediction]:
        """Names and probabilities of every input, in their order.

        Args:
            images: files, arrays or PIL images, or one of them; for a model of embeddings, their
                rows, or one. An array of up to 3 dimensions is one image.
            top: classes to name for each.

        Raises:
            UserError: if one cannot be read; `stream` goes on instead.
        """
        one = isinstance(images, (str, Path, bytes, Image.Image))
        if isinstance(images, (np.ndarray, Tensor)):
            one = images.ndim <= len(self.about.blueprint.shape)
        several = cast(Iterable[Picture], [images] if one else images)
        found = []
        for place, prediction in enumerate(self.stream(several, top=top)):
            if isinstance(prediction, str):
                raise UserError(f"input {place} cannot be read: {prediction}")
            found.append(prediction)
        return found

    def stream(self, images: Iterable[Picture], *, top: int = 5) -> Iterator[Prediction | str]:
        """Predictions as they come, in order; the reason in place of one that cannot be read."""
        if top < 1:
            raise UserError(f"top {top}: name at least one class")
        rows = self._rows(images)
        while batch := list(islice(rows, BATCH)):
            whole = [row for row in batch if not isinstance(row, str)]
            named = iter(self._named(self.logits(np.stack(whole)), top) if whole else [])
            yield from (row if isinstance(row, str) else next(named) for row in batch)

    def _named(self, logits: Tensor, top: int) -> list[Prediction]:
        best = logits.softmax(1).topk(min(top, len(self.classes)))
        found = []
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            ranked = tuple(
                (self.classes[c], value) for c, value in zip(places, values, strict=True)
            )
            found.append(Prediction(*ranked[0], ranked))
        return found

    def _rows(self, images: Iterable[Picture]) -> Iterator[NDArray[Any] | str]:
        """Each input as the model takes it, or why it cannot."""
        if self.about.blueprint.embeddings:
            yield from (_vector(row, self.about.blueprint.shape[0]) for row in images)
            return
        channels, height, width = self.about.blueprint.shape
        wrong: dict[int, str] = {}

        def blobs() -> Iterator[Blob]:
            for place, picture in enumerate(images):
                try:
                    yield _blob(picture)
                except UserError as error:
                    wrong[place] = str(error)
                    yield b""  # no image either, but in its place

        for place, pixels in enumerate(decode_all(blobs(), (height, width))):
            pixels = wrong.pop(place, pixels)
            if not isinstance(pixels, str) and channels == 1:
                colour = Image.fromarray(pixels.transpose(1, 2, 0))
                pixels = np.asarray(colour.convert("L"))[None]
            yield pixels


class TorchNetwork:
    """A model of ours, its head folded at the alpha that was last asked for."""

    def __init__(self, shipped: ServedModel, device: str = "auto"):
        if device not in ("auto", "cpu", "cuda"):
            raise unknown("device", device, ("auto", "cpu", "cuda"), "auto, cpu or cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("device cuda, but torch sees no CUDA device: use cpu")
        cuda = device != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        self.shipped = shipped.to(self.device)
        self._folded = self.shipped.folded().to(self.device)

    @torch.no_grad()
    def __call__(self, inputs: Tensor, alpha: float | None) -> Tensor:
        if alpha != self._folded.about.alpha:
            self._folded = self.shipped.folded(alpha).to(self.device)
        return self._folded(inputs.to(self.device)).cpu()


class OnnxNetwork:
    """A session of onnxruntime, on the CPU."""

    def __init__(self, session: Any):
        self.session = session
        self.names = [node.name for node in session.get_inputs()]

    def __call__(self, inputs: Tensor, alpha: float | None) -> Tensor:
        values = (inputs.numpy(), np.array(alpha or 0.0, dtype=np.float32))
        feed = dict(zip(self.names, values, strict=False))  # alpha only where it is an input
        return torch.from_numpy(self.session.run(None, feed)[0])


def load_model(path: Run | Path | str, *, device: str = "auto") -> Predictor:
    """A model from a run, `longtail retrofit`, `longtail export` or `save_pretrained`.

    Nothing in a file is ever run: pickles are refused unread.

    Args:
        path: a run or its folder, a .safetensors or .onnx file, or a saved folder.
        device: auto, cpu or cuda; an ONNX file runs on the CPU.
    """
    path = path.folder if isinstance(path, Run) else Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: pass a run folder or a file of longtail export")
    if path.suffix == ".onnx":
        about, session = read_onnx(path)
        return Predictor(about, OnnxNetwork(session))
    if path.is_dir():
        shipped = read_folder(path)
    elif path.suffix == ".safetensors":
        shipped = read_safetensors(path)
    elif path.suffix == ".pt2":
        raise UserError(
            f"{path} was not opened: .pt2 files are for torch.export.load. Pass the run folder, or "
            "a .safetensors file of longtail export"
        )
    else:
        raise UserError(
            f"{path} was not opened: pickles (.pt, .pth, .pkl, .ckpt) can run code when they are "
            "read. Pass a run folder, a .safetensors or .onnx file of longtail export, or a "
            "folder of save_pretrained"
        )
    return Predictor(shipped.about, TorchNetwork(shipped, device))


def _blob(picture: Picture) -> Blob:
    if isinstance(picture, Tensor):
        picture = _array(picture)
    if isinstance(picture, np.ndarray):
        return _opened(picture)
    return Path(picture) if isinstance(picture, str) else cast(Blob, picture)


def _array(tensor: Tensor) -> NDArray[Any]:
    """The numbers of a tensor, wherever it lies; NumPy has no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _opened(pixels: NDArray[Any]) -> Image.Image:
    """Pixels as an image."""
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    shaped = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype != np.uint8 or not shaped or not pixels.size:
        raise UserError(
            f"an array of {pixels.dtype} and shape {pixels.shape} is no image: uint8 pixels, 0 to "
            "255, as (H, W), (H, W, C) or (C, H, W) are"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _vector(row: Picture, size: int) -> NDArray[np.float32] | str:
    """An embedding as float32, or why it is none."""
    if not isinstance(row, (Tensor, np.ndarray, Sequence)) or isinstance(row, (str, bytes)):
        return "this model takes embeddings, not images"
    try:
        row = _array(row) if isinstance(row, Tensor) else row
        vector = np.asarray(row, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # text, or ragged
        return f"it is no row of numbers ({error})"
    if vector.shape != (size,):
        return f"an embedding of shape {vector.shape}, the model takes ({size},)"
    return vector if np.isfinite(vector).all() else "it has NaN or infinite values"
