"""Read the weights of a checkpoint by name, without executing anything that the file holds.

Safetensors files hold only tensors. Other files are read with torch's `weights_only`, which refuses
every object whose loading would run code.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.core.files import read_tensors

StateDict = dict[str, Tensor]
WRAPPERS = (
    *("state_dict_ema", "model_ema", "state_dict", "model"),
    *("model_state_dict", "model_state"),
)
"""Keys under which training scripts store the weights in a checkpoint; like timm, the average of
the weights is taken first."""
WRAPPED = ("module.", "_orig_mod.")
"""Prefixes that DataParallel and torch.compile add to every name."""
OUTER = (*WRAPPED, "model.", "backbone.", "network.")
"""Prefixes of names in a checkpoint of a larger module, such as Lightning's, and of our own."""


def read_state(path: Path) -> StateDict:
    """Read the weights of a checkpoint, by name."""
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: a .safetensors, .pth, .pt or .bin file is expected"
        )
    content = _read(path)
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not any(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"{path} holds no weights: a state dict, name to tensor, is expected")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if kind := _name_unusual(value):
            raise UserError(f"{path} holds the {kind} tensor {name}: dense real numbers are needed")
    return {list(_strip(name, WRAPPED))[-1]: value for name, value in tensors.items()}


def _name_unusual(value: Tensor) -> str:
    """Name the kind of a tensor that is not dense and real; empty for the usual ones."""
    kinds = {
        "sparse": value.layout != torch.strided,
        "quantised": value.is_quantized,
        "meta": value.is_meta,
        "complex": value.is_complex(),
    }
    return next((kind for kind, found in kinds.items() if found), "")


def _read(path: Path) -> Any:
    """Read a file, or explain why it cannot be read."""
    if path.suffix == ".safetensors":
        try:
            return read_tensors(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read, it may be cut short: {error}") from None
    try:
        # plain values, which timm's checkpoints hold beside the weights
        with torch.serialization.safe_globals([Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path} cannot be read, it may be cut short: {error}") from None
    except Exception as error:  # the unpickler raises any type for content that it refuses
        raise UserError(
            f"{path} cannot be read as plain weights ({type(error).__name__}): it is cut short, or "
            "holds objects whose loading would execute code. Save the weights alone, with "
            "torch.save(model.state_dict(), path)"
        ) from None


def strip_prefixes(state: StateDict, own: Iterable[str]) -> StateDict:
    """Strip the prefixes of `OUTER` from each name until it is one of `own`, or has none left."""
    known, stripped = set(own), StateDict()
    for name, value in state.items():
        forms = list(_strip(name, OUTER))
        short = next((form for form in forms if form in known), forms[-1])
        if short == name or short not in state:  # a name without prefixes has precedence
            stripped[short] = value
    return stripped


def _strip(name: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    """Yield `name`, and then what remains of it as one prefix after the other is stripped."""
    yield name
    while prefix := next((p for p in prefixes if name.startswith(p)), None):
        name = name.removeprefix(prefix)
        yield name
