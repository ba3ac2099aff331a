"""Feeds of batches on the device: from the device's memory if the data set fits, else streamed."""

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
from longtail.detection.data import batches
from longtail.detection.data.batches import DetectionBatch, PreparedImages

SHARE = 0.3
"""Part of the device's free memory that a resident data set may fill."""
HOST_BYTES = 2 << 30
"""Bytes that a resident data set may fill on the CPU."""
AHEAD = 2
"""Batches that each worker prepares ahead if shared memory has room for them."""


class StreamedFeed:
    """Batches of a data set that does not fit the device, decoded by worker processes.

    `loaders` processes on this host each start as many workers.
    """

    def __init__(
        self, data: PreparedImages, device: torch.device, workers: int, loaders: int = 1
    ) -> None:
        self.data, self.device, self.workers, self.loaders = data, device, workers, loaders

    def read(self, order: Sequence[Sequence[int]]) -> Iterator[DetectionBatch]:
        """Yield a batch for each list of image indices in `order`."""
        received = read_chunks(
            self._make_batch,
            [list(images) for images in order],
            workers=min(self.workers, len(order)),
            chunk_bytes=max(map(self._count_bytes, order), default=0),
            most=AHEAD,
            loaders=self.loaders,
            pin=self.device.type == "cuda",
        )
        for batch in received:
            if isinstance(batch, UserError):
                try:
                    raise batch
                finally:
                    del batch  # the error refers to this frame: a cycle would keep the workers
            batch = DetectionBatch(*(part.to(self.device, non_blocking=True) for part in batch))
            yield batch._replace(masks=batches.unpack(batch.masks, batch.images.shape[3]))

    def _make_batch(self, images: list[int]) -> DetectionBatch | UserError:
        """Make a batch in a worker; return a user error, since torch adds a traceback to it."""
        try:
            return batches.collate_and_pack([self.data[i] for i in images], self.data.min_canvas)
        except UserError as error:
            return error

    def _count_bytes(self, images: Sequence[int]) -> int:
        """Return the bytes of a batch in shared memory."""
        height, width = self.data.fit_canvas(images)
        objects = sum(len(self.data.data.pictures[i].instances) for i in images)
        return height * width * (3 * len(images) + math.ceil(objects / 8))


class ResidentFeed:
    """Batches of a data set that is on the device as a whole, on one canvas, with packed masks."""

    def __init__(self, data: PreparedImages, device: torch.device, workers: int) -> None:
        self.data, self.device = data, device
        self.canvas = height, width = data.fit_canvas(range(len(data)))
        room = [len(picture.instances) for picture in data.data.pictures]  # at least its targets
        self.starts = np.cumsum([0, *room])
        empty = partial(torch.empty, dtype=torch.uint8, device=device)
        self.images = empty(len(data), 3, height, width)
        self.masks = empty(self.starts[-1], height, width // 8)
        with ThreadPoolExecutor(max(1, workers)) as pool:
            stored = pool.map(self._store, range(len(data)))
            objects = list(log_progress("decoded", stored, len(data)))
        self.sizes = torch.tensor([data.compute_size(i) for i in range(len(data))]).to(device)
        self.boxes = batches.pad_and_stack([boxes for boxes, _ in objects]).to(device)
        self.labels = batches.pad_and_stack([labels for _, labels in objects]).to(device)
        self.counts = [len(labels) for _, labels in objects]

    def _store(self, i: int) -> tuple[Tensor, Tensor]:
        """Store image `i` and its masks on the device; return its boxes and labels."""
        sample = batches.pack(self.data[i], self.canvas)
        self.images[i] = sample.image
        self.masks[self.starts[i] :][: len(sample.masks)] = sample.masks
        return sample.boxes, sample.labels

    def read(self, order: Sequence[Sequence[int]]) -> Iterator[DetectionBatch]:
        """Yield a batch for each list of image indices in `order`."""
        return map(self._make_batch, order)

    def _make_batch(self, images: Sequence[int]) -> DetectionBatch:
        counts = [self.counts[i] for i in images]
        most = max([1, *counts])
        stored = np.concatenate([self.starts[i] + np.arange(self.counts[i]) for i in images])
        places = (torch.tensor(images), torch.from_numpy(stored), batches.number_masks(counts))
        index, masks, rows = (part.to(self.device, non_blocking=True) for part in places)
        return DetectionBatch(
            images=self.images[index],
            sizes=self.sizes[index],
            boxes=self.boxes[index, :most],
            labels=self.labels[index, :most],
            masks=batches.unpack(self.masks[masks], self.canvas[1]),
            rows=rows,
            keys=torch.zeros_like(index),
        )


Feed = ResidentFeed | StreamedFeed


def choose_feed(data: PreparedImages, device: torch.device, workers: int, loaders: int = 1) -> Feed:
    """Choose a resident feed if the data fits the device and all images have the same canvas.

    On a common larger canvas images would be padded differently than when streamed, and detections
    would depend on the free memory.
    """
    (height, width), *others = {data.fit_canvas([i]) for i in range(len(data))}
    objects = sum(len(picture.instances) for picture in data.data.pictures)
    needed = height * width * (3 * len(data) + objects / 8)
    room = HOST_BYTES if device.type != "cuda" else SHARE * torch.cuda.mem_get_info(device)[0]
    if needed < room and not others:
        return ResidentFeed(data, device, workers)
    return StreamedFeed(data, device, workers, loaders)
