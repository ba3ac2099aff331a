"""The graph that an ONNX file holds: logits, and beside them the probabilities of `predict`.

Shapes: B inputs, C classes.
"""

import torch
from torch import Tensor, nn

from longtail.evaluation.calibration import Calibration
from longtail.serving.answers import read_trust
from longtail.serving.model import ServedModel


class CalibratedModel(nn.Module):
    """A model with its probabilities (B, C) as a second output.

    They are calibrated if the model stores a calibration, else the softmax of the logits; those of
    several labels per image are the sigmoids.
    """

    bias: Tensor

    def __init__(self, model: ServedModel):
        super().__init__()
        trust = read_trust(model.about)
        classes = len(model.about.classes)
        calibration = trust.calibration if trust else Calibration.identity(classes)
        self.model, self.scale = model, calibration.scale
        self.register_buffer("bias", torch.tensor(calibration.bias))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities (B, C) of raw inputs."""
        logits = self.model(inputs)
        if self.model.about.thresholds is not None:
            return logits, logits.sigmoid()
        return logits, (self.scale * logits + self.bias).softmax(-1)
