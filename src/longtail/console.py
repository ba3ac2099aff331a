"""What a person sees of a training: a live line and a row per epoch, or plain lines when piped."""

import time
from typing import Any, Self

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text


class Console:
    """Watches trainings, one after the other, as `engine.Progress`; afterwards it is closed."""

    def __init__(self, terminal: Terminal | None = None):
        self.terminal = terminal or Terminal(highlight=False)
        self._live: Live | None = None
        self._last_draw = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, title: str, epochs: int, done: int) -> None:
        """A training starts, or goes on after `done` epochs."""
        self.close()
        self._epochs, self._epoch, self._began = epochs, done, time.perf_counter()
        self._first = done
        resumed = f", resumed after epoch {done}" if done else ""
        self.terminal.print(f"{title}: {epochs} epochs{resumed}")
        if self.terminal.is_terminal:
            self._live = Live(console=self.terminal, transient=True, auto_refresh=False)
            self._live.start()

    def step(self, done: int, steps: int) -> None:
        """Redraw the live line, at most ten times a second."""
        now = time.perf_counter()
        if self._live and now - self._last_draw > 0.1:
            self._last_draw = now
            line = f"epoch {self._epoch + 1}/{self._epochs}  step {done}/{steps}  {self._left()}"
            self._live.update(Text(line), refresh=True)

    def epoch(self, record: dict[str, Any]) -> None:
        """Print the epoch's row."""
        self._epoch = record["epoch"] + 1
        row = (
            f"  {self._epoch:>4}/{self._epochs}  loss {record['loss']:.4f}  lr {record['lr']:.2g}"
            f"  {record['images_per_second']:,.0f} images/s"
        )
        if record.get("val") and record["val"]["overall"] is not None:
            row += f"  val {record['val']['overall']:.1f}"
        self.terminal.print(row)
        if self._epoch == self._epochs:
            self.close()

    def close(self) -> None:
        """Give the terminal back."""
        if self._live:
            self._live.stop()
            self._live = None

    def _left(self) -> str:
        passed = self._epoch - self._first
        if not passed:
            return ""
        seconds = (time.perf_counter() - self._began) / passed * (self._epochs - self._epoch)
        return f"about {seconds:.0f} s left"
