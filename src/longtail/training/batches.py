"""Where the network inputs of a step come from.

Images that fit the device stay there as uint8; others stream to it from worker processes. Both
take the same batched functions on the device, with the same result. A stage may ask for further
views of the images of a batch, each with an augmentation and draws of its own.

Shapes: N training images, B in a batch, stored images (C, H, W).
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from longtail.core.config import MachineConfig, TrainConfig
from longtail.data.augment.crops import Augmentation, NoAugmentation
from longtail.data.base import Data, Split
from longtail.data.decoding.host import cores_per_process, count_processes
from longtail.data.decoding.images import ImageChunk
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.decoding.workers import CHUNK, read_chunks
from longtail.methods.base import View
from longtail.nn.preprocess import to_channels_last
from longtail.training.inputs import (
    augment_views,
    build_preprocess,
    choose_augmentation,
    choose_view,
    input_size,
)

RESIDENT_SHARE = 0.5
"""Part of the device's memory that resident images may take; the network needs the rest."""


def must_stream(data: Data, device: torch.device) -> bool:
    """Whether the training images do not fit on `device`."""
    inputs = data.train.inputs
    if isinstance(inputs, StreamedImages):
        return True
    if device.type != "cuda":
        return False
    room = RESIDENT_SHARE * torch.cuda.get_device_properties(device).total_memory
    return inputs.numel() * inputs.element_size() > room


