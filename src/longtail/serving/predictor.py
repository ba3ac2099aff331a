"""Predictions: image files, arrays or embeddings in, class names and probabilities out.

Shapes: B inputs per batch, images (C, H, W) uint8, embeddings (D,).
"""

import logging
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.decoding.images import Blob
from longtail.evaluation.label_shift import LEAST_IMAGES, RunningMix
from longtail.evaluation.novelty import FALSE_ALARMS
from longtail.evaluation.trust import Trust
from longtail.nn.heads import check_alpha
from longtail.runs.folder import Run
from longtail.serving import write as exports
from longtail.serving.answers import Answers, check_certainty, check_numbers, read_trust, start_mix
from longtail.serving.answers import Prediction as Prediction
from longtail.serving.model import ModelDescription, ServedModel, fixed_alpha_error
from longtail.serving.network import TorchNetwork
from longtail.serving.pipeline import map_batches
from longtail.serving.read import OnnxNetwork, read_model, read_onnx
from longtail.serving.user_inputs import (
    InputBatch,
    Picture,
    Reasons,
    UnreadableInputs,
    list_if_one,
    name_input,
    read_batches,
    refuse_path,
)
from longtail.training.features import choose_batch_size

logger = logging.getLogger(__name__)

BATCH = 64
"""Inputs of a batch on the CPU."""
Examined = tuple[Tensor, Tensor | None]
"""Logits (B, C) and distances (B,) of B inputs."""


