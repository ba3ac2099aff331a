"""Features of a whole split by a trained network, each row computed once over all ranks."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor

from longtail.core.config import Config, MachineConfig
from longtail.core.progress import log_progress
from longtail.data.base import Data, Split
from longtail.data.decoding.streamed import StreamedImages
from longtail.methods.base import Method, Model
from longtail.nn.preprocess import Preprocess, to_channels_last
from longtail.training.batches import FeatureBatches, stream_batches
from longtail.training.inputs import build_preprocess
from longtail.training.model import build_model

EVALUATION_BATCH = 1000
"""Most inputs in a batch."""
EVALUATION_SIZE = 1000 * 3 * 96 * 96
"""Most numbers in the inputs of a batch, so that it takes no more memory than a training step."""
CPU_SIZE = 1000 * 3 * 32 * 32
"""The same on a CPU, where large batches spend more time on fresh memory than on arithmetic."""


def extract(
    model: Model,
    split: Split,
    preprocess: Preprocess,
    fabric: Fabric,
    machine: MachineConfig,
    *,
    mirrored: bool = False,
) -> Tensor:
    """Extract the features (N, D) of `split`, or of its mirror images, in evaluation mode.

    They are float32. Every rank fills its own rows of a zero matrix; the sum over ranks has all
    rows, each once.
    """
    inputs = split.inputs
    rows = torch.arange(len(inputs))[fabric.global_rank :: fabric.world_size]
    batches = rows.split(choose_batch_size(inputs, fabric.device))
    features = torch.zeros(len(inputs), model.backbone.dim, device=fabric.device)
    stream = read_batches(inputs, batches, machine, fabric.device)
    found = extract_batches(model, stream, preprocess, fabric, mirrored=mirrored)
    for batch, output in zip(batches, found, strict=True):
        features[batch.to(fabric.device)] = output
    if fabric.world_size > 1:
        features = cast(Tensor, fabric.all_reduce(features, reduce_op="sum"))
    return features


def read_batches(
    inputs: Tensor | StreamedImages,
    batches: Sequence[Tensor],
    machine: MachineConfig,
    device: torch.device,
) -> Iterator[Tensor]:
    """Yield the inputs (B, C, H, W) of each of `batches`, row numbers (B,), on `device`.

    The workers of streamed images start at once.
    """
    if isinstance(inputs, StreamedImages):
        stream = stream_batches(inputs, batches, machine, device)
    else:
        stream = (inputs[rows.to(inputs.device)].to(device) for rows in batches)
    each = len(batches[0]) if batches else 1
    return log_progress("extracted features of", stream, sum(map(len, batches)), each)


@torch.no_grad()
def extract_batches(
    model: Model,
    batches: Iterator[Tensor],
    preprocess: Preprocess,
    fabric: Fabric,
    *,
    mirrored: bool = False,
) -> Iterator[Tensor]:
    """Yield the features (B, D) of each of `batches`, or of their mirror images."""
    training = model.training
    model.eval()
    try:
        for batch in batches:
            seen = preprocess(batch).flip(-1) if mirrored else preprocess(batch)
            with fabric.autocast():
                # forward itself: calling a compiled backbone would compile it for these shapes
                output = model.backbone.forward(to_channels_last(seen))
            yield output.float()
    finally:
        model.train(training)


def choose_batch_size(inputs: Tensor | StreamedImages, device: torch.device) -> int:
    """Return the number of inputs in a batch of `extract_batches`, except the last."""
    most = CPU_SIZE if device.type == "cpu" else EVALUATION_SIZE
    return min(EVALUATION_BATCH, max(1, most // inputs.shape[1:].numel()))


def place_features(config: Config, method: Method, data: Data, fabric: Fabric) -> FeatureBatches:
    """Put the features of the training images on the device, for a training with --freeze.

    The network is the one that the training starts from, so a resumed one gets the same features.
    """
    model = build_model(config, method, data, fresh=True).to(fabric.device)
    preprocess = build_preprocess(data, config.train).to(fabric.device)
    features = extract(model, data.train, preprocess, fabric, config.machine)
    return FeatureBatches(features, data, config.train)
