"""A model on its device, at one alpha at a time.

Shapes: B inputs, C classes, D features.
"""

import torch
from torch import Tensor

from longtail.core.errors import UserError, unknown_error
from longtail.evaluation.novelty import measure_distance
from longtail.serving.model import ServedModel

CPU = torch.device("cpu")


class TorchNetwork:
    """A `ServedModel` whose head is folded at the alpha that was used last."""

    def __init__(self, model: ServedModel, device: str | torch.device = "auto"):
        named = isinstance(device, str) or device == torch.device("cuda")  # without its number
        self.device = _choose_device(str(device)) if named else torch.device(device)
        self.model = model.to(self.device)
        # a convolution is up to a half faster on weights laid out so
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._folded = self.model.fold().to(self.device)
        means = model.stored.class_means
        self._means = None if means is None else means.to(self.device)

    @torch.no_grad()
    def examine(self, inputs: Tensor, alpha: float | None) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, C), and how far (B,) the features are from the class means, if any."""
        folded = self._folded  # another thread may replace it meanwhile
        if alpha != folded.about.alpha:
            folded = self._folded = self.model.fold(alpha).to(self.device)
        features, means = folded.extract(self._place(inputs)), self._means
        distance = None if means is None else measure_distance(features, means).cpu()
        return folded.classify(features).cpu(), distance

    @torch.no_grad()
    def extract(self, inputs: Tensor) -> Tensor:
        """Return features (B, D) of a batch."""
        return self.model.extract(self._place(inputs)).cpu()

    def _place(self, inputs: Tensor) -> Tensor:
        # from pinned memory, the copy does not hold up its thread; only the CPU's can be pinned
        if self.device.type == "cuda" and inputs.device.type == "cpu":
            inputs = inputs.pin_memory()
        return inputs.to(self.device, non_blocking=True)


def _choose_device(name: str) -> torch.device:
    """Return the device called auto, cpu or cuda."""
    if name not in ("auto", "cpu", "cuda"):
        raise unknown_error("device", name, ("auto", "cpu", "cuda"), "auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda, but torch sees no CUDA device: use cpu")
    cuda = name != "cpu" and torch.cuda.is_available()
    # with its number: another thread would take a bare "cuda" for the first device
    return torch.device("cuda", torch.cuda.current_device()) if cuda else CPU
