"""Images that do not fit the device: workers read them, pinned memory carries them over.

On the device they take the same batched functions as resident images, and come out the same.
Shapes: B images in a batch, stored (C, H, W).
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from longtail.core.config import MachineConfig, TrainConfig
from longtail.data.base import Data
from longtail.data.decoding.host import cores_per_process, count_processes
from longtail.data.decoding.images import Pixels
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.decoding.workers import CHUNK, read_chunks
from longtail.training.resident import ResidentBatches, View, augmentation

SHARE = 0.5
"""Of the device's memory that resident images may take; the rest is the network's."""


def place(
    data: Data, train: TrainConfig, machine: MachineConfig, device: torch.device
) -> "ResidentBatches | StreamedBatches":
    """The training set on the device if it fits there, else streaming to it."""
    if streams(data, device):
        return StreamedBatches(data, train, machine, device)
    return ResidentBatches.place(data, train, device)


def streams(data: Data, device: torch.device) -> bool:
    """Whether the training images cannot stay on `device`."""
    inputs = data.train.inputs
    if isinstance(inputs, StreamedImages):
        return True
    if device.type != "cuda":
        return False
    room = SHARE * torch.cuda.get_device_properties(device).total_memory
    return inputs.numel() * inputs.element_size() > room


class StreamedBatches:
    """Takes the place of `Resident`."""

    captured = False
    """A graph cannot wait for workers."""

    def __init__(
        self, data: Data, train: TrainConfig, machine: MachineConfig, device: torch.device
    ):
        self.inputs = data.train.inputs
        self.labels = data.train.labels.to(device)
        self.augmentation = augmentation(data, train)
        self.view = View.of(data, train, device)
        self.machine = machine
        self.device = device
        self._feeds: list[Iterator[Tensor]] = []

    def begin(self, orders: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Start the workers on an epoch: rows of each sampler, in batches of `sizes`."""
        batches = [list(order.split(list(sizes))) for order in orders]
        self._feeds = [
            stream_batches(self.inputs, rows, self.machine, self.device, feeds=len(batches))
            for rows in batches
        ]

    def draw(self, index: Tensor, drawn: Tensor, sampler: int) -> Tensor:
        """Network inputs of the sampler's next batch, which holds the rows in `index`."""
        source = self.augmentation.ready(next(self._feeds[sampler]))
        places = torch.arange(len(index), device=self.device)
        return self.view.network_inputs(self.augmentation(source, places, drawn))


def stream_batches(
    inputs: Tensor | StreamedImages,
    batches: Sequence[Tensor],
    machine: MachineConfig,
    device: torch.device,
    *,
    feeds: int = 1,
) -> Iterator[Tensor]:
    """The images at the places of each of `batches`, on `device`; workers begin at once.

    Args:
        inputs: the images.
        batches: places, (B,) each.
        machine: its workers.
        device: where the images are wanted.
        feeds: such iterators that are read by turns, and share the workers.
    """
    places = [chunk.tolist() for batch in batches for chunk in batch.split(CHUNK)]
    wide = inputs.element_size() if isinstance(inputs, Tensor) else 1
    arriving = read_chunks(
        inputs.decoded if isinstance(inputs, StreamedImages) else partial(_taken, inputs),
        places,
        workers=workers_of(machine, feeds) if places else 0,
        chunk_bytes=CHUNK * math.prod(inputs.shape[1:]) * wide,
        loaders=feeds * count_processes(machine),
        pin=device.type == "cuda",
    )
    made = _joined(inputs, arriving, [len(batch) for batch in batches], device)
    return _early(made, device) if device.type == "cuda" else made


def _taken(inputs: Tensor, index: list[int]) -> Pixels:
    return Pixels(inputs[index], {})


def _joined(
    inputs: Tensor | StreamedImages,
    arriving: Iterator[Pixels],
    sizes: Sequence[int],
    device: torch.device,
) -> Iterator[Tensor]:
    """Chunks put together to batches on the device."""
    dtype = inputs.dtype if isinstance(inputs, Tensor) else torch.uint8
    for size in sizes:
        whole = torch.empty(size, *inputs.shape[1:], dtype=dtype, device=device)
        filled = 0
        while filled < size:
            chunk = next(arriving)
            if chunk.broken:
                assert isinstance(inputs, StreamedImages)
                inputs.tell(chunk.broken)
            count = len(chunk.images)
            whole[filled : filled + count].copy_(chunk.images, non_blocking=True)
            filled += count
        yield whole


def _early(batches: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The same, each carried to the device while the step before it is computed there.

    It waits for workers before it gives out what it has: where they are late, the epoch ends a step
    later, and not each step.
    """
    carrier = _carrier(device)

    def carried() -> Tensor | None:
        with torch.cuda.stream(carrier):
            return next(batches, None)

    coming = carried()
    while coming is not None:
        there, whole = carrier.record_event(), coming
        coming = carried()
        reader = torch.cuda.current_stream(device)
        reader.wait_event(there)
        whole.record_stream(reader)  # its memory is the carrier's, and given out again there
        yield whole


@cache
def _carrier(device: torch.device) -> torch.cuda.Stream:
    """One for all, since each has a store of memory of its own."""
    return torch.cuda.Stream(device, priority=-1)


def workers_of(machine: MachineConfig, feeds: int = 1) -> int:
    """For each of `feeds`: as many as asked for, else the cores for this process, shared out."""
    if machine.workers == 0:
        return 0
    return max(1, (machine.workers or cores_per_process(machine)) // feeds)
