"""Fit published weights, or those of a file, into a network.

The library that published a network renames its older weights and resizes position embeddings; the
first convolution adapts to the channels of the images as timm does it.
"""

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from longtail.core.config import PRETRAINED
from longtail.core.errors import UserError, list_some
from longtail.data.decoding.cache import hash_file
from longtail.nn.checkpoints import StateDict, read_state, strip_prefixes
from longtail.nn.libraries import Backbone, Timm
from longtail.nn.published import fetch_state, infer_backbone

LEAST_SHARE = 0.9
"""Least share of a network's parameters that a file must fit."""
FILTERS = ("checkpoint_filter_fn", "_filter_fn", "_filter_torchvision_pretrained")
"""Names of the function with which a module of timm renames and resizes the weights of a file."""
CLASSIFIERS = ("classifier.", "head.", "head_dist.", "fc.", "heads.", "last_linear.")
"""How the names of classifiers begin."""


@dataclass(frozen=True)
class FittedWeights:
    """Weights that fit a network, and which do not."""

    source: str
    """Name of the file, or `pretrained`."""
    network: str
    state: StateDict
    """The tensors that fit, by the names of `Backbone.inner`."""
    parameters: tuple[int, int]
    """Parameters of the network that fit, and all of them."""
    left_out: tuple[str, ...]
    """Names in the file that the network does not have."""
    resized: tuple[str, ...]
    """Names in both whose shapes differ."""
    fresh: tuple[str, ...]
    """Names in the network that the file does not have, which stay random."""

    def __str__(self) -> str:
        own = "published weights" if self.source == PRETRAINED else self.source
        fit, total = self.parameters
        counted = f"all {total:,}" if fit == total else f"{fit:,} of {total:,}"
        parts = [f"loaded {counted} parameters of {self.network} from {own}"]
        classifier = [name for name in self.left_out if name.startswith(CLASSIFIERS)]
        others = [name for name in self.left_out if name not in classifier]
        reasons = {
            "left out its classifier": classifier,
            "left out names that the network does not have": others,
            "left out other shapes than the network's": self.resized,
            "not in the file, so they start at random": self.fresh,
        }
        parts += [
            f"{reason} ({list_some(list(names))})" for reason, names in reasons.items() if names
        ]
        return "; ".join(parts)


def load_into(backbone: Backbone, name: str, weights: str) -> FittedWeights:
    """Load `weights`, a file or `pretrained`, into the network called `name`; see `fit`."""
    fitted = fit(backbone, name, weights)
    backbone.inner.load_state_dict(fitted.state, strict=False)
    return fitted


def identify(weights: str) -> str:
    """Return what tells weights apart: the SHA-256 of the file, or `pretrained`."""
    return weights if weights == PRETRAINED else hash_file(find_file(weights).absolute())


def locate(weights: str) -> Path:
    """Return where the file `weights` lies, or would lie."""
    return Path(os.path.expanduser(weights))


def find_file(weights: str) -> Path:
    """Return the path of the file `weights`, which must exist."""
    path = locate(weights)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(
            f"--weights {weights} {what}: pass a .safetensors, .pth, .pt or .bin file, or "
            "--pretrained for the network's published weights"
        )
    return path


def check_readable(weights: str) -> None:
    """Refuse a damaged file; a file that is gone is refused where it is needed."""
    if weights != PRETRAINED and locate(weights).is_file():
        read_state(locate(weights))


