"""Checkpoints of timm and torchvision classifiers, split into a network and its last layer.

Reading a checkpoint never executes code: safetensors files hold only tensors, and `.pt` files are
read with `weights_only`.
Shapes: C classes, D features.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError, unknown_error
from longtail.core.files import read_tensors
from longtail.nn.backbones import Backbone

StateDict = dict[str, Tensor]
WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "state_dict_ema")
"""Keys under which training scripts store the weights in a checkpoint."""
PREFIXES = re.compile(r"(module\.|_orig_mod\.)*")
"""Prefixes that DataParallel and torch.compile add to every name; they may be nested."""
LIBRARY_PREFIXES = ("timm/", "torchvision/")
"""Prefixes of the full names of networks, as in `timm/resnet50`."""


def read_state(path: Path) -> StateDict:
    """Read the weights of a checkpoint, by name."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: a .pt, .pth or .safetensors file is expected")
    try:
        if path.suffix == ".safetensors":
            content: Any = read_tensors(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read, it may be cut short: {error}") from None
    except Exception as error:  # the unpickler raises any type for content that it refuses
        raise UserError(
            f"{path} cannot be read as plain weights ({type(error).__name__}): it is cut short, or "
            "holds objects whose loading would execute code. Save the weights alone, with "
            "torch.save(model.state_dict(), path)"
        ) from None
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not any(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"{path} holds no weights: a state dict, name to tensor, is expected")
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    return {PREFIXES.sub("", name, count=1): value for name, value in tensors.items()}


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


class HeadlessNetwork(Backbone):
    """The network called `name`; it replaces its last layer, `layer`, by an identity in place."""

    def __init__(self, name: str, network: nn.Module, layer: str):
        super().__init__()
        self.name, self.dim = name, cast(nn.Linear, network.get_submodule(layer)).in_features
        network.set_submodule(layer, nn.Identity())
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.network(x))


def build(
    name: str, state: StateDict, classes: int, sample: Tensor
) -> tuple[HeadlessNetwork, LastLayer]:
    """Build the network called `name` with the weights of `state`, split before its last layer.

    If both timm and torchvision have that name, it builds the one that the weights fit. On the
    images `sample` (B, channels, H, W) the two parts must reproduce the logits.
    """
    problem = ""
    for full_name in _find_full_names(name):
        network = _create_network(full_name, classes, channels=sample.shape[1])
        layer = _find_last_linear(network, classes)
        if layer is None:
            problem = f"its classifier is not a linear layer with {classes} outputs"
            continue
        own = state.get(f"{layer}.weight")
        if own is not None and len(own) != classes:
            problem = f"its classifier has {len(own)} classes, the data has {classes}"
            continue
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            problem = " ".join(str(error).split())[:300]
            continue
        return _split(full_name, network.eval(), _read_layer(state, f"{layer}."), sample)
    raise UserError(f"the checkpoint does not fit {name}: {problem}")


def rebuild(full_name: str, classes: int, channels: int) -> HeadlessNetwork:
    """Build the network that `build` returned under `full_name`, with random weights."""
    if full_name not in _find_full_names(full_name.partition("/")[2]):
        raise UserError(f"there is no network '{full_name}' in this version of its library")
    network = _create_network(full_name, classes, channels)
    layer = _find_last_linear(network, classes)
    if layer is None:
        raise UserError(
            f"the classifier of {full_name} is not a linear layer with {classes} outputs"
        )
    return HeadlessNetwork(full_name, network, layer)


def _find_full_names(name: str) -> list[str]:
    """Find every network called `name`, in timm and in torchvision."""
    import timm
    from torchvision import models

    of_torchvision = models.list_models(module=models)
    known = (timm.is_model(name), name in of_torchvision)
    if not any(known):
        names = [*timm.list_models(), *of_torchvision]
        raise unknown_error("network", name, names, "any of timm or torchvision")
    return [prefix + name for prefix, has in zip(LIBRARY_PREFIXES, known, strict=True) if has]


def _create_network(full_name: str, classes: int, channels: int) -> nn.Module:
    """Create the complete network with random weights."""
    import timm
    from torchvision import models

    library, _, name = full_name.partition("/")
    if library == "timm":
        return timm.create_model(name, num_classes=classes, in_chans=channels)
    return cast(nn.Module, models.get_model(name, weights=None, num_classes=classes))


def _find_last_linear(network: nn.Module, classes: int) -> str | None:
    """Return the name of the last linear layer with `classes` outputs, or None."""
    linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    return next((name for name, m in reversed(linear) if m.out_features == classes), None)


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
