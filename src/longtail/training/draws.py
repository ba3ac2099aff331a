"""What the host draws for an epoch: the order of the images, and how each of them is augmented.

Everything is drawn for all ranks together and then split, so global batches are the same, image for
image and crop for crop, on any number of ranks.

Shapes: M images of this rank in an epoch, P augmentation parameters of an image.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from longtail.core.seeding import stream
from longtail.data.augment.crops import Augmentation
from longtail.data.base import Data
from longtail.data.samplers import epoch_order
from longtail.methods.base import Sampler

Drawn = list[tuple[Tensor, list[Tensor]]]
"""For each sampler, rows (M,) and the parameters (M, P) of each augmentation, on the host."""
DRAWING = ThreadPoolExecutor(1, thread_name_prefix="longtail-draws")
"""The thread that draws the next epoch while the device computes this one."""


class EpochDraws:
    """The draws of the current epoch in device tensors that stay, so that a graph reads them.

    Args:
        data: the images are those of its training part.
        seed: of the run.
        samplers: each has an order of its own.
        augmentations: that of the run, then those of further views.
        split: takes the rows of this rank out of (N, ...).
        stop: the epoch after the last of the stage.
        device: of the tensors.
        ahead: whether to draw the next epoch meanwhile. Not where workers are forked, since a fork
            beside a thread may hang.
    """

    def __init__(
        self,
        data: Data,
        seed: int,
        samplers: Sequence[Sampler],
        augmentations: Sequence[Augmentation],
        split: Callable[[Tensor], Tensor],
        *,
        stop: int,
        device: torch.device,
        ahead: bool,
    ):
        self.data, self.seed, self.samplers = data, seed, samplers
        self.augmentations, self.split = augmentations, split
        self.stop, self.ahead = stop, ahead
        self._coming: tuple[int, Future[Drawn]] | None = None
        order = split(torch.arange(len(data.train)))
        draws = [each.draw(len(order), torch.Generator()) for each in augmentations]
        self.orders = [torch.zeros_like(order, device=device) for _ in samplers]
        """Rows (M,) of each sampler."""
        # a capture runs on them, and a crop of no pixels would index outside of a table
        self.parameters = [[rows.to(device, copy=True) for rows in draws] for _ in samplers]
        """Parameters (M, P) of each sampler and each augmentation."""

    def fill(self, epoch: int) -> list[Tensor]:
        """Fill the tensors with the draws of `epoch`; return the orders on the host."""
        coming, self._coming = self._coming, None
        drawn = coming[1].result() if coming and coming[0] == epoch else self._draw(epoch)
        if self.ahead and epoch + 1 < self.stop:
            self._coming = epoch + 1, DRAWING.submit(self._draw, epoch + 1)
        for i, (order, parameters) in enumerate(drawn):
            self.orders[i].copy_(order)
            for kept, new in zip(self.parameters[i], parameters, strict=True):
                kept.copy_(new)
        return [order for order, _ in drawn]

    def _draw(self, epoch: int) -> Drawn:
        return [self._draw_sampler(kind, epoch, i) for i, kind in enumerate(self.samplers)]

    def _draw_sampler(
        self, kind: Sampler, epoch: int, position: int
    ) -> tuple[Tensor, list[Tensor]]:
        labels, generator = self.data.train.labels, torch.Generator()
        generator.manual_seed(stream(self.seed, "order", epoch, position))
        order = epoch_order(kind, labels, self.data.counts, len(labels), generator)
        generator.manual_seed(stream(self.seed, "augment", epoch, position))
        draws = [each.draw(len(labels), generator) for each in self.augmentations]
        return self.split(order), [self.split(rows) for rows in draws]