def fit(backbone: Backbone, name: str, weights: str) -> FittedWeights:
    """Fit `weights`, a file or `pretrained`, into the network called `name`.

    Raises:
        UserError: if they cannot be read, or fit less than 90 % of the network's parameters.
    """
    if weights == PRETRAINED:
        source, state = PRETRAINED, fetch_state(name)
    else:
        path = find_file(weights)
        source, state = path.name, read_state(path)
    own = backbone.inner.state_dict()
    state = _adapt_channels(_rename(strip_prefixes(state, own), backbone), own)
    fitting = {n: value for n, value in state.items() if n in own and _same(value, own[n])}
    fitted = FittedWeights(
        source=source,
        network=name,
        state=fitting,
        parameters=_count_parameters(backbone.inner, fitting),
        left_out=tuple(n for n in state if n not in own),
        resized=tuple(n for n in state if n in own and n not in fitting),
        fresh=tuple(n for n in own if n not in state and not n.endswith("num_batches_tracked")),
    )
    if fitted.parameters[0] < LEAST_SHARE * fitted.parameters[1]:
        raise _misfit(fitted, state, own, weights)
    if broken := [n for n, value in fitting.items() if not torch.isfinite(value).all()]:
        raise UserError(
            f"{source} holds infinite values or NaN in {list_some(broken)}: it is damaged"
        )
    return fitted


def _same(value: Tensor, own: Tensor) -> bool:
    return value.shape == own.shape and value.is_floating_point() == own.is_floating_point()


def _count_parameters(network: nn.Module, state: StateDict) -> tuple[int, int]:
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    return sum(size for name, size in sizes.items() if name in state), sum(sizes.values())


def _rename(state: StateDict, backbone: Backbone) -> StateDict:
    """Rename weights, and resize position embeddings, as the network's library does."""
    network = backbone.inner
    if isinstance(backbone, Timm):
        module = sys.modules[type(network).__module__]
        adapt = next((getattr(module, f) for f in FILTERS if hasattr(module, f)), None)
    else:
        adapt = _resize_embeddings if "encoder.pos_embedding" in state else None
    if adapt:
        # it may fail on the names of another network, which is then refused for its names
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            return _call(adapt, state, network)
    return state


def _call(adapt: Callable[..., Any], state: StateDict, network: nn.Module) -> StateDict:
    """Call a filter of timm; some take the weights alone."""
    alone = len(signature(adapt).parameters) == 1
    result = adapt(dict(state)) if alone else adapt(dict(state), network)
    return cast(StateDict, dict(result))


def _resize_embeddings(state: StateDict, network: Any) -> StateDict:
    """Resize the position embeddings of torchvision's vision transformers."""
    from torchvision.models.vision_transformer import interpolate_embeddings

    size, patch = network.image_size, network.patch_size
    return cast(StateDict, interpolate_embeddings(size, patch, state))


def _adapt_channels(state: StateDict, own: StateDict) -> StateDict:
    """Adapt convolutions of colour images to the channels that the network takes."""
    from timm.models import adapt_input_conv

    adapted = dict(state)
    for name, value in state.items():
        if value.ndim == 4 and value.shape[1] == 3 and name in own and own[name].ndim == 4:
            channels = own[name].shape[1]
            if own[name].shape == (value.shape[0], channels, *value.shape[2:]):
                adapted[name] = adapt_input_conv(channels, value)
    return adapted


def _misfit(fitted: FittedWeights, state: StateDict, own: StateDict, weights: str) -> UserError:
    """Return the error for weights that fit too little of the network."""
    fit, total = fitted.parameters
    names = (*fitted.resized, *fitted.fresh, *fitted.left_out)[:3]
    different = [f"{n}: {_shape(state, n)} in the file, {_shape(own, n)} here" for n in names]
    likely = None if weights == PRETRAINED else infer_backbone(Path(weights))
    way = "pass the --backbone that they belong to"
    if likely and likely != fitted.network:
        way = f"the file's name suggests --backbone {likely}"
    return UserError(
        f"the weights of {fitted.source} fit {100 * fit / max(total, 1):.0f} % of the parameters "
        f"of {fitted.network}, and {100 * LEAST_SHARE:.0f} % are needed: {way}. First differences: "
        + "; ".join(different)
    )


def _shape(state: StateDict, name: str) -> str:
    """Return the shape of a tensor as 64x3x7x7, or `absent`."""
    if name not in state:
        return "absent"
    return "x".join(map(str, state[name].shape)) or "one number"
