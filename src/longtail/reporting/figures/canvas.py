"""Paper to draw on: sizes for print, and files that are the same bytes each time.

matplotlib is imported when something is drawn, and without its global state.
"""

import io
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "mathtext.fontset": "dejavusans",
    # text stays text: it can be searched, and any font can show it
    "svg.fonttype": "none",
    "svg.hashsalt": "longtail",
}
METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "longtail"},
    "pdf": {"CreationDate": None, "Creator": "longtail", "Producer": None},
    "png": {"Software": "longtail"},
}
"""No dates, by the kinds of file that can be written."""
MARKS = rb'(<g[^>]*)>((?:\s*<use [^>]*?( style="[^"]*")/>)(?:\s*<use [^>]*?\3/>)+\s*)</g>'
"""A group of marks that have one style: the group, what is in it, the style."""
PANEL = (3.4, 2.5)
"""Inches of one panel: a column of print."""

P = ParamSpec("P")


def apply_style(draw: "Callable[P, Figure]") -> "Callable[P, Figure]":
    """A drawing function under our settings, whatever the user's own are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        import matplotlib

        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS, "backend": "agg"}):
            return draw(*args, **kwargs)

    return drawn


def panels(columns: int, rows: int = 1, size: tuple[float, float] = PANEL) -> "Figure":
    """A figure of `rows` x `columns` panels of `size` inches, its axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def save(figure: "Figure", out: Path | str) -> Path:
    """Write `figure` as its suffix says."""
    import matplotlib

    out = Path(out)
    kind = out.suffix[1:].lower()
    if kind not in METADATA:
        raise UserError(f"{out} ends in none of {', '.join(f'.{name}' for name in METADATA)}")
    drawn = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(drawn, format=kind, metadata=METADATA[kind], dpi=200)
    content = drawn.getvalue()
    with replace_atomically(out) as path:
        path.write_bytes(_shortened(content) if kind == "svg" else content)
    return out


def _shortened(svg: bytes) -> bytes:
    """Coordinates to hundredths of a point, finer than print, and one style for marks alike."""
    svg = re.sub(
        rb' (d|x|y|width|height|transform)="[^"]*"',
        lambda attribute: re.sub(rb"(\.\d\d)\d+", rb"\1", attribute[0]),
        svg,
    )
    return re.sub(MARKS, lambda g: g[1] + g[3] + b">" + g[2].replace(g[3], b"") + b"</g>", svg)


def dashes(pattern: str) -> tuple[int, tuple[float, ...]] | str:
    """A pattern such as '6 3' as matplotlib takes it."""
    return (0, tuple(float(part) / 1.4 for part in pattern.split())) if pattern else "-"


def line(
    axes: "Axes",
    x: list[float],
    figures: list[tuple[float, float | None] | None],
    *,
    colour: str,
    dash: str,
    label: str,
    marker: str = "",
) -> None:
    """A line through means, a band of one deviation around it; a gap where there is nothing."""
    nan = float("nan")
    means = [nan if f is None else f[0] for f in figures]
    spreads = [0.0 if f is None or f[1] is None else f[1] for f in figures]
    axes.plot(x, means, color=colour, linestyle=dashes(dash), label=label, marker=marker, ms=3)
    if any(spreads):
        low = [m - s for m, s in zip(means, spreads, strict=True)]
        high = [m + s for m, s in zip(means, spreads, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