class ResidentBatches:
    """Batches gathered from a copy of the training set on the device."""

    capturable = True
    """Whether a CUDA graph can hold `draw`."""

    def __init__(
        self,
        data: Data,
        train: TrainConfig,
        device: torch.device,
        views: Sequence[View] = (),
    ):
        self.augmentation = choose_augmentation(data, train)
        self.views = {name: choose_view(name, data, train) for name in views}
        images = data.train.input_tensor
        prepared = self.augmentation.prepare(images)
        # (N, C, H, W) uint8 images, prepared, or (N, D) embeddings
        self.source = prepared.to(device)
        # (N, C, H, W) images that are not prepared, for further views
        self.images = images.to(device) if views and prepared is not images else self.source
        self.labels = data.train.labels.to(device)  # (N,)
        self.preprocess = build_preprocess(data, train).to(device)

    def begin_epoch(self, orders: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Do nothing: the images are on the device already."""

    def draw(self, index: Tensor, draws: Tensor, sampler: int) -> Tensor:
        """Network inputs of the rows in `index` (B,), augmented by their `draws` (B, P)."""
        return to_channels_last(self.preprocess(self.augmentation(self.source, index, draws)))

    def draw_views(
        self, index: Tensor, names: Sequence[View], draws: Sequence[Tensor], sampler: int
    ) -> Tensor:
        """Network inputs (V * B, C, H, W) of further views of the rows in `index` (B,).

        The view called names[v] of each row is augmented by draws[v] (B, P).
        """
        views = augment_views(self.images, index, self.views, names, draws)
        return to_channels_last(self.preprocess(views))


class StreamedBatches:
    """Batches that worker processes read, for a training set too large for the device."""

    capturable = False
    """A CUDA graph cannot wait for workers."""

    def __init__(
        self,
        data: Data,
        train: TrainConfig,
        machine: MachineConfig,
        device: torch.device,
        views: Sequence[View] = (),
    ):
        self.views = {name: choose_view(name, data, train) for name in views}
        self.inputs, self.machine, self.device = data.train.inputs, machine, device
        self.labels = data.train.labels.to(device)
        self.augmentation = choose_augmentation(data, train)
        self.preprocess = build_preprocess(data, train).to(device)
        self._streams: list[Iterator[Tensor]] = []
        self._latest: dict[int, Tensor] = {}  # images (B, C, H, W) that each sampler drew last

    def begin_epoch(self, orders: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Start the workers on the rows of each sampler, in batches of `sizes`."""
        batches = [list(order.split(list(sizes))) for order in orders]
        self._streams = [
            stream_batches(self.inputs, rows, self.machine, self.device, streams=len(batches))
            for rows in batches
        ]

    def draw(self, index: Tensor, draws: Tensor, sampler: int) -> Tensor:
        """Network inputs of the sampler's next batch, which holds the rows in `index` (B,)."""
        images = next(self._streams[sampler])
        if self.views:
            self._latest[sampler] = images
        source = self.augmentation.prepare(images)
        places = torch.arange(len(index), device=self.device)
        return to_channels_last(self.preprocess(self.augmentation(source, places, draws)))

    def draw_views(
        self, index: Tensor, names: Sequence[View], draws: Sequence[Tensor], sampler: int
    ) -> Tensor:
        """Network inputs (V * B, C, H, W) of further views of the batch that `draw` drew last."""
        places = torch.arange(len(index), device=self.device)
        views = augment_views(self._latest.pop(sampler), places, self.views, names, draws)
        return to_channels_last(self.preprocess(views))


class FeatureBatches:
    """Batches of the features that a frozen network has computed of the training images.

    A method that mixes images mixes features instead.
    """

    capturable = True
    """Whether a CUDA graph can hold `draw`."""

    def __init__(self, features: Tensor, data: Data, train: TrainConfig):
        self.augmentation = NoAugmentation()
        self.source = features  # (N, D)
        self.labels = data.train.labels.to(features.device)  # (N,)
        self.views: dict[View, Augmentation] = {}
        self.preprocess = build_preprocess(data, train).to(features.device)  # for other images
        self._others: dict[int, tuple[Split, Tensor]] = {}  # by id; the split keeps its id taken

    def remember(self, split: Split, extract: Callable[[Split], Tensor]) -> Tensor:
        """Return the features of images that are not trained on; `extract` is called once."""
        if id(split) not in self._others:
            self._others[id(split)] = split, extract(split)
        return self._others[id(split)][1]

    def begin_epoch(self, orders: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Do nothing: the features are on the device already."""

    def draw(self, index: Tensor, draws: Tensor, sampler: int) -> Tensor:
        """Features (B, D) of the rows in `index` (B,)."""
        return self.source[index]

    def draw_views(
        self, index: Tensor, names: Sequence[View], draws: Sequence[Tensor], sampler: int
    ) -> Tensor:
        """Raise: features have no further views, and a plan with them is refused."""
        raise AssertionError("features have no further views")


Batches = ResidentBatches | StreamedBatches | FeatureBatches


def place(
    data: Data,
    train: TrainConfig,
    machine: MachineConfig,
    device: torch.device,
    views: Sequence[View] = (),
) -> Batches:
    """Put the training set on the device if it fits there, else stream it.

    `views` names the further views that stages will ask for.
    """
    if must_stream(data, device):
        return StreamedBatches(data, train, machine, device, views)
    return ResidentBatches(data, train, device, views)


def identify_batches(data: Data, train: TrainConfig, views: Sequence[View] = ()) -> Hashable:
    """Return a value that trainings share if they can share their batches."""
    size = None if data.embeddings else input_size(data, train)
    augmentations = choose_augmentation(data, train), *(choose_view(v, data, train) for v in views)
    return data.subset_sha256, data.train.inputs.shape, data.mean, data.std, size, augmentations


def stream_batches(
    inputs: Tensor | StreamedImages,
    batches: Sequence[Tensor],
    machine: MachineConfig,
    device: torch.device,
    *,
    streams: int = 1,
) -> Iterator[Tensor]:
    """Yield the images of each batch on `device`; the workers start at once.

    `batches` are row numbers of `inputs`, (B,) each. As many iterators as `streams`, this one
    included, are read in turn and share the workers.
    """
    places = [chunk.tolist() for batch in batches for chunk in batch.split(CHUNK)]
    wide = inputs.element_size() if isinstance(inputs, Tensor) else 1
    chunks = read_chunks(
        inputs.decode if isinstance(inputs, StreamedImages) else partial(_take_rows, inputs),
        places,
        workers=count_workers(machine, streams) if places else 0,
        chunk_bytes=CHUNK * math.prod(inputs.shape[1:]) * wide,
        loaders=streams * count_processes(machine),
        pin=device.type == "cuda",
    )
    joined = _join_chunks(inputs, chunks, [len(batch) for batch in batches], device)
    return _prefetch(joined, device) if device.type == "cuda" else joined


def count_workers(machine: MachineConfig, streams: int = 1) -> int:
    """Workers of each stream: a share of --workers, or of the cores of this process."""
    if machine.workers == 0:
        return 0
    return max(1, (machine.workers or cores_per_process(machine)) // streams)


def _take_rows(inputs: Tensor, rows: list[int]) -> ImageChunk:
    return ImageChunk(inputs[rows], {})


def _join_chunks(
    inputs: Tensor | StreamedImages,
    chunks: Iterator[ImageChunk],
    sizes: Sequence[int],
    device: torch.device,
) -> Iterator[Tensor]:
    """Copy chunks to the device and join them to batches of `sizes`."""
    dtype = inputs.dtype if isinstance(inputs, Tensor) else torch.uint8
    for size in sizes:
        batch = torch.empty(size, *inputs.shape[1:], dtype=dtype, device=device)
        filled = 0
        while filled < size:
            chunk = next(chunks)
            if chunk.unreadable:
                assert isinstance(inputs, StreamedImages)
                inputs.report_unreadable(chunk.unreadable)
            count = len(chunk.images)
            batch[filled : filled + count].copy_(chunk.images, non_blocking=True)
            filled += count
        yield batch


def _prefetch(batches: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield `batches`, copying each to the device while it computes the step before.

    It yields a batch only when the next one has come from the workers: if they are late, the epoch
    ends one step later, instead of every step waiting.
    """
    copying = _copy_stream(device)

    def fetch() -> Tensor | None:
        with torch.cuda.stream(copying):
            return next(batches, None)

    coming = fetch()
    while coming is not None:
        arrived, batch = copying.record_event(), coming
        coming = fetch()
        reader = torch.cuda.current_stream(device)
        reader.wait_event(arrived)
        batch.record_stream(reader)  # or the copying stream could reuse its memory too early
        yield batch


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all batches: every stream keeps a memory pool of its own."""
    return torch.cuda.Stream(device, priority=-1)
