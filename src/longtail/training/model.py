"""The model of a run: built from its seed, described as plain values, loaded."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.core.seeding import stream
from longtail.data.base import Data
from longtail.data.decoding.images import Interpolation
from longtail.methods.base import Method, Model
from longtail.nn import backbones
from longtail.nn import weights as networks
from longtail.nn.attention import ModulatedAttention
from longtail.nn.heads import Head
from longtail.nn.libraries import Backbone, ImageSize
from longtail.nn.preprocess import Preprocess
from longtail.nn.published import describe_inputs
from longtail.training.head_kinds import describe_head, find_head, is_storable
from longtail.training.inputs import input_size, sample_input

logger = logging.getLogger(__name__)

LONGEST = 1 << 16
"""Most pixels of a side, and numbers of an embedding, that a file may ask for."""


def build_model(config: Config, method: Method, data: Data, *, fresh: bool = False) -> Model:
    """Build the model of a run on the CPU; its weights depend on the seed alone.

    With `fresh` the network starts from the weights that `config` names; without, a checkpoint
    must follow.
    """
    check_backbone(config, method, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(config.seed, "init"))
        backbone = backbones.build(config.backbone, *_image_shape(config, data))
        model = Model(backbone, method.head(backbone.dim, len(data.classes)), config.train.drop)
        # after the head, which starts as it would without
        backbone.attention = build_attention(backbone, config, method, data)
    if fresh and config.weights:
        backbone.inner.load_state_dict(fit_weights(config, data).state, strict=False)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def build_attention(
    backbone: Backbone, config: Config, method: Method, data: Data
) -> ModulatedAttention | None:
    """Build the attention that `method` asks for; None if there is nothing to attend to.

    Raise if the network is to be trained on images and has no feature map.
    """
    if not method.attention or data.embeddings or config.train.freeze:
        return None
    training = backbone.training
    with torch.no_grad():
        found = backbone.eval().compute_map(sample_input(data, config.train))
    backbone.train(training)
    if found is None:
        raise UserError(
            f"{config.method} attends to the last feature map of a network, and --backbone "
            f"{config.backbone} gives none of the shape (C, H, W): choose a convolutional network "
            "of timm, such as resnet50, or leave this method out"
        )
    return ModulatedAttention(*found.shape[1:])


def check_backbone(config: Config, method: Method, data: Data) -> None:
    """Refuse images without a network and embeddings with one."""
    name = config.backbone
    if data.embeddings and config.weights:
        raise UserError(
            f"--weights {config.weights} are those of a network, and {data.name} holds embeddings, "
            "which need none: leave them out"
        )
    if data.embeddings == (name == "identity"):
        return
    if method.backbone:
        raise UserError(
            f"{config.method} works only with the backbone {name}, which needs images, and "
            f"{data.name} holds embeddings: leave this method out"
        )
    kind = "embeddings" if data.embeddings else "images"
    other = "--backbone identity" if data.embeddings else "--backbone conv4 or another network"
    raise UserError(f"{data.name} holds {kind}: it needs {other}, not --backbone {name}")


def fit_weights(config: Config, data: Data) -> networks.FittedWeights:
    """Fit the weights that a run starts from into its network, and log how they fit, once."""
    assert config.weights is not None
    content = networks.identify(config.weights)
    return _fit_weights(config.weights, content, config.backbone, *_image_shape(config, data))


@lru_cache(maxsize=1)  # seeds and methods start from the same weights
def _fit_weights(
    weights: str, content: str, name: str, channels: int, size: ImageSize | None
) -> networks.FittedWeights:
    """Fit `weights`, whose hash is `content`."""
    with torch.random.fork_rng(devices=[]):
        fitted = networks.fit(backbones.build(name, channels, size), name, weights)
    logger.info("%s", fitted)
    return fitted


def _image_shape(config: Config, data: Data) -> tuple[int, ImageSize | None]:
    """Return the channels of the network's inputs, and the size of images."""
    size = None if data.embeddings else input_size(data, config.train)
    return data.train.inputs.shape[1], size


def use_inputs_of_weights(config: Config, data: Data) -> Data:
    """Return `data` with the mean and deviation that the weights of `config` were trained with."""
    inputs = describe_inputs(config.backbone) if config.weights else None
    if inputs is None or data.embeddings:
        return data
    mean, std = inputs.for_channels(data.train.inputs.shape[1])
    return replace(data, mean=mean, std=std)


