"""The progress of a training, shown on a terminal, in a notebook or in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

from longtail.core.names import make_printable

LIVE_SECONDS, LOG_SECONDS = 0.1, 60.0
"""Least time between two progress lines within an epoch, on a terminal and in a log."""


class Console(AbstractContextManager["Console"]):
    """Prints the progress of trainings, one after the other; a `training.loop.Progress`."""

    def __init__(self, terminal: Terminal | None = None):
        self.terminal = terminal or Terminal(highlight=False)
        self._live: Live | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, title: str, epochs: int, done: int) -> None:
        """Announce a training that starts, or resumes after `done` epochs."""
        self.close()
        self._epochs, self._epoch, self._began = epochs, done, time.perf_counter()
        self._first, self._last_line = done, self._began
        resumed = f", resumed after epoch {done}" if done else ""
        title = make_printable(title)
        line = f"{title}: {epochs} {'epoch' if epochs == 1 else 'epochs'}{resumed}"
        self.terminal.print(Text(line))
        if self.terminal.is_terminal:
            self._live = Live(console=self.terminal, transient=True, auto_refresh=False)
            self._live.start()

    def step(self, done: int, steps: int, images: int) -> None:
        """Print how far the epoch is, unless the last line is recent."""
        now = time.perf_counter()
        if done == 1:  # this step may include a graph capture or a wait for the first images
            self._first_step = now
        if now - self._last_line < (LIVE_SECONDS if self._live else LOG_SECONDS):
            return
        self._last_line = now
        line = f"epoch {self._epoch + 1}/{self._epochs}  step {done}/{steps}"
        if done > 1:
            speed = images * (done - 1) / steps / (now - self._first_step)
            line += f"  {speed:,.0f} images/s"
        if self._epoch > self._first:
            passed, left = self._epoch - self._first, self._epochs - self._epoch
            part = done / steps
            line += f"  about {(now - self._began) / (passed + part) * (left - part):.0f} s left"
        if self._live:
            self._live.update(Text(line), refresh=True)
        else:
            self.terminal.print(line)

    def epoch(self, record: dict[str, Any]) -> None:
        """Print the epoch's row."""
        self._epoch, self._last_line = record["epoch"] + 1, time.perf_counter()
        row = (
            f"  {self._epoch:>4}/{self._epochs}  loss {record['loss']:.4f}  lr {record['lr']:.2g}"
            f"  {record['images_per_second']:,.0f} images/s"
        )
        val = record.get("val")
        if val and val["overall"] is not None:
            row += f"  val {val['overall']:.1f}"
            row += "" if val["alpha"] is None else f" at alpha {val['alpha']:g}"
        self.terminal.print(row)
        if self._epoch == self._epochs:
            self.close()

    def close(self) -> None:
        """Remove the live line and show the cursor again."""
        if self._live:
            self._live.stop()
            self._live = None


@contextmanager
def show_if_interactive() -> Iterator[Console | None]:
    """Yield a console on stderr if that is a terminal or this is a notebook, else None."""
    terminal = Terminal(stderr=True, highlight=False)
    if terminal.is_jupyter or sys.stderr.isatty():
        with Console(terminal) as console:
            yield console
    else:
        yield None
