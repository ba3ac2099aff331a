"""Ctrl-C, and the signal of a scheduler, during work that must not stop in the middle."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, which schedulers send before they kill; what handles Ctrl-C handles it too."""


DEFAULTS: dict[int, tuple[Any, type[KeyboardInterrupt]]] = {
    signal.SIGINT: (signal.default_int_handler, KeyboardInterrupt),
    signal.SIGTERM: (signal.SIG_DFL, Terminated),
}
"""The handler of each signal in a program that has no handler of its own, and what it raises."""


class Interrupt:
    """Whether a signal asked the work to stop, and which."""

    requested = False
    kind: type[KeyboardInterrupt] = KeyboardInterrupt


@contextmanager
def defer_interrupt(on_request: Callable[[], None]) -> Iterator[Interrupt]:
    """Note the first SIGINT or SIGTERM and call `on_request`; the second raises at once.

    The block decides where it stops; an interrupt that it has not answered is raised at its end.
    Only the main thread can do this. A program that has its own handler of a signal keeps it.
    """
    interrupt, owner = Interrupt(), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            return  # a forked worker, without which the block could not come to its end
        interrupt.kind = DEFAULTS[number][1]
        if interrupt.requested:
            raise interrupt.kind
        interrupt.requested = True
        on_request()

    main = threading.current_thread() is threading.main_thread()
    ours = [n for n, (default, _) in DEFAULTS.items() if main and signal.getsignal(n) is default]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield interrupt
        if interrupt.requested:
            raise interrupt.kind
    finally:
        for number in ours:
            signal.signal(number, DEFAULTS[number][0])
