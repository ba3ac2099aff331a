"""Try a training out before it touches a folder: network, head, and batch sizes over ranks."""

import logging
import time
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.methods.base import Method
from longtail.nn import backbones
from longtail.nn.libraries import Backbone
from longtail.training.head_kinds import check_head
from longtail.training.inputs import choose_augmentation, sample_input
from longtail.training.model import build_attention, check_backbone

logger = logging.getLogger(__name__)


TIMED_IMAGES = 8
"""Images of the step that is timed."""


class NetworkProbe(NamedTuple):
    """Facts about a network, found by passing one input through it."""

    dim: int
    """Length D of its features."""
    activations: int
    """Numbers that all its layers output for one input."""
    random: bool
    """Whether a layer is random while training, such as dropout."""
    stride: int
    """Pixels of the image for each pixel of the last feature map."""


def check_fits(config: Config, method: Method, data: Data, world: int) -> NetworkProbe:
    """Refuse a training that cannot run on `world` ranks; return what the trial showed."""
    frozen, drops = config.train.freeze, config.train.drop > 0
    if frozen and method.backbone:
        raise UserError(
            f"{config.method} trains a network of its own, which --freeze would leave untrained: "
            "leave out --freeze or this method"
        )
    if not frozen:
        choose_augmentation(data, config.train)  # raises if the sizes do not fit
    check_backbone(config, method, data)
    sample = sample_input(data, config.train)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            probe = probe_network(config.backbone, sample.shape[1:])
            _check_stride(config, probe, sample.shape[2:])
            if method.attention:
                build_attention(_build(config.backbone, sample.shape[1:]), config, method, data)
        except UserError:
            raise
        except Exception as error:  # networks raise anything on a size they do not take
            shape = "x".join(map(str, sample.shape[1:]))
            raise UserError(
                f"--backbone {config.backbone} does not take inputs of {shape}: {error}. Another "
                "--image-size or --backbone may fit"
            ) from error
        head = method.head(probe.dim, len(data.classes)).eval()
        check_head(head, config.method, len(data.classes))
        head(torch.zeros(1, probe.dim))
        if not frozen:
            _check_single_images(config, sample.shape[1:], len(data.train), world)
    if frozen:  # only features pass through a step
        return probe._replace(activations=probe.dim, random=drops)
    return probe._replace(random=probe.random or drops)


def _check_stride(config: Config, probe: NetworkProbe, size: torch.Size) -> None:
    """Refuse images that weights see as less than one pixel; warn if the network is untrained."""
    if not size or min(size) >= probe.stride:
        return
    problem = (
        f"images of {size[1]}x{size[0]} pixels are smaller than the stride of {config.backbone}, "
        f"{probe.stride} pixels: its last feature map is a single pixel, most of it padding. Pass "
        f"--image-size {2 * probe.stride} or more (--crop-size for arrays), or a network for small "
        "images"
    )
    if config.weights:
        raise UserError(problem)
    logger.warning("%s", problem)


@cache  # a bench has many trainings of one network
def probe_network(backbone: str, shape: torch.Size) -> NetworkProbe:
    """Pass one input of `shape` through a fresh network."""
    network = _build(backbone, shape).eval()
    layers = [layer for layer in network.modules() if not list(layer.children())]
    sizes: list[int] = []

    def count(layer: nn.Module, args: object, output: object) -> None:
        parts = output if isinstance(output, tuple) else (output,)  # a recurrent layer's
        sizes.extend(part.numel() for part in parts if isinstance(part, Tensor))

    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        (dim,) = network(torch.zeros(1, *shape)).shape[1:]
    finally:
        for hook in hooks:
            hook.remove()
    if dim != network.dim:
        raise ValueError(f"its features have {dim} numbers, not {network.dim}")
    # a layer may drop values, or paths, at random while training
    random = any(getattr(layer, name, 0.0) for layer in layers for name in ("p", "drop_prob"))
    return NetworkProbe(dim, sum(sizes), random, network.stride)


def _build(backbone: str, shape: torch.Size) -> Backbone:
    """Build the network for inputs of `shape`."""
    return backbones.build(backbone, shape[0], (shape[1], shape[2]) if len(shape) == 3 else None)


def time_image(config: Config, data: Data) -> float:
    """Measure the seconds that a training step of the network takes for one image, on the CPU."""
    sample = sample_input(data, config.train)
    images = sample.repeat(TIMED_IMAGES, 1, 1, 1)
    with torch.random.fork_rng(devices=[]):
        network = _build(config.backbone, sample.shape[1:]).train()
        for _ in range(2):  # the first pass also sets the network up
            began = time.perf_counter()
            network(images).sum().backward()
    return (time.perf_counter() - began) / TIMED_IMAGES


def batch_per_rank(config: Config, images: int, world: int) -> int:
    """Images per step on each rank, a multiple of --accumulate; at most the training images."""
    size, parts = config.train.batch_size, config.machine.accumulate
    if size % (world * parts):
        fits = size // (world * parts) * world * parts or world * parts
        times = f" times --accumulate {parts}" if parts > 1 else ""
        raise UserError(
            f"--batch-size {size} counts images over all ranks and does not divide by the "
            f"{world} ranks of this run{times}: use {fits}"
        )
    if images < world * parts:
        raise UserError(
            f"{images} training images do not fill a step of {world * parts} parts, each of at "
            f"least one image: use {' or '.join(_fewer_parts(parts, world))}"
        )
    return min(size, images) // (world * parts) * parts


def short_batch(config: Config, images: int, world: int) -> int:
    """Images in the short last step on each rank; 0 unless --keep-short-batch keeps it.

    All ranks take equally many, so a few images may be left over.
    """
    if not config.train.keep_short_batch:
        return 0
    rest = images % (batch_per_rank(config, images, world) * world) // world
    return rest // config.machine.accumulate * config.machine.accumulate


def _check_single_images(config: Config, shape: torch.Size, images: int, world: int) -> None:
    """Refuse parts of one image if the network normalises over several."""
    size, parts = config.train.batch_size, config.machine.accumulate
    if batch_per_rank(config, images, world) == parts:
        where, larger = "every step", [f"a larger --batch-size (now {size})"]
        few = size >= 2 * world * parts  # too few images: a larger batch changes nothing
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


def _fewer_parts(parts: int, world: int) -> list[str]:
    """Ways to split a step into fewer parts, for errors."""
    smaller = [f"a smaller --accumulate (now {parts})"] * (parts > 1)
    return smaller + [f"fewer ranks than {world}"] * (world > 1)


@cache
def _why_not_alone(backbone: str, shape: torch.Size) -> str:
    """The error of a fresh network trained on one input; empty if there is none."""
    try:
        _build(backbone, shape).train()(torch.zeros(1, *shape))
    except ValueError as error:  # batch normalisation of a 1x1 map
        return str(error)
    return ""
