"""Classifiers of timm and torchvision with weights, split into a network and its last layer.

Shapes: C classes, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.nn.checkpoints import StateDict
from longtail.nn.libraries import (
    HeadlessNetwork,
    create_network,
    find_full_names,
    find_last_linear,
)

AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")
"""Classifiers that only the training of torchvision's networks uses."""


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer of a checkpoint."""

    prefix: str
    """Prefix of its names in the checkpoint, as in `fc.`; empty if only the layer was saved."""
    weight: Tensor  # (C, D)
    bias: Tensor | None  # (C,)

    def replace_in(self, state: StateDict, weight: Tensor) -> StateDict:
        """Return the checkpoint with `weight` (C, D) in this layer and a bias of zero."""
        own, bias = f"{self.prefix}weight", f"{self.prefix}bias"
        zero = {} if self.bias is None else {bias: torch.zeros_like(state[bias])}
        return {**state, own: weight.to(state[own]), **zero}


def find_last_layer(state: StateDict, classes: int, dim: int) -> LastLayer:
    """Find the layer of a checkpoint that maps features of length `dim` to `classes` logits."""
    shape = (classes, dim)
    names = [n for n, own in state.items() if f".{n}".endswith(".weight") and own.shape == shape]
    if not names:
        raise UserError(
            f"the checkpoint has no linear layer from {dim} features to {classes} classes: use "
            "the features and the classes that its last layer was trained on"
        )
    return _read_layer(state, names[-1].removesuffix("weight"))


def _read_layer(state: StateDict, prefix: str) -> LastLayer:
    bias = state.get(f"{prefix}bias")
    weight = state[f"{prefix}weight"].float()
    return LastLayer(prefix, weight, None if bias is None else bias.float())


def build(
    name: str, state: StateDict, classes: int, sample: Tensor
) -> tuple[HeadlessNetwork, LastLayer]:
    """Build the network called `name` with the weights of `state`, split before its last layer.

    If both timm and torchvision have that name, it builds the one that the weights fit. On the
    images `sample` (B, channels, H, W) the two parts must reproduce the logits.
    """
    problem = ""
    used = {name: value for name, value in state.items() if not name.startswith(AUXILIARY)}
    for full_name in find_full_names(name):
        network = create_network(full_name, sample.shape[1], classes=classes)
        layer = find_last_linear(network, classes)
        if layer is None:
            problem = f"its classifier is not a linear layer with {classes} outputs"
            continue
        own = state.get(f"{layer}.weight")
        if own is not None and len(own) != classes:
            problem = f"its classifier has {len(own)} classes, the data has {classes}"
            continue
        try:
            network.load_state_dict(used)
        except RuntimeError as error:
            problem = " ".join(str(error).split())[:300]
            continue
        return _split(full_name, network.eval(), _read_layer(state, f"{layer}."), sample)
    raise UserError(f"the checkpoint does not fit {name}: {problem}")


@torch.no_grad()
def _split(
    full_name: str, network: nn.Module, layer: LastLayer, sample: Tensor
) -> tuple[HeadlessNetwork, LastLayer]:
    """Split the network before its last layer, and check that the parts give the same logits."""
    try:
        expected = network(sample)
    except Exception as error:  # a network may raise any type for a size that it does not take
        shape = "x".join(map(str, sample.shape[1:]))
        problem = f"{full_name} does not take images of {shape}: {error}"
        raise UserError(f"{problem}. Another --image-size may fit") from error
    headless = HeadlessNetwork(full_name, network, layer.prefix.removesuffix("."))
    logits = nn.functional.linear(headless(sample), layer.weight, layer.bias)
    if logits.shape != expected.shape or not torch.allclose(logits, expected, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"{full_name} does more after its last linear layer, so replacing that layer would not "
            "give the logits that are measured here: use a network that ends in a linear layer"
        )
    return headless, layer
