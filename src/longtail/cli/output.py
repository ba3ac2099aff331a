"""Output on the terminal: tables, and the progress of a training."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

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
        self.terminal.print(f"{title}: {count_noun(epochs, 'epoch')}{resumed}")
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


def print_table(results: list[dict[str, Any]]) -> None:
    """Print mean and deviation of each method over its seeds."""
    from longtail.evaluation import tables

    columns = tables.columns(tables.is_uneven(results))
    print_lines([*tables.HEADER, *columns], [row.cells(columns) for row in tables.rows(results)])
    print_part(results)


def print_part(results: Iterable[Mapping[str, Any]]) -> None:
    """Print that results are of the validation part, if any are."""
    if is_first_process() and any(result["evaluated_on"] == "val" for result in results):
        print("evaluated on the validation part")


def print_lines(header: Sequence[str], lines: Iterable[Sequence[str | float | None]]) -> None:
    """Print a plain table with aligned columns, on rank 0 only; None as a dash."""
    if not is_first_process():
        return
    rows = [header, *([_format_cell(cell) for cell in line] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def _format_cell(cell: str | float | None) -> str:
    return "-" if cell is None else cell if isinstance(cell, str) else f"{cell:.1f}"


def count_noun(number: int, noun: str) -> str:
    """Format a count, such as '1 image' or '2,000 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def is_first_process() -> bool:
    """Return whether this process has rank 0."""
    return rank() == 0


def rank() -> int:
    """Return the rank of this process under torchrun, SLURM or --devices, else 0."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    node, local = (int(os.environ.get(name, 0)) for name in ("NODE_RANK", "LOCAL_RANK"))
    return local if node == 0 else max(1, local)