class Predictor:
    """A trained model with the names of its classes, as `load_model` returns it."""

    def __init__(self, about: ModelDescription, network: TorchNetwork | OnnxNetwork):
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
        model = self.require_model("saving a model")
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

    def with_background(self, name: str) -> "Predictor":
        """Return this model with a class that keeps its total effect (Eq. 9); empty for none."""
        if name == self.about.background:
            return self
        model = self.require_model("another background")
        other = self.with_model(model.with_background(name))
        other._alpha = self._alpha
        return other

    def with_model(self, model: ServedModel) -> "Predictor":
        """Return a predictor of `model` on the device of this one, whose layers it may share."""
        device = self._require_network("a change of the model").device
        return Predictor(model.about, TorchNetwork(model, device))

    def logits(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        """Return logits (N, classes) of uint8 images (N, C, H, W), or of embeddings (N, D)."""
        return self.examine(inputs)[0]

    def examine(self, inputs: Tensor | NDArray[Any]) -> tuple[Tensor, Tensor | None]:
        """Return what `logits` returns, and the distance (N,) of the features from class means.

        The distance is None if the model stores no class means.
        """
        if not isinstance(inputs, Tensor):  # torch refuses read-only and reversed arrays
            inputs = torch.from_numpy(np.require(inputs, requirements=("C", "W")))
        blueprint = self.about.blueprint
        kind = torch.float32 if blueprint.embeddings else torch.uint8
        if tuple(inputs.shape[1:]) != blueprint.shape or inputs.dtype != kind:
            raise UserError(
                f"{inputs.dtype} of shape {tuple(inputs.shape)}: this model takes {kind} (N, "
                f"{', '.join(map(str, blueprint.shape))})"
            )
        if not len(inputs):
            return torch.empty(0, len(self.classes)), None
        batches = inputs.split(self.batch_size)
        if isinstance(self._network, OnnxNetwork):
            return torch.cat([self._network(x, self._alpha) for x in batches]), None
        parts = [self._network.examine(x, self._alpha) for x in batches]
        logits, distances = zip(*parts, strict=True)
        known = [distance for distance in distances if distance is not None]
        return torch.cat(logits), torch.cat(known) if known else None

    @property
    def trust(self) -> Trust | None:
        """What the model stores of its certainty; None at another alpha than its own."""
        return self._stored_trust if self._alpha == self.about.alpha else None

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Least probability at which an input has each label; None if each input has one.

        At another alpha than the model's own all are 0.5.
        """
        return self.about.thresholds_at(self._alpha)

    @cached_property
    def _stored_trust(self) -> Trust | None:
        return read_trust(self.about)

    @property
    def model(self) -> ServedModel:
        """The network and the head, at the alpha they were trained for."""
        return self.require_model("reading the network")

    def require_model(self, purpose: str) -> ServedModel:
        """Return `model`, or raise the error for a `purpose` that needs it."""
        return self._require_network(purpose).model

    def _require_network(self, purpose: str) -> TorchNetwork:
        if not isinstance(self._network, TorchNetwork):
            raise UserError(
                f"{purpose} needs the weights of the model, and an ONNX file has only a graph: "
                "use the run instead, or a .safetensors file of it"
            )
        return self._network

    @property
    def batch_size(self) -> int:
        """Inputs that the network takes at a time."""
        if self._gpu is None:
            return BATCH
        return choose_batch_size(torch.empty(0, *self.about.blueprint.shape), self._gpu)

    @property
    def _gpu(self) -> torch.device | None:
        network = self._network
        if isinstance(network, TorchNetwork) and network.device.type == "cuda":
            return network.device
        return None

    def predict(
        self,
        images: Picture | Iterable[Picture],
        *,
        top: int = 5,
        sets: float | None = None,
        abstain: int | None = None,
        false_alarms: float = FALSE_ALARMS,
        adapt: bool = False,
    ) -> list[Prediction]:
        """Predict the classes of every input, in order.

        Args:
            images: one or several files, arrays or PIL images; for a model of embeddings, one or
                several rows. An array of up to 3 dimensions is one image.
            top: number of classes to return for each.
            sets: probability with which each answer set holds the true class, such as 0.9.
            abstain: most classes in the answer set of an image that gets an answer.
            false_alarms: share of images of known classes that may be marked as unknown, by a
                model that stores a calibration.
            adapt: estimate the class mix from the images so far, without labels.

        Raises:
            UserError: if an image is unreadable; `stream` continues instead.
        """
        several = list_if_one(images, len(self.about.blueprint.shape))
        predictions = []
        stream = self.stream(
            several, top=top, sets=sets, abstain=abstain, false_alarms=false_alarms, adapt=adapt
        )
        for place, prediction in enumerate(stream):
            if isinstance(prediction, str):
                raise UserError(f"{name_input(several, place)} cannot be read: {prediction}")
            predictions.append(prediction)
        return predictions

    def stream(
        self,
        images: Iterable[Picture],
        *,
        top: int = 5,
        sets: float | None = None,
        abstain: int | None = None,
        false_alarms: float = FALSE_ALARMS,
        adapt: bool = False,
    ) -> Iterator[Prediction | str]:
        """Yield a prediction for each image, in order, or the reason why it is unreadable.

        The arguments are those of `predict`, and are checked at once.
        """
        refuse_path(images)
        trust = self.trust
        check_numbers(top, sets, abstain)
        check_certainty(self.about, trust, sets, false_alarms)
        answers = Answers(self.classes, trust, top, sets, abstain, false_alarms, self.thresholds)
        return self._answer(images, answers, start_mix(self.about, trust) if adapt else None)

    def _answer(
        self, images: Iterable[Picture], answers: Answers, mix: RunningMix | None
    ) -> Iterator[Prediction | str]:
        """Yield the items of `stream`; with a `mix`, answers follow that of the images so far."""
        if mix is None:
            batches = self.read_batches(images)
            ranked = map_batches(lambda x: answers.rank(*self.examine(x)), batches, self._gpu)
        else:  # in order, as each batch moves the mix
            ranked = (
                (reasons, examined and answers.follow(mix, *examined))
                for reasons, examined in self.examine_batches(images)
            )
        for reasons, predictions in ranked:
            rest = iter(predictions or [])
            yield from (next(rest) if reason is None else reason for reason in reasons)
        if mix is not None and len(mix.seen) < LEAST_IMAGES:
            logger.warning(
                "too few readable images (%d) to estimate their class mix, which takes %d: nothing "
                "was adapted",
                *(len(mix.seen), LEAST_IMAGES),
            )

    def stream_logits(
        self, images: Iterable[Picture | Blob]
    ) -> Iterator[tuple[list[str | None], Tensor]]:
        """Yield batch by batch why each image is unreadable, or None, and the logits of the rest.

        Logits are (B, classes), in the order of the B readable images of the batch.
        """
        for reasons, examined in self.examine_batches(images):
            yield reasons, examined[0] if examined else torch.empty(0, len(self.classes))

    def examine_batches(
        self, images: Iterable[Picture | Blob]
    ) -> Iterator[tuple[Reasons, Examined | None]]:
        """Yield for each batch what is unreadable, and `examine` of the rest, if any."""
        return map_batches(self.examine, self.read_batches(images), self._gpu)

    def extract(self, images: Iterable[Picture]) -> tuple[Tensor, dict[int, str]]:
        """Return the features (N, D) of readable images, and why the others are unreadable."""
        network = self._require_network("extracting features")
        parts, unreadable = [torch.empty(0, network.model.head.dim)], UnreadableInputs()
        batches = self.read_batches(images)
        for reasons, features in map_batches(network.extract, batches, self._gpu):
            unreadable.add(reasons)
            if features is not None:
                parts.append(features)
        return torch.cat(parts), unreadable.reasons

    def read_batches(self, images: Iterable[Picture | Blob]) -> Iterator[InputBatch]:
        """Yield the inputs in batches, in their order."""
        blueprint = self.about.blueprint
        return read_batches(images, blueprint, size=self.batch_size, gpu=self._gpu)


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
    model = read_model(path)
    return Predictor(model.about, TorchNetwork(model, device))
