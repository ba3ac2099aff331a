"""Many names in little memory: one buffer instead of an object for each.

Forked workers share the buffer for good. Of a list of strings each worker would soon have its own
copy, because counting references writes to every string that is read.
"""

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np


class Names(Sequence[str]):
    """An immutable sequence of texts."""

    def __init__(self, names: Iterable[str]):
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        self._ends = np.cumsum([0, *map(len, encoded)])  # (N + 1,)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # resolves negative numbers, raises IndexError
        text = self._text[self._ends[index] : self._ends[index + 1]]
        return text.tobytes().decode("utf-8", "surrogateescape")
