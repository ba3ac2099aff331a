"""Weights that timm and torchvision publish: their networks, their inputs, and their download."""

import os
import re
import socket
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlparse

from longtail.core.config import PRETRAINED
from longtail.core.errors import UserError, list_some, unknown_error
from longtail.nn.backbones import BUILT_IN
from longtail.nn.checkpoints import StateDict

HASH = re.compile(r"[-_][0-9a-f]{8,}$")
"""Hash at the end of a file name, as in `mobilenet_v2-b0353104`."""
TIMEOUT = 10.0
"""Seconds after which a server that does not answer counts as unreachable."""


@dataclass(frozen=True)
class InputConfig:
    """The images that a network's published weights were trained on."""

    mean: tuple[float, ...]
    """Mean of each colour on the 0..1 scale."""
    std: tuple[float, ...]
    interpolation: Literal["bilinear", "bicubic"]
    """How images were resized."""
    size: int
    """Pixels per side."""

    def for_channels(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std of each channel; images without colours take the average colour."""
        if channels == len(self.mean):
            return self.mean, self.std
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return (mean,) * channels, (std,) * channels


def describe_inputs(backbone: str) -> InputConfig | None:
    """Describe the images that weights for `backbone` expect; None for our own networks."""
    library, _, name = backbone.rpartition("/")
    if not library and name in BUILT_IN:
        return None
    if library == "torchvision":
        from torchvision import models

        if name not in (known := models.list_models(module=models)):
            hint = "any classifier of torchvision"
            raise unknown_error("backbone", f"torchvision/{name}", known, hint)
        found = models.get_model_weights(name).DEFAULT.transforms()
        way = found.interpolation.value
        mean, std, size = found.mean, found.std, found.crop_size[0]
    else:
        import timm

        _check_tag(name)
        config = cast(Any, timm.get_pretrained_cfg(name))
        if config is None:
            return None
        way, mean, std, size = config.interpolation, config.mean, config.std, config.input_size[-1]
    resize: Literal["bilinear", "bicubic"] = "bicubic" if way == "bicubic" else "bilinear"
    return InputConfig(tuple(map(float, mean)), tuple(map(float, std)), resize, int(size))


def infer_backbone(path: Path) -> str | None:
    """Infer the network from the name of a file of weights; None if the name does not tell.

    `tf_efficientnet_lite0.safetensors` is timm's, `mobilenet_v2-b0353104.pth` is torchvision's.
    """
    import timm
    from torchvision import models

    of_torchvision = models.list_models(module=models)
    for name in dict.fromkeys((HASH.sub("", path.stem), path.stem)):
        if name in of_torchvision:
            urls = [entry.url for entry in models.get_model_weights(name)]
            if not timm.is_model(name) or any(url.endswith(f"/{path.name}") for url in urls):
                return f"torchvision/{name}"
        if timm.is_model(name):
            base, _, tag = name.partition(".")
            return name if tag in ("", *_list_tags(base)) else base
    return None


def _list_tags(name: str) -> list[str]:
    """List the published weights of timm's network `name`, as in resnet18.a1_in1k."""
    import timm

    found = timm.list_models(f"{name}.*", pretrained=True)
    return [full.partition(".")[2] for full in found]


def _check_tag(name: str) -> None:
    """Refuse the name of weights that timm does not know, such as resnet18.typo."""
    base, _, tag = name.partition(".")
    if tag and tag not in (known := _list_tags(base)):
        raise unknown_error("weights", name, [f"{base}.{one}" for one in known])


def require_backbone(weights: str) -> str:
    """Infer the network of `weights`, a file or `pretrained`, or ask for its name."""
    if weights != PRETRAINED and not Path(weights).is_file():
        raise UserError(
            f"--weights {weights} is not a file: pass a file of weights, or --pretrained"
        )
    if weights != PRETRAINED and (found := infer_backbone(Path(weights))):
        return found
    what = "--pretrained" if weights == PRETRAINED else f"the name of --weights {weights}"
    raise UserError(
        f"{what} does not say which network to use: pass --backbone, a timm name or "
        "torchvision/NAME"
    )


def fetch_state(backbone: str) -> StateDict:
    """Download the published weights of `backbone`, or read them from the library's cache."""
    library, _, name = backbone.rpartition("/")
    if not library and name in BUILT_IN:
        raise UserError(
            f"--pretrained: {name} has no published weights. Choose a network of timm or "
            "torchvision, such as --backbone resnet18, or pass --weights FILE"
        )
    return _fetch_torchvision(name) if library == "torchvision" else _fetch_timm(name)


def _fetch_torchvision(name: str) -> StateDict:
    from torch.hub import get_dir
    from torchvision import models

    if name not in models.list_models(module=models):
        raise _unpublished(f"torchvision/{name}", [])
    url = models.get_model_weights(name).DEFAULT.url
    with _explain_failure(url, Path(get_dir()) / "checkpoints"):
        return cast(StateDict, models.get_model(name, weights="DEFAULT").state_dict())


def _fetch_timm(name: str) -> StateDict:
    import timm
    from huggingface_hub import constants
    from torch.hub import get_dir

    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise _unpublished(name, timm.list_models(pretrained=True))
    on_hub = bool(config.hf_hub_id)
    url = f"{constants.ENDPOINT}/{config.hf_hub_id}" if on_hub else str(config.url)
    cache = Path(constants.HF_HUB_CACHE) if on_hub else Path(get_dir()) / "checkpoints"
    before = constants.HF_HUB_OFFLINE
    # without a network the hub's own retries would take a minute, though the cache may suffice
    constants.HF_HUB_OFFLINE = before or not _is_reachable(url)
    try:
        with _explain_failure(url, cache):
            return cast(StateDict, timm.create_model(name, pretrained=True).state_dict())
    finally:
        constants.HF_HUB_OFFLINE = before


def _unpublished(name: str, published: list[str]) -> UserError:
    """Return the error for a network without published weights."""
    base = name.partition(".")[0]
    family = [other for other in published if other.partition(".")[0] == base]
    near = family or get_close_matches(name, published, n=3, cutoff=0.6)
    close = f" Close to it are {list_some(near)}." if near else ""
    return UserError(
        f"--pretrained: no published weights are known for {name}.{close} Choose a --backbone that "
        "has some, or pass your own with --weights FILE"
    )


@contextmanager
def _explain_failure(url: str, cache: Path) -> Iterator[None]:
    """Turn a failed download into an error with a way out, and never wait for long."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    except Exception as error:  # each library and each kind of network fails in its own way
        reason = textwrap.shorten(str(error), 200, placeholder=" ...") or type(error).__name__
        raise UserError(
            f"--pretrained: the weights could not be downloaded from {url} and are not in the "
            f"cache {cache} ({reason}). Connect to the network, or copy the file from a machine "
            "that has it and pass --weights FILE"
        ) from None
    finally:
        socket.setdefaulttimeout(before)


def _is_reachable(url: str) -> bool:
    """Whether the host of `url` answers; True behind a proxy, without asking."""
    proxies = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    if any(os.environ.get(name) for name in proxies):
        return True
    host = urlparse(url)
    try:
        port = host.port or (80 if host.scheme == "http" else 443)
        socket.create_connection((host.hostname or "", port), timeout=TIMEOUT).close()
    except OSError:
        return False
    return True
