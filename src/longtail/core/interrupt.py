"""Ctrl-C during work that must not stop in the middle."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed."""

    requested = False


@contextmanager
def defer_interrupt(on_request: Callable[[], None]) -> Iterator[Interrupt]:
    """Note the first Ctrl-C and call `on_request` instead of raising; the second raises at once.

    The block decides where it stops; an interrupt that it has not answered is raised at its end.
    Only the main thread can do this. A program that has its own handler of Ctrl-C keeps it.
    """
    interrupt, owner = Interrupt(), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            return  # a forked worker, without which the block could not come to its end
        if interrupt.requested:
            signal.default_int_handler(number, frame)
        interrupt.requested = True
        on_request()

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
        if interrupt.requested:
            raise KeyboardInterrupt
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
