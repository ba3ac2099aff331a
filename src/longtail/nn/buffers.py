"""Buffers that keep full precision and know the values they start with."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from longtail.nn.ops import at_least_float32


class FloatBuffers(nn.Module):
    """Base class of modules whose buffers are float32, or float64, and know their first values.

    Converting the module to half precision leaves the buffers alone, because a running mean would
    overflow. A module that was built on the meta device has the first values once it has memory.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._first_values: dict[str, float] = {}

    def register_value(
        self, name: str, value: float, shape: tuple[int, ...] = (), persistent: bool = True
    ) -> None:
        """Register a buffer of the given shape, filled with `value`."""
        self._first_values[name] = value
        buffer = at_least_float32(torch.full(shape, float(value)))
        self.register_buffer(name, buffer, persistent)

    def restore_values(self) -> None:
        """Fill the buffers with their first values."""
        for name, value in self._first_values.items():
            getattr(self, name).fill_(value)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        before: dict[str, Tensor] = {name: getattr(self, name) for name in self._first_values}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = getattr(self, name)
            if new.dtype.itemsize < 4:
                self._buffers[name] = old.to(new.device)
            if old.is_meta and not new.is_meta:
                new.fill_(self._first_values[name])
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        device = next(self.parameters(recurse=False)).device
        for name, value in self._first_values.items():
            buffer = at_least_float32(getattr(self, name))  # a state in half precision was assigned
            if buffer.is_meta and device.type != "meta":  # the state has no such buffer
                buffer = torch.full_like(buffer, value, device=device)
            self._buffers[name] = buffer
