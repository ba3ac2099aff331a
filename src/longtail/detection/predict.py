"""Prediction: images to detections at the images' own size, and their evaluation."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import distributed

from longtail.core.progress import log_progress
from longtail.data.decoding.host import count_processes
from longtail.detection.average_precision import Detections, measure
from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import NO_CANVAS, CanvasSize, DetectionBatch, PreparedImages
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.data.feeds import Feed, choose_feed
from longtail.detection.data.masks import encode
from longtail.detection.network.cascade import CascadeOutput
from longtail.detection.network.detector import Detector
from longtail.detection.network.regions import paste

log = logging.getLogger(__name__)

MANY = 1000
"""Least number of images for which measuring may take a minute and is logged."""
CHUNK = 1 << 26
"""Most pixels of masks pasted at once; it bounds the memory on photographs."""


def prepare_images(
    config: DetectionConfig, data: DetectionSet, min_canvas: CanvasSize = NO_CANVAS
) -> PreparedImages:
    """Resize images as the options in `config` require."""
    return PreparedImages(data, config.model.image_size, config.model.max_size, min_canvas)


def open_feed(
    detector: Detector, config: DetectionConfig, data: DetectionSet, fabric: Fabric
) -> Feed:
    """Open a feed of `data` for the detector."""
    height, width = detector.canvas.tolist()
    images = prepare_images(config, data, (height, width))
    loaders = count_processes(config.machine.to_machine())
    return choose_feed(images, fabric.device, config.machine.workers, loaders)


def evaluate_detector(
    detector: Detector,
    config: DetectionConfig,
    data: DetectionSet,
    fabric: Fabric,
    feed: Feed | None = None,
) -> dict[str, Any]:
    """Evaluate the detector on `data`; return the figures of `measure`.

    Every rank predicts its share of the images. Rank 0 measures; the others return {}. Pass a
    `feed` of `data` to evaluate the same data several times.
    """
    rank, world = fabric.global_rank, fabric.world_size
    share = range(rank, len(data), world)
    predictions = predict(detector, config, data, fabric, share, feed)
    detections = list(log_progress("predicted", predictions, len(share)))
    if world > 1:
        shares: list[Any] | None = [None] * world if rank == 0 else None
        distributed.gather_object(detections, shares)
        detections = [each for share in shares or () for each in share]
    if rank:
        return {}
    if len(data) >= MANY:
        log.info("measuring the average precision on %s images", f"{len(data):,}")
    return measure(data, detections)


def predict(
    detector: Detector,
    config: DetectionConfig,
    data: DetectionSet,
    fabric: Fabric,
    images: Sequence[int] | None = None,
    feed: Feed | None = None,
) -> Iterator[Detections]:
    """Yield the detections in the images of `data` at the indices `images`, by default in all.

    Without a `feed` of `data`, only these images are read.
    """
    detector.set_scoring(config).eval()
    chosen = list(range(len(data)) if images is None else images)
    if not chosen:  # a feed needs at least one image
        return
    if feed is None:
        data, chosen = data.select(chosen), list(range(len(chosen)))
        feed = open_feed(detector, config, data, fabric)
    order = feed.data.split_batches(chosen, max(1, config.train.batch_size // fabric.world_size))
    for numbers, batch in zip(order, feed.read(order), strict=True):
        yield from rescale(detect(detector, batch, fabric), batch, data, numbers)


@torch.no_grad()
def detect(detector: Detector, batch: DetectionBatch, fabric: Fabric) -> CascadeOutput:
    """Detect objects in a batch, on its canvas."""
    with fabric.autocast():
        output = detector(batch)
    assert isinstance(output, CascadeOutput)
    return output


def rescale(
    output: CascadeOutput, batch: DetectionBatch, data: DetectionSet, numbers: Sequence[int]
) -> Iterator[Detections]:
    """Rescale detections on a canvas to the sizes of their images in `data`."""
    counts = (output.labels > 0).sum(1).tolist()
    for i, number in enumerate(numbers):
        picture = data.pictures[number]
        height, width = picture.height, picture.width
        boxes, scores, labels, masks = (part[i, : counts[i]] for part in output)
        scale = torch.tensor([height, width]).to(batch.sizes) / batch.sizes[i]
        boxes = boxes * scale.flip(0).repeat(2)  # (4,): x, y, x, y
        size = max(1, CHUNK // (height * width))
        parts = zip(masks.split(size), boxes.split(size), strict=True)
        codes = [code for m, b in parts for code in encode(paste(m, b, height, width))]
        yield Detections(picture.id, boxes.cpu(), scores.cpu(), labels.cpu(), codes)
