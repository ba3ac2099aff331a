"""Batches on the device: decoded once where a data set fits there, by workers where it does not."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.core.progress import log_progress
from longtail.data.decoding.workers import read_chunks
from longtail.detection.data.batches import (
    DetectionBatch,
    PreparedImages,
    collate_packed,
    pack,
    pad_sample,
    rows_of,
    unpack,
)

SHARE = 0.3
"""Of the device's free memory that a resident data set may fill."""
HOST_BYTES = 2 << 30
"""The same where the device is the host."""
AHEAD = 2
"""Batches that each worker may be ahead, where shared memory has room for them."""


class StreamedFeed:
    """Batches of a data set that does not fit the device, decoded by workers.

    Args:
        data: what is read.
        device: where batches are wanted.
        workers: processes.
        loaders: processes of this host that have as many.
    """

    def __init__(
        self, data: PreparedImages, device: torch.device, workers: int, loaders: int = 1
    ) -> None:
        self.data, self.device, self.workers, self.loaders = data, device, workers, loaders

    def batches(self, order: Sequence[Sequence[int]]) -> Iterator[DetectionBatch]:
        """The batches whose images `order` numbers."""
        arriving = read_chunks(
            self._made,
            [list(images) for images in order],
            workers=min(self.workers, len(order)),
            chunk_bytes=max(map(self._bytes, order), default=0),
            most=AHEAD,
            loaders=self.loaders,
            pin=self.device.type == "cuda",
        )
        for batch in arriving:
            if isinstance(batch, UserError):
                try:
                    raise batch
                finally:
                    del batch  # the error refers to this frame: a cycle would keep the workers
            there = DetectionBatch(*(part.to(self.device, non_blocking=True) for part in batch))
            yield there._replace(masks=unpack(there.masks, there.images.shape[3]))

    def _made(self, images: list[int]) -> DetectionBatch | UserError:
        """What a worker makes of a batch.

        A user's mistake is sent as a value, since one that is raised arrives with the worker's
        traceback for a message.
        """
        try:
            return collate_packed([self.data[i] for i in images], self.data.least)
        except UserError as error:
            return error

    def _bytes(self, images: Sequence[int]) -> int:
        height, width = self.data.canvas(images)
        objects = sum(len(self.data.data.pictures[i].instances) for i in images)
        return height * width * (3 * len(images) + math.ceil(objects / 8))


class ResidentFeed:
    """The whole data set on the device, on one canvas; masks are packed eight pixels a byte."""

    def __init__(self, data: PreparedImages, device: torch.device, workers: int) -> None:
        self.data, self.device = data, device
        self.canvas = height, width = data.canvas(range(len(data)))
        room = [len(picture.instances) for picture in data.data.pictures]  # not all are targets
        self.starts = np.cumsum([0, *room])
        empty = partial(torch.empty, dtype=torch.uint8, device=device)
        self.images = empty(len(data), 3, height, width)
        self.masks = empty(self.starts[-1], height, width // 8)
        with ThreadPoolExecutor(max(1, workers)) as pool:
            taken = pool.map(self._take, range(len(data)))
            objects = list(log_progress("decoded", taken, len(data)))
        self.sizes = torch.tensor([data.size(i) for i in range(len(data))]).to(device)
        self.boxes = pad_sample([boxes for boxes, _ in objects]).to(device)
        self.labels = pad_sample([labels for _, labels in objects]).to(device)
        self.counts = [len(labels) for _, labels in objects]

    def _take(self, i: int) -> tuple[Tensor, Tensor]:
        """Put image `i` and its masks in their places at once, and give its boxes and labels."""
        sample = pack(self.data[i], self.canvas)
        self.images[i] = sample.image
        self.masks[self.starts[i] :][: len(sample.masks)] = sample.masks
        return sample.boxes, sample.labels

    def batches(self, order: Sequence[Sequence[int]]) -> Iterator[DetectionBatch]:
        """The batches whose images `order` numbers."""
        for images in order:
            yield self._batch(images)

    def _batch(self, images: Sequence[int]) -> DetectionBatch:
        counts = [self.counts[i] for i in images]
        most = max([1, *counts])
        masks = np.concatenate([self.starts[i] + np.arange(self.counts[i]) for i in images])
        index = self._there(torch.tensor(images))
        return DetectionBatch(
            images=self.images[index],
            sizes=self.sizes[index],
            boxes=self.boxes[index, :most],
            labels=self.labels[index, :most],
            masks=unpack(self.masks[self._there(torch.from_numpy(masks))], self.canvas[1]),
            rows=self._there(rows_of(counts)),
            keys=torch.zeros_like(index),
        )

    def _there(self, values: Tensor) -> Tensor:
        return values.to(self.device, non_blocking=True)


def place(
    data: PreparedImages, device: torch.device, workers: int, loaders: int = 1
) -> ResidentFeed | StreamedFeed:
    """Batches of `data`: resident if it fits, and each image alone is on the same canvas.

    On a larger one they would be padded otherwise than streamed, and detections depend on the
    memory that is free.
    """
    (height, width), *others = {data.canvas([i]) for i in range(len(data))}
    objects = sum(len(picture.instances) for picture in data.data.pictures)
    needed = height * width * (3 * len(data) + objects / 8)
    room = HOST_BYTES if device.type != "cuda" else SHARE * torch.cuda.mem_get_info(device)[0]
    if needed < room and not others:
        return ResidentFeed(data, device, workers)
    return StreamedFeed(data, device, workers, loaders)
