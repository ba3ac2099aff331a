"""A trained detector at work: images in, detections at the images' own size out."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, distributed

from longtail.core.progress import log_progress
from longtail.data.decoding.host import count_processes
from longtail.detection.average_precision import Detections, measure
from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import NO_LEAST, Canvas, DetectionBatch, PreparedImages
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.data.feeds import ResidentFeed, StreamedFeed, place
from longtail.detection.data.masks import encode
from longtail.detection.network.cascade import CascadeOutput
from longtail.detection.network.detector import Detector
from longtail.detection.network.regions import paste

log = logging.getLogger(__name__)

Source = ResidentFeed | StreamedFeed
MANY = 1000
"""Images on which measuring may take a minute, and so is announced."""
CHUNK = 1 << 26
"""Pixels of masks that are pasted at once: what bounds the memory on a photograph."""


def prepare_images(
    config: DetectionConfig, data: DetectionSet, least: Canvas = NO_LEAST
) -> PreparedImages:
    """Images of the size that `config` asks for."""
    return PreparedImages(data, config.model.image_size, config.model.max_size, least)


def source_of(
    detector: Detector, config: DetectionConfig, data: DetectionSet, fabric: Fabric
) -> Source:
    """Batches of `data` as the detector wants them."""
    height, width = detector.canvas.tolist()
    machine, images = config.machine, prepare_images(config, data, (height, width))
    return place(images, fabric.device, machine.workers, count_processes(machine.general()))


def evaluate_detector(
    detector: Detector,
    config: DetectionConfig,
    data: DetectionSet,
    fabric: Fabric,
    source: Source | None = None,
) -> dict[str, Any]:
    """What the detector is worth on `data`, as `measure` says it.

    Every rank looks at its share; the first one measures, and the others get nothing. `source` is
    for one who judges the same data several times.
    """
    rank, world = fabric.global_rank, fabric.world_size
    share = range(rank, len(data), world)
    seen = predict(detector, config, data, fabric, share, source)
    found = list(log_progress("looked at", seen, len(share)))
    if world > 1:
        shares: list[Any] | None = [None] * world if rank == 0 else None
        distributed.gather_object(found, shares)
        found = [each for share in shares or () for each in share]
    if rank:
        return {}
    if len(data) >= MANY:
        log.info("measuring the average precision on %s images", f"{len(data):,}")
    return measure(data, found)


def predict(
    detector: Detector,
    config: DetectionConfig,
    data: DetectionSet,
    fabric: Fabric,
    images: Sequence[int] | None = None,
    source: Source | None = None,
) -> Iterator[Detections]:
    """Detections in the `images` of `data` that are numbered (all by default), in their order.

    Without a `source` of `data` only those images are read.
    """
    detector.score_by(config).eval()
    chosen = list(range(len(data)) if images is None else images)
    if not chosen:  # no canvas fits no image
        return
    if source is None:
        data, chosen = data.only(chosen), list(range(len(chosen)))
        source = source_of(detector, config, data, fabric)
    order = source.data.order(chosen, max(1, config.train.batch_size // fabric.world_size))
    for numbers, batch in zip(order, source.batches(order), strict=True):
        yield from in_pixels(detect(detector, batch, fabric), batch, data, numbers)


@torch.no_grad()
def detect(detector: Detector, batch: DetectionBatch, fabric: Fabric) -> CascadeOutput:
    """Detections of a batch, on its canvas."""
    with fabric.autocast():
        found = detector(batch)
    assert isinstance(found, CascadeOutput)
    return found


def in_pixels(
    found: CascadeOutput, batch: DetectionBatch, data: DetectionSet, numbers: Sequence[int]
) -> Iterator[Detections]:
    """Detections on a canvas as those of the images as they are stored."""
    counts = (found.labels > 0).sum(1).tolist()
    for i, number in enumerate(numbers):
        picture = data.pictures[number]
        whole = torch.tensor([picture.height, picture.width]).to(batch.sizes)
        scale = (whole / batch.sizes[i]).flip(0).repeat(2)  # (4,): x, y, x, y
        best: Tensor = found.boxes[i, : counts[i]] * scale
        yield Detections(
            image_id=picture.id,
            boxes=best.cpu(),
            scores=found.scores[i, : counts[i]].cpu(),
            labels=found.labels[i, : counts[i]].cpu(),
            masks=_codes(found.masks[i, : counts[i]], best, picture.height, picture.width),
        )


def _codes(masks: Tensor, boxes: Tensor, height: int, width: int) -> list[dict[str, Any]]:
    """Run lengths of masks (N, 28, 28) pasted into their boxes (N, 4)."""
    size = max(1, CHUNK // (height * width))
    parts = zip(masks.split(size), boxes.split(size), strict=True)
    return [code for m, b in parts for code in encode(paste(m, b, height, width))]
