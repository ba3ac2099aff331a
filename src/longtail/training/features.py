"""Features of a whole part by a trained network, each row once over all ranks."""

from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor

from longtail.core.config import MachineConfig
from longtail.core.progress import log_progress
from longtail.data.base import Split
from longtail.data.decoding.streamed import StreamedImages
from longtail.methods import Model
from longtail.nn.preprocess import Preprocess, to_channels_last
from longtail.training.batches import stream_batches

EVALUATION_BATCH = 1000
EVALUATION_SIZE = 1000 * 3 * 96 * 96
"""Most inputs, and most numbers in them, that are judged at a time: no more than a step takes."""


@torch.no_grad()
def extract(
    model: Model, split: Split, preprocess: Preprocess, fabric: Fabric, machine: MachineConfig
) -> Tensor:
    """Features (N, D) of all of `split` in evaluation mode, float32.

    Every rank computes its own rows, and the sum over ranks puts them together: each row once.
    """
    training = model.training
    model.eval()
    inputs = split.inputs
    rows = torch.arange(fabric.global_rank, len(inputs), fabric.world_size)
    features = torch.zeros(len(inputs), model.backbone.dim, device=fabric.device)
    size = min(EVALUATION_BATCH, max(1, EVALUATION_SIZE // inputs.shape[1:].numel()))
    parts = rows.split(size)
    if isinstance(inputs, StreamedImages):
        batches = stream_batches(inputs, parts, machine, fabric.device)
    else:
        batches = (inputs[part.to(inputs.device)].to(fabric.device) for part in parts)
    for part, batch in log_progress("looked at", zip(parts, batches, strict=True), len(rows), size):
        with fabric.autocast():
            # forward itself: a compiled backbone would compile anew for these shapes
            made = model.backbone.forward(to_channels_last(preprocess(batch))).float()
        features[part.to(fabric.device)] = made
    model.train(training)
    if fabric.world_size > 1:
        features = cast(Tensor, fabric.all_reduce(features, reduce_op="sum"))
    return features
