"""Predictions: image files, arrays or embeddings in, class names and probabilities out.

Shapes: B inputs per batch, images (C, H, W) uint8, embeddings (D,).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.errors import UserError, unknown_error
from longtail.data.decoding.images import Blob, decode_in_threads
from longtail.nn.heads import check_alpha
from longtail.runs.folder import Run
from longtail.serving import write as exports
from longtail.serving.model import ModelDescription, ServedModel, fixed_alpha_error
from longtail.serving.read import read_folder, read_onnx, read_safetensors

BATCH = 64
Picture = str | Path | bytes | Image.Image | NDArray[Any] | Tensor
"""A file, its bytes, a PIL image, uint8 pixels (H, W), (H, W, C) or (C, H, W), or an embedding."""


@dataclass(frozen=True)
class Prediction:
    """The classes that a model predicts for one input."""

    name: str
    probability: float
    top: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, best first."""


Network = Callable[[Tensor, float | None], Tensor]
"""A function from a batch and alpha to logits (B, classes) on the CPU."""


class Predictor:
    """A trained model with the names of its classes, as `load_model` returns it."""

    def __init__(self, about: ModelDescription, network: Network):
        self.about = about
        self._network = network
        self._alpha = about.alpha

    def __repr__(self) -> str:
        method, alpha = self.about.training.get("method"), self.alpha
        return f"Predictor({method}, {len(self.classes)} classes, alpha={alpha})"

    @staticmethod
    def from_pretrained(folder: Path | str) -> "Predictor":
        """Load a local folder that `save_pretrained` wrote; nothing is downloaded."""
        if not Path(folder).is_dir():
            raise UserError(f"{folder} is not a folder: models are read from disk, not downloaded")
        return load_model(folder)

    def save_pretrained(self, folder: Path | str, *, alpha_input: bool = False) -> Path:
        """Write config.json, model.safetensors and a model card, the layout of model hubs.

        Args:
            folder: the folder to write.
            alpha_input: keep alpha adjustable, with its current value as default; else fold it in.
        """
        if not isinstance(self._network, TorchNetwork):
            raise UserError("an ONNX file has a graph but no weights to save: load the run instead")
        model = self._network.model
        if not alpha_input:
            return exports.save_pretrained(model.fold(self.alpha), folder)
        if not self.about.dial or self.alpha is None:
            raise fixed_alpha_error(self.about)
        return exports.save_pretrained(model.with_alpha(self.alpha), folder)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.about.classes

    @property
    def alpha(self) -> float | None:
        """How much of the indirect effect is removed; settable unless it is folded in."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        if not self.about.dial and value != self._alpha:
            raise fixed_alpha_error(self.about)
        self._alpha = check_alpha(value)

    def logits(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        """Return logits (N, classes) of uint8 images (N, C, H, W), or of embeddings (N, D)."""
        if not isinstance(inputs, Tensor):  # torch refuses read-only and reversed arrays
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
        """Predict the classes of every input, in order.

        Args:
            images: one or several files, arrays or PIL images; for a model of embeddings, one or
                several rows. An array of up to 3 dimensions is one image.
            top: number of classes to return for each.

        Raises:
            UserError: if an image is unreadable; `stream` continues instead.
        """
        one = isinstance(images, (str, Path, bytes, Image.Image))
        if isinstance(images, (np.ndarray, Tensor)):
            one = images.ndim <= len(self.about.blueprint.shape)
        several = cast(Iterable[Picture], [images] if one else images)
        predictions = []
        for place, prediction in enumerate(self.stream(several, top=top)):
            if isinstance(prediction, str):
                raise UserError(f"input {place} cannot be read: {prediction}")
            predictions.append(prediction)
        return predictions

    def stream(self, images: Iterable[Picture], *, top: int = 5) -> Iterator[Prediction | str]:
        """Yield a prediction for each image, in order, or the reason why it is unreadable."""
        if top < 1:
            raise UserError(f"top {top}: must be at least 1")
        for reasons, logits in self.stream_logits(images):
            ranked = iter(self._rank(logits, top))
            yield from (next(ranked) if reason is None else reason for reason in reasons)

    def stream_logits(
        self, images: Iterable[Picture | Blob]
    ) -> Iterator[tuple[list[str | None], Tensor]]:
        """Yield batch by batch why each image is unreadable, or None, and the logits of the rest.

        Logits are (B, classes), in the order of the B readable images of the batch.
        """
        rows = self._read(images)
        while batch := list(islice(rows, BATCH)):
            readable = [row for row in batch if not isinstance(row, str)]
            empty = torch.empty(0, len(self.classes))
            logits = self.logits(np.stack(readable)) if readable else empty
            yield [row if isinstance(row, str) else None for row in batch], logits

    def _rank(self, logits: Tensor, top: int) -> list[Prediction]:
        best = logits.softmax(1).topk(min(top, len(self.classes)))
        predictions = []
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            ranked = tuple(zip((self.classes[c] for c in places), values, strict=True))
            predictions.append(Prediction(*ranked[0], ranked))
        return predictions

    def _read(self, images: Iterable[Picture | Blob]) -> Iterator[NDArray[Any] | str]:
        """Yield each input as an array for the model, or the reason why it is unreadable."""
        if self.about.blueprint.embeddings:
            yield from (_to_vector(row, self.about.blueprint.shape[0]) for row in images)
            return
        channels, height, width = self.about.blueprint.shape
        reasons: dict[int, str] = {}

        def blobs() -> Iterator[Blob]:
            for place, picture in enumerate(images):
                try:
                    yield _to_blob(picture)
                except UserError as error:
                    reasons[place] = str(error)
                    yield b""  # unreadable too, to keep the order

        way = self.about.blueprint.interpolation
        for place, pixels in enumerate(decode_in_threads(blobs(), (height, width), way)):
            pixels = reasons.pop(place, pixels)
            if not isinstance(pixels, str) and channels == 1:
                colour = Image.fromarray(pixels.transpose(1, 2, 0))
                pixels = np.asarray(colour.convert("L"))[None]
            yield pixels


class TorchNetwork:
    """A `ServedModel` whose head is folded at the alpha that was used last."""

    def __init__(self, model: ServedModel, device: str = "auto"):
        if device not in ("auto", "cpu", "cuda"):
            raise unknown_error("device", device, ("auto", "cpu", "cuda"), "auto, cpu or cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("device cuda, but torch sees no CUDA device: use cpu")
        cuda = device != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        self.model = model.to(self.device)
        self._folded = self.model.fold().to(self.device)

    @torch.no_grad()
    def __call__(self, inputs: Tensor, alpha: float | None) -> Tensor:
        if alpha != self._folded.about.alpha:
            self._folded = self.model.fold(alpha).to(self.device)
        output: Tensor = self._folded(inputs.to(self.device)).cpu()
        return output


def load_model(path: Run | Path | str, *, device: str = "auto") -> Predictor:
    """Load a model from a run, `longtail retrofit`, `longtail export` or `save_pretrained`.

    Loading never runs code from a file; pickles are refused without opening them.

    Args:
        path: a run or its folder, a .safetensors or .onnx file, or a saved folder.
        device: auto, cpu or cuda; an ONNX file runs on the CPU.
    """
    path = path.folder if isinstance(path, Run) else Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: pass a run folder or a file of longtail export")
    if path.suffix == ".onnx":
        return Predictor(*read_onnx(path))
    if path.is_dir():
        model = read_folder(path)
    elif path.suffix == ".safetensors":
        model = read_safetensors(path)
    elif path.suffix == ".pt2":
        raise UserError(
            f"{path} was not opened: .pt2 files are for torch.export.load. Pass the run folder, or "
            "a .safetensors file of longtail export"
        )
    else:
        raise UserError(
            f"{path} was not opened: pickles (.pt, .pth, .pkl, .ckpt) can run code when they are "
            "loaded. Pass a run folder, a .safetensors or .onnx file of longtail export, or a "
            "folder of save_pretrained"
        )
    return Predictor(model.about, TorchNetwork(model, device))


def _to_blob(picture: Picture | Blob) -> Blob:
    if isinstance(picture, Tensor):
        picture = _to_numpy(picture)
    if not isinstance(picture, np.ndarray):
        return Path(picture) if isinstance(picture, str) else picture
    pixels = picture
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    has_image_shape = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype != np.uint8 or not has_image_shape or not pixels.size:
        raise UserError(
            f"an array of {pixels.dtype} and shape {pixels.shape} is not an image: pass uint8 "
            "pixels, 0 to 255, as (H, W), (H, W, C) or (C, H, W)"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor of any device to NumPy, floats as float32: NumPy has no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _to_vector(row: Picture | Blob, size: int) -> NDArray[np.float32] | str:
    """Convert an embedding to float32, or return the reason why that is impossible."""
    if not isinstance(row, (Tensor, np.ndarray, Sequence)) or isinstance(row, (str, bytes)):
        return "this model takes embeddings, not images"
    try:
        vector = np.asarray(_to_numpy(row) if isinstance(row, Tensor) else row, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # text, or ragged
        return f"it is not a row of numbers ({error})"
    if vector.shape != (size,):
        return f"it has shape {vector.shape}, but the model takes ({size},)"
    return vector if np.isfinite(vector).all() else "it has NaN or infinite values"
