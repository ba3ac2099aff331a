"""Random numbers that depend on the image and the step alone, not on who draws them or when.

Two processes with half the batch each draw what one process draws for the whole of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longtail.core.seeding import stream

PURPOSES = ("flip", "anchors", "regions")


def keys(seed: int, step: int, images: Sequence[int], device: torch.device) -> Tensor:
    """A key (B,) for each of the `images`, by their ids, at `step`."""
    drawn = [stream(seed, "image", step, image) for image in images]
    return torch.tensor(drawn, dtype=torch.long).to(device, non_blocking=True)


def uniform(keys: Tensor, purpose: str, size: int) -> Tensor:
    """Random numbers (B, size) from 0 to 1, float64, from `keys` (B,).

    The finaliser of SplitMix64 (Steele et al. 2014) on a counter; int64 arithmetic wraps around.
    """
    counter = torch.arange(1, size + 1, device=keys.device) * _GOLDEN
    x = keys[:, None] + PURPOSES.index(purpose) * _APART + counter
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    x = x ^ _shifted(x, 31)
    return _shifted(x, 11).double() * 2.0**-53


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A shift to the right that brings in zeros, as of an unsigned number."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


_GOLDEN, _APART = _signed(0x9E3779B97F4A7C15), _signed(0xD1B54A32D192ED03)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
