"""Randomness is an argument: one seed gives every stream of random numbers by name."""

import hashlib


def stream(seed: int, *labels: object) -> int:
    """A 63-bit seed for the stream that `labels` name, independent of every other stream.

    Epoch and rank are mixed in here and nowhere else, so that a resumed run draws what the
    uninterrupted one would have drawn.
    """
    text = "/".join(str(part) for part in (seed, *labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
