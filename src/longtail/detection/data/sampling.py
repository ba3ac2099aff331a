"""Random numbers that depend only on the image and the step, not on who draws them or when.

Two processes with half a batch each draw the same numbers as one process with the whole batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longtail.core.seeding import stream

PURPOSES = ("flip", "anchors", "regions")


def make_keys(seed: int, step: int, images: Sequence[int], device: torch.device) -> Tensor:
    """Return a key (B,) for each image id in `images` at `step`."""
    keys = [stream(seed, "image", step, image) for image in images]
    return torch.tensor(keys, dtype=torch.long).to(device, non_blocking=True)


def uniform(keys: Tensor, purpose: str, size: int) -> Tensor:
    """Draw random numbers (B, size) from 0 to 1, float64, from `keys` (B,).

    This is the finaliser of SplitMix64 (Steele et al. 2014) on a counter; int64 arithmetic wraps
    around.
    """
    counter = torch.arange(1, size + 1, device=keys.device) * _GOLDEN
    x = keys[:, None] + PURPOSES.index(purpose) * _APART + counter
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 11).double() * 2.0**-53


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros, as for unsigned numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _to_signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


_GOLDEN, _APART = _to_signed(0x9E3779B97F4A7C15), _to_signed(0xD1B54A32D192ED03)
_FIRST, _SECOND = _to_signed(0xBF58476D1CE4E5B9), _to_signed(0x94D049BB133111EB)
