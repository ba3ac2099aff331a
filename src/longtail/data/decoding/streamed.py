"""Images that stay encoded on disk and are decoded for each batch."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import ImageChunk
from longtail.data.overview import describe_inputs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamedImages:
    """Stands in for a tensor of images (N, 3, H, W); `decode` returns the pixels."""

    ndim: ClassVar[int] = 4
    store: ImageStore
    rows: Tensor
    """(N,) rows of the store."""
    size: int
    """H and W."""
    reported: set[int] = field(default_factory=set, compare=False)
    """Unreadable rows that the log names already."""

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor it stands in for."""
        return torch.Size((len(self.rows), 3, self.size, self.size))

    def __repr__(self) -> str:
        return f"StreamedImages({describe_inputs(self.shape)})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> "StreamedImages":
        return replace(self, rows=self.rows[index])

    def decode(self, index: Sequence[int]) -> ImageChunk:
        """Decode the images at `index`, in its order."""
        return self.store.decode_chunk(self.rows[list(index)].tolist())

    def report_unreadable(self, unreadable: Mapping[int, str]) -> None:
        """Raise an error for unreadable rows, or log each once and use black images."""
        if unreadable and self.store.config.corrupt == "stop":
            raise self.store.unreadable_error(unreadable, "", "for black images in their place")
        for row, reason in unreadable.items():
            if row not in self.reported:
                where = self.store.describe(row)
                log.warning("%s is black: it cannot be read (%s)", where, reason)
        self.reported.update(unreadable)

    def decode_sample(self, most: int) -> Tensor:
        """Decode up to `most` images spread over the whole; unreadable ones are left out."""
        index = torch.linspace(0, len(self) - 1, min(most, len(self))).long()
        buffer = self.store.decode_rows(self.rows[index])
        self.report_unreadable(buffer.unreadable)
        return buffer.images()
