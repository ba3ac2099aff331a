"""Features of a whole split by a trained network, each row computed once over all ranks."""

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


@torch.no_grad()
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
    training = model.training
    model.eval()
    inputs = split.inputs
    rows = torch.arange(fabric.global_rank, len(inputs), fabric.world_size)
    features = torch.zeros(len(inputs), model.backbone.dim, device=fabric.device)
    most = CPU_SIZE if fabric.device.type == "cpu" else EVALUATION_SIZE
    size = min(EVALUATION_BATCH, max(1, most // inputs.shape[1:].numel()))
    parts = rows.split(size)
    if isinstance(inputs, StreamedImages):
        batches = stream_batches(inputs, parts, machine, fabric.device)
    else:
        batches = (inputs[part.to(inputs.device)].to(fabric.device) for part in parts)
    pairs = zip(parts, batches, strict=True)
    for part, batch in log_progress("extracted features of", pairs, len(rows), size):
        seen = preprocess(batch).flip(-1) if mirrored else preprocess(batch)
        with fabric.autocast():
            # forward itself: calling a compiled backbone would compile it again for these shapes
            output = model.backbone.forward(to_channels_last(seen))
        features[part.to(fabric.device)] = output.float()
    model.train(training)
    if fabric.world_size > 1:
        features = cast(Tensor, fabric.all_reduce(features, reduce_op="sum"))
    return features


def place_features(config: Config, method: Method, data: Data, fabric: Fabric) -> FeatureBatches:
    """Put the features of the training images on the device, for a training with --freeze.

    The network is the one that the training starts from, so a resumed one gets the same features.
    """
    model = build_model(config, method, data, fresh=True).to(fabric.device)
    preprocess = build_preprocess(data, config.train).to(fabric.device)
    features = extract(model, data.train, preprocess, fabric, config.machine)
    return FeatureBatches(features, data, config.train)
