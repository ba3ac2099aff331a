"""Networks of timm and torchvision by their full names, as in `timm/resnet50`.

Shapes: images (B, C, H, W), features (B, D).
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError, unknown_error
from longtail.nn.attention import ModulatedAttention

PREFIXES = ("timm/", "torchvision/")
"""Prefixes of the full names of networks."""
ImageSize = tuple[int, int]
"""(H, W) of the images that a network takes."""
CLASSES = 1000
"""Outputs of a network whose last layer is removed at once; no hidden layer has as many."""
WITH_AUXILIARY = ("googlenet", "inception_v3")
"""Networks of torchvision that have more classifiers, unless they are built without."""
STRIDE = 32
"""Pixels per side of the last feature map's pixels in torchvision's convolutional networks."""


class Backbone(nn.Module):
    """Base class of all backbones: inputs (B, ...) in, features (B, dim) out."""

    dim: int
    stride = 1
    """Pixels per side of the image for each pixel of the last feature map, or patch size."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: ModulatedAttention | None = None
        """Changes the last feature map before it is pooled, once the network `attends`."""

    @property
    def attends(self) -> bool:
        """Whether `forward` uses the attention."""
        return self.attention is not None and self.attention.attends

    def attend(self, x: Tensor) -> Tensor:
        """Return the features (B, dim) of images x, pooled from the map that attention changed."""
        assert self.attention is not None
        return self.pool(self.attention(self.compute_map(x)))

    def compute_map(self, x: Tensor) -> Tensor | None:
        """Return the last feature map (B, C, h, w) of images x; None if the network has none."""
        network = cast(Any, self.inner)
        split = hasattr(network, "forward_features") and find_map_order(network) == "NCHW"
        found = network.forward_features(x) if split else None
        return found if isinstance(found, Tensor) and found.ndim == 4 else None

    def pool(self, maps: Tensor) -> Tensor:
        """Return the features (B, dim) of feature maps (B, C, h, w)."""
        return cast(Tensor, cast(Any, self.inner).forward_head(maps))

    @property
    def inner(self) -> nn.Module:
        """The module whose names are those of the library that published it."""
        return self


class Timm(Backbone):
    """Any timm model without its classifier; those of a fixed size are made for `image_size`."""

    def __init__(self, name: str, channels: int, image_size: ImageSize | None = None):
        import timm

        super().__init__()
        options = timm_size(name, image_size)
        self.model = timm.create_model(name, num_classes=0, in_chans=channels, **options)
        # width after the hidden layer of some models; num_features is that of the last stage
        self.dim = int(getattr(self.model, "head_hidden_size", None) or self.model.num_features)  # type: ignore[arg-type]
        maps = cast(Any, getattr(self.model, "feature_info", None)) or [{}]
        self.stride = int(maps[-1].get("reduction", 1))

    @property
    def inner(self) -> nn.Module:
        return self.model

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x) if self.attends else cast(Tensor, self.model(x))


class HeadlessNetwork(Backbone):
    """The network called `name` without its last layer, `layer`, which it replaces in place."""

    def __init__(self, name: str, network: nn.Module, layer: str):
        super().__init__()
        self.name, self.dim = name, cast(nn.Linear, network.get_submodule(layer)).in_features
        self.stride = cast(int, getattr(network, "patch_size", STRIDE))
        network.set_submodule(layer, nn.Identity())
        self.network = network

    @property
    def inner(self) -> nn.Module:
        return self.network

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x) if self.attends else cast(Tensor, self.network(x))


def find_map_order(network: nn.Module) -> str:
    """Return the order of the axes of a network's feature maps, which timm sets for some."""
    order = getattr(network, "output_fmt", "NCHW")
    return str(getattr(order, "value", order))


def build_headless(
    full_name: str, channels: int, image_size: ImageSize | None = None
) -> HeadlessNetwork:
    """Build the network called `full_name` without its last layer."""
    if full_name not in find_full_names(full_name.partition("/")[2]):
        raise UserError(f"there is no network '{full_name}' in this version of its library")
    network = create_network(full_name, channels, image_size)
    layer = find_last_linear(network, CLASSES)
    if layer is None:
        raise UserError(f"{full_name} does not end in a linear layer: use another network")
    return HeadlessNetwork(full_name, network, layer)


def find_full_names(name: str) -> list[str]:
    """Find every network called `name`, in timm and in torchvision."""
    import timm
    from torchvision import models

    of_torchvision = models.list_models(module=models)
    known = (timm.is_model(name), name in of_torchvision)
    if not any(known):
        names = [*timm.list_models(), *of_torchvision]
        raise unknown_error("network", name, names, "any of timm or torchvision")
    return [prefix + name for prefix, has in zip(PREFIXES, known, strict=True) if has]


def create_network(
    full_name: str, channels: int, image_size: ImageSize | None = None, classes: int = CLASSES
) -> nn.Module:
    """Create the complete network with random weights."""
    import timm
    from torchvision import models

    library, _, name = full_name.partition("/")
    if library == "timm":
        options = timm_size(name, image_size)
        return timm.create_model(name, num_classes=classes, in_chans=channels, **options)
    more: dict[str, Any] = {}
    if name in WITH_AUXILIARY:
        more = {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_") and image_size:
        if image_size[0] != image_size[1]:
            raise UserError(f"{full_name} takes square images, not {image_size[1]}x{image_size[0]}")
        more = {"image_size": image_size[0]}
    network = cast(nn.Module, models.get_model(name, weights=None, num_classes=classes, **more))
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # as timm builds its networks
    _take_channels(network, channels)
    return network


def timm_size(name: str, image_size: ImageSize | None) -> dict[str, Any]:
    """Return the options with which timm makes `name` for `image_size`, if it has a fixed size."""
    import timm

    config = timm.get_pretrained_cfg(name) if image_size else None
    return {"img_size": image_size} if image_size and config and config.fixed_input_size else {}


def _take_channels(network: nn.Module, channels: int) -> None:
    """Replace the first convolution of a network for colour images, as timm does for its own."""
    from timm.models import adapt_input_conv

    convolutions = ((n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d))
    name, first = next(convolutions)
    if channels == first.in_channels:
        return
    values = {key: getattr(first, key) for key in ("kernel_size", "stride", "padding")}
    made = nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **values)
    with torch.no_grad():
        made.weight.copy_(adapt_input_conv(channels, first.weight))
        if made.bias is not None:
            made.bias.copy_(cast(Tensor, first.bias))
    network.set_submodule(name, made)


def find_last_linear(network: nn.Module, classes: int) -> str | None:
    """Return the name of the last linear layer with `classes` outputs, or None."""
    linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    return next((name for name, m in reversed(linear) if m.out_features == classes), None)
