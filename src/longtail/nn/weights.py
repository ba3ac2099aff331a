"""Trained classifiers of timm and torchvision: a checkpoint read, its last layer set apart.

Nothing of a file is ever executed: safetensors hold tensors alone, and a `.pt` is read with
`weights_only`.
Shapes: C classes, D features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError, unknown
from longtail.core.files import read_tensors
from longtail.nn.backbones import Backbone

State = dict[str, Tensor]
WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "state_dict_ema")
"""Under which training scripts put the weights in their checkpoints."""
PREFIXES = ("module.", "_orig_mod.")
"""That DataParallel and torch.compile put before every name."""
THEIRS = ("timm/", "torchvision/")
"""How the full name of a network begins, as in `timm/resnet50`."""


def read_state(path: Path) -> State:
    """The weights in a checkpoint, by name.

    Raises:
        UserError: if the file cannot be read without executing code, or holds no weights.
    """
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
    except Exception as error:  # the unpickler raises anything at all on what it refuses
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
    return {_bare(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _bare(name: str) -> str:
    """Without the prefixes of wrappers, which may be wrapped themselves."""
    while name.startswith(PREFIXES):
        name = name.partition(".")[2]
    return name


@dataclass(frozen=True)
class Classifier:
    """The last linear layer of a checkpoint."""

    prefix: str
    """Of its names in the checkpoint, as in `fc.`; empty where the layer was saved alone."""
    weight: Tensor
    """(C, D)."""
    bias: Tensor | None
    """(C,)."""

    def replaced(self, state: State, weight: Tensor) -> State:
        """The checkpoint with another `weight` (C, D) in this layer, and no bias."""
        own, bias = f"{self.prefix}weight", f"{self.prefix}bias"
        changed = {**state, own: weight.to(state[own])}
        if self.bias is not None:
            changed[bias] = torch.zeros_like(state[bias])
        return changed


def classifier_in(state: State, classes: int, dim: int) -> Classifier:
    """The layer of a checkpoint that takes features of size `dim` to `classes`."""
    names = [
        name
        for name, value in state.items()
        if f".{name}".endswith(".weight") and value.shape == (classes, dim)
    ]
    if not names:
        raise UserError(
            f"the checkpoint has no linear layer from {dim} features to {classes} classes: the "
            "features must be those its last layer was trained on, and the classes the same"
        )
    return _layer(state, names[-1].removesuffix("weight"))


def _layer(state: State, prefix: str) -> Classifier:
    bias = state.get(f"{prefix}bias")
    weight = state[f"{prefix}weight"].float()
    return Classifier(prefix, weight, None if bias is None else bias.float())


class Penultimate(Backbone):
    """A network without its last layer: images to the features that the layer saw.

    Args:
        name: its full name.
        network: the whole, which is cut.
        layer: the last one's name in it.
    """

    def __init__(self, name: str, network: nn.Module, layer: str):
        super().__init__()
        self.name, self.dim = name, cast(nn.Linear, network.get_submodule(layer)).in_features
        network.set_submodule(layer, nn.Identity())
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def build(name: str, state: State, classes: int, sample: Tensor) -> tuple[Penultimate, Classifier]:
    """The network called `name` with the weights of `state`, and its classifier.

    Args:
        name: of timm or torchvision; where both have it, whichever the weights fit.
        state: the checkpoint.
        classes: C.
        sample: a batch of images (B, channels, H, W), on which the parts must agree with the whole.
    """
    complaint = ""
    for full_name in _full_names(name):
        network = _whole(full_name, classes, channels=sample.shape[1])
        layer = _last_layer(network, classes)
        if layer is None:
            complaint = f"its classifier is no linear layer of {classes} outputs"
            continue
        own = state.get(f"{layer}.weight")
        if own is not None and len(own) != classes:
            complaint = f"its classifier knows {len(own)} classes, the data has {classes}"
            continue
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            complaint = " ".join(str(error).split())[:300]
            continue
        return _apart(full_name, network.eval(), _layer(state, f"{layer}."), sample)
    raise UserError(f"the checkpoint does not fit {name}: {complaint}")


def rebuild(full_name: str, classes: int, channels: int) -> Penultimate:
    """The network that `build` gave under that name, its weights still those of a fresh one."""
    if full_name not in _full_names(full_name.partition("/")[2]):
        raise UserError(f"there is no network '{full_name}' in this version of its library")
    network = _whole(full_name, classes, channels)
    layer = _last_layer(network, classes)
    if layer is None:
        raise UserError(f"the classifier of {full_name} is no linear layer of {classes} outputs")
    return Penultimate(full_name, network, layer)


def _full_names(name: str) -> list[str]:
    """The full names of all networks that are called so."""
    import timm
    from torchvision import models

    theirs = models.list_models(module=models)
    known = (timm.is_model(name), name in theirs)
    if not any(known):
        raise unknown("network", name, [*timm.list_models(), *theirs], "any of timm or torchvision")
    return [home + name for home, has in zip(THEIRS, known, strict=True) if has]


def _whole(full_name: str, classes: int, channels: int) -> nn.Module:
    """That network, with random weights."""
    import timm
    from torchvision import models

    home, _, name = full_name.partition("/")
    if home == "timm":
        return timm.create_model(name, num_classes=classes, in_chans=channels)
    return models.get_model(name, weights=None, num_classes=classes)


def _last_layer(network: nn.Module, classes: int) -> str | None:
    """The name of its last linear layer with so many outputs."""
    layers = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == classes
    ]
    return layers[-1] if layers else None


@torch.no_grad()
def _apart(
    full_name: str, network: nn.Module, layer: Classifier, sample: Tensor
) -> tuple[Penultimate, Classifier]:
    """The network cut before its last layer, if the two together still give its logits."""
    try:
        whole = network(sample)
    except Exception as error:  # whatever a network raises on a size that is not its own
        shape = "x".join(map(str, sample.shape[1:]))
        raise UserError(
            f"{full_name} does not take images of {shape}: {error}. Another --image-size may fit"
        ) from error
    cut = Penultimate(full_name, network, layer.prefix.removesuffix("."))
    logits = nn.functional.linear(cut(sample), layer.weight, layer.bias)
    if logits.shape != whole.shape or not torch.allclose(logits, whole, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"{full_name} does more after its last linear layer, so that another layer in its "
            "place would not be what is measured here"
        )
    return cut, layer