def load_weights(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load `state` into `model`; raise if the file `source` was saved from another model."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"{source} holds the weights of another model than the run's config.yaml asks for: "
            "restore whichever of the two was changed, or train again with --overwrite"
        ) from error


def set_training_mode(model: nn.Module) -> None:
    """Set training mode, but keep the batch statistics of frozen layers.

    A module whose parameters are all frozen evaluates, together with every layer inside it: layers
    without parameters, such as stochastic depth, would otherwise change its features at random.
    """
    model.train()
    for module in model.modules():
        own, inside = list(module.parameters(recurse=False)), list(module.parameters())
        if inside and not any(p.requires_grad for p in inside):
            module.eval()
        elif own and not any(p.requires_grad for p in own):
            module.training = False  # not its children, which may be training


@dataclass(frozen=True)
class Blueprint:
    """A trained model as plain values: all that its file holds besides the weights."""

    backbone: str
    """Name of the network; `timm/resnet50` is timm's network without its last layer."""
    head: Mapping[str, Any]
    """Class name of the head as `kind`, and the numbers it is built with."""
    shape: tuple[int, ...]
    """Shape of one input: (C, H, W) of an image, (D,) of an embedding."""
    seen: tuple[int, ...]
    """(H, W) of the centre crop that the network sees; empty for embeddings."""
    mean: tuple[float, ...]
    """Mean of each channel on the 0..1 scale; empty for embeddings."""
    std: tuple[float, ...]
    """Standard deviation of each channel, likewise."""
    interpolation: Interpolation = "bilinear"
    """How images are resized."""
    attention: tuple[int, ...] = ()
    """(C, h, w) of the last feature map if the network has attention over it; else empty."""

    @staticmethod
    def of(
        config: Config, head: Head, data: Data, attention: ModulatedAttention | None = None
    ) -> "Blueprint":
        """Describe `head` and `attention` on the network of `config`, trained on `data`."""
        shape = tuple(data.train.inputs.shape[1:])
        seen = () if data.embeddings else input_size(data, config.train)
        way = data.files.interpolation or "bilinear"
        described = describe_head(head), shape, seen, data.mean, data.std, way
        return Blueprint(config.backbone, *described, attention.shape if attention else ())

    @property
    def embeddings(self) -> bool:
        """Whether the model takes feature vectors, not images."""
        return len(self.shape) == 1

    def build(self) -> Model:
        """Build the model with fresh weights."""
        values = dict(self.head)
        kind = find_head(str(values.pop("kind")))
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers alone
            head, channels = kind(**values), self.shape[0]
            size = None if self.embeddings else (self.seen[0], self.seen[1])
            backbone = backbones.build(self.backbone, channels, size)
            if self.attention:
                backbone.attention = ModulatedAttention(*self.attention, attends=True)
            return Model(backbone, head)

    def preprocess(self) -> Preprocess:
        """Build the module that turns stored inputs into network inputs."""
        size = None if self.embeddings else (self.seen[0], self.seen[1])
        return Preprocess(self.mean, self.std, size)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON that `from_json` reads back."""
        return asdict(self)

    @staticmethod
    def from_json(tree: Mapping[str, Any], source: str) -> "Blueprint":
        """Read what `to_json` returned; errors name `source`, the file."""
        try:
            lists = {name: tuple(tree[name]) for name in ("shape", "seen", "mean", "std")}
            way = tree.get("interpolation", "bilinear")  # absent in older files
            attention = tuple(tree.get("attention", ()))  # likewise
            blueprint = Blueprint(
                str(tree["backbone"]),
                dict(tree["head"]),
                **lists,
                interpolation=way,
                attention=attention,
            )
            channels = 0 if blueprint.embeddings else blueprint.shape[0]
            sound = len(blueprint.shape) in (1, 3) and "kind" in blueprint.head
            sound &= way in ("bilinear", "bicubic")
            sound &= len(blueprint.seen) == len(blueprint.shape[1:])
            sound &= len(attention) in (0, 3)
            sizes = blueprint.shape + blueprint.seen + attention
            sound &= all(type(n) is int and 0 < n <= LONGEST for n in sizes)
            sound &= len(blueprint.mean) == len(blueprint.std) == channels
            numbers = [value for name, value in blueprint.head.items() if name != "kind"]
            sound &= all(is_storable(value) for value in numbers)
            sound &= all(type(value) is float for value in blueprint.mean + blueprint.std)
        except (KeyError, IndexError, TypeError, ValueError):
            sound = False
        if not sound:
            raise UserError(f"{source} does not say which model its weights belong to")
        return blueprint
