"""What a person sees of a training: a row per epoch, and meanwhile a live line.

A log has no live line: an epoch that lasts says every minute how far it is.
"""

import time
from typing import Any, Self

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

LIVE_SECONDS, LOG_SECONDS = 0.1, 60.0
"""At least so long from one line of an unfinished epoch to the next."""


class Console:
    """Watches trainings, one after the other, as `engine.Progress`; afterwards it is closed."""

    def __init__(self, terminal: Terminal | None = None):
        self.terminal = terminal or Terminal(highlight=False)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, title: str, epochs: int, done: int) -> None:
        """A training starts, or goes on after `done` epochs."""
        self.close()
        self._epochs, self._epoch, self._began = epochs, done, time.perf_counter()
        self._first, self._last_line = done, self._began
        resumed = f", resumed after epoch {done}" if done else ""
        self.terminal.print(f"{title}: {epochs} epochs{resumed}")
        if self.terminal.is_terminal:
            self._live = Live(console=self.terminal, transient=True, auto_refresh=False)
            self._live.start()

    def step(self, done: int, steps: int, images: int) -> None:
        """Say how far the epoch is, unless that was just said."""
        now = time.perf_counter()
        if done == 1:  # which may have waited for a capture, or for the first images
            self._first_step = now
        if now - self._last_line < (LIVE_SECONDS if self._live else LOG_SECONDS):
            return
        self._last_line = now
        line = f"epoch {self._epoch + 1}/{self._epochs}  step {done}/{steps}"
        if done > 1:
            speed = images * (done - 1) / steps / (now - self._first_step)
            line += f"  {speed:,.0f} images/s"
        line += self._left(done / steps)
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
        """Give the terminal back."""
        if self._live:
            self._live.stop()
            self._live = None

    def _left(self, part: float) -> str:
        """From the speed so far, once an epoch has passed; `part` is of the one that runs."""
        if self._epoch == self._first:
            return ""
        passed = self._epoch - self._first + part
        seconds = (time.perf_counter() - self._began) / passed * (self._epochs - self._epoch - part)
        return f"  about {seconds:.0f} s left"
