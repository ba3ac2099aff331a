"""Images that stay encoded on disk and are decoded whenever they are asked for."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from longtail.data.decoding.image_store import Images
from longtail.data.decoding.images import Pixels, decode_some

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamedImages:
    """Stands where a tensor of images (N, 3, H, W) would; `decoded` gives the pixels."""

    store: Images
    rows: Tensor
    """(N,) of the store."""
    size: int
    """H and W."""
    named: set[int] = field(default_factory=set, compare=False)
    """Rows of which it was said that they are black."""

    @property
    def shape(self) -> torch.Size:
        """As the tensor would have it."""
        return torch.Size((len(self.rows), 3, self.size, self.size))

    @property
    def ndim(self) -> int:
        """As the tensor would have it."""
        return 4

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> "StreamedImages":
        return replace(self, rows=self.rows[index])

    def decoded(self, index: Sequence[int]) -> Pixels:
        """The images at the places `index`, in its order; their numbers are rows of the store."""
        rows = self.rows[list(index)]
        return decode_some(self.store.blobs(rows), rows.tolist(), self.size)

    def tell(self, broken: Mapping[int, str]) -> None:
        """Stop at `Pixels.broken`, or name each of them once and go on with black ones."""
        if broken and self.store.corrupt == "stop":
            raise self.store.unreadable(broken, "", "for black images in their place")
        for row, reason in broken.items():
            if row not in self.named:
                log.warning("%s is black: it cannot be read (%s)", self.store.where(row), reason)
        self.named.update(broken)

    def sample(self, most: int) -> Tensor:
        """The pixels of up to `most` images spread over the whole; of those that can be read."""
        rows = self.rows[torch.linspace(0, len(self) - 1, min(most, len(self))).long()]
        filled = self.store.filled(rows)
        self.tell({int(rows[place]): reason for place, reason in filled.broken})
        return filled.images()
