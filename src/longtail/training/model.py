"""The model of a run: built from its seed, tried out before anything is touched, loaded."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.core.seeding import stream
from longtail.data.base import Data
from longtail.methods import Method, Model
from longtail.nn import backbones
from longtail.training.resident import augmentation, sample_input


def build_model(config: Config, method: Method, data: Data) -> Model:
    """The model of a run, initialised from its seed alone, on the CPU."""
    check_backbone(config, method, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(config.seed, "init"))
        backbone = backbones.build(config.backbone, data.train.inputs.shape[1])
        model = Model(backbone, method.head(backbone.dim, len(data.classes)))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class NetworkProbe(NamedTuple):
    """What is known of a network after one input has gone through it."""

    dim: int
    """D of its features."""
    activations: int
    """Numbers that its layers put out for one input."""
    random: bool
    """Whether it has randomness of its own, such as dropout."""


def check_fits(config: Config, method: Method, data: Data, world: int) -> NetworkProbe:
    """Refuse what could not be trained: try backbone and head, lay the batch on the ranks."""
    augmentation(data, config.train)
    check_backbone(config, method, data)
    sample = sample_input(data, config.train)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            tried = _tried(config.backbone, sample.shape[1:])
        except UserError:
            raise
        except Exception as error:  # whatever a network raises on a size that is not its own
            shape = "x".join(map(str, sample.shape[1:]))
            raise UserError(
                f"--backbone {config.backbone} does not take inputs of {shape}: {error}. Another "
                "--image-size or --backbone may fit"
            ) from error
        method.head(tried.dim, len(data.classes)).eval()(torch.zeros(1, tried.dim))
        _check_parts(config, sample.shape[1:], len(data.train), world)
    return tried


@cache  # a bench has many trainings of one network
def _tried(backbone: str, shape: torch.Size) -> NetworkProbe:
    """What the backbone really makes of inputs of `shape`."""
    network = backbones.build(backbone, shape[0]).eval()
    layers = [layer for layer in network.modules() if not list(layer.children())]
    made: list[int] = []

    def count(layer: nn.Module, args: object, output: object) -> None:
        parts = output if isinstance(output, tuple) else (output,)  # as a recurrent layer's
        made.extend(part.numel() for part in parts if isinstance(part, Tensor))

    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        (dim,) = network(torch.zeros(1, *shape)).shape[1:]
    finally:
        for hook in hooks:
            hook.remove()
    if dim != network.dim:
        raise ValueError(f"its features have {dim} numbers, not {network.dim}")
    return NetworkProbe(dim, sum(made), any(map(_draws, layers)))


def _draws(layer: nn.Module) -> bool:
    """Whether a layer drops values, or paths, at random while training."""
    return any(getattr(layer, name, 0.0) for name in ("p", "drop_prob"))


def check_backbone(config: Config, method: Method, data: Data) -> None:
    """Images need a network, embeddings none."""
    name = config.backbone
    if data.embeddings == (name == "identity"):
        return
    if method.backbone:
        raise UserError(
            f"{config.method} works only with the backbone {name}, which needs images, and "
            f"{data.name} holds embeddings: leave it out"
        )
    kind = "embeddings" if data.embeddings else "images"
    other = "--backbone identity" if data.embeddings else "a network, such as conv4"
    raise UserError(f"{data.name} holds {kind}: it needs {other}, not --backbone {name}")


def batch_of_rank(config: Config, images: int, world: int) -> int:
    """Images of a step on each rank, in equal parts; few images make a smaller step."""
    size, parts = config.train.batch_size, config.machine.accumulate
    if size % (world * parts):
        fits = size // (world * parts) * world * parts or world * parts
        raise UserError(
            f"--batch-size {size} counts images over all ranks and does not divide by the "
            f"{world} ranks of this run"
            + (f" times --accumulate {parts}" if parts > 1 else "")
            + f": use {fits}"
        )
    if images < world * parts:
        raise UserError(
            f"{images} training images do not fill a step of {world * parts} parts, which takes "
            f"one at least in each: use {' or '.join(_fewer_parts(parts, world))}"
        )
    return min(size, images) // (world * parts) * parts


def _fewer_parts(parts: int, world: int) -> list[str]:
    smaller = [f"a smaller --accumulate (now {parts})"] * (parts > 1)
    return smaller + [f"fewer ranks than {world}"] * (world > 1)


def short_batch(config: Config, images: int, world: int) -> int:
    """Images of the short last step on each rank, if it is kept: alike on all, the rest dropped."""
    if not config.train.keep_short_batch:
        return 0
    rest = images % (batch_of_rank(config, images, world) * world) // world
    return rest // config.machine.accumulate * config.machine.accumulate


def _check_parts(config: Config, shape: torch.Size, images: int, world: int) -> None:
    """Refuse parts of one image for a network that normalises over more."""
    size, parts = config.train.batch_size, config.machine.accumulate
    if batch_of_rank(config, images, world) == parts:
        where, larger = "every step", [f"a larger --batch-size (now {size})"]
        few = size >= 2 * world * parts  # training images, so that a larger one changes nothing
        ways = ([] if few else larger) + _fewer_parts(parts, world)
    elif short_batch(config, images, world) == parts:
        where = "the short last step of an epoch"
        ways = [f"another --batch-size (now {size})", "no --keep-short-batch"]
    else:
        return
    synchronised = config.machine.sync_batchnorm and world > 1
    if not synchronised and (reason := _why_not_alone(config.backbone, shape)):
        alone = "one in each part" if world * parts > 1 else "just one"
        raise UserError(
            f"--backbone {config.backbone} cannot be trained on one image alone, and of {images} "
            f"training images {where} takes {alone}: use {' or '.join(ways)} ({reason})"
        )


@cache
def _why_not_alone(backbone: str, shape: torch.Size) -> str:
    """What a fresh network says to one input in training mode; nothing if it takes it."""
    try:
        backbones.build(backbone, shape[0]).train()(torch.zeros(1, *shape))
    except ValueError as error:  # as batch normalisation, of a map that has shrunk to one place
        return str(error)
    return ""


def load_weights(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load a state that was saved from such a model, or say that it was not."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"{source} holds the weights of another model than the run's config.yaml asks for: "
            "bring back the one of the two that was changed, or train the run anew with --overwrite"
        ) from error
