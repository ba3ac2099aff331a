"""Matplotlib figures sized for print, and files with the same bytes each time.

matplotlib is imported only when a figure is drawn, and its global state is not used.
"""

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from longtail.core.errors import UserError
from longtail.core.files import check_own, replace_atomically
from longtail.core.names import make_printable
from longtail.reporting.figures.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    # matplotlib's own choice, "best", warns where it takes over a second
    "legend.loc": "upper right",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "mathtext.fontset": "dejavusans",
    # keep text as text, so that it can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "longtail",
}
METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "longtail"},
    "pdf": {"CreationDate": None, "Creator": "longtail", "Producer": None},
    "png": {"Software": "longtail"},
}
"""Metadata without dates for each kind of file."""
OWN = rb"<dc:title>longtail</dc:title>|/Creator \(longtail\)|Software\x00longtail(?! detect)"
"""Regular expression that matches this metadata in a file, but not that of drawn detections."""
MARKS = rb'(<g[^>]*)>((?:\s*<use [^>]*?( style="[^"]*")/>)(?:\s*<use [^>]*?\3/>)+\s*)</g>'
"""A group of marks with one style; matches the group's tag, its content and the style."""
RANK = "class, by rank (1 has the most training images)"
"""Label of an axis of ranks."""
Spread = tuple[float, float | None] | None
"""Mean and deviation over seeds; None if there is no value."""

P = ParamSpec("P")


def apply_style(draw: "Callable[P, Figure]") -> "Callable[P, Figure]":
    """Decorate a drawing function to use `SETTINGS`, whatever the user's own settings are."""

    @wraps(draw)
    def draw_with_settings(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        import matplotlib

        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS, "backend": "agg"}):
            return draw(*args, **kwargs)

    return draw_with_settings


def make_literal(name: str) -> str:
    """Return a user's name as it is drawn: no control characters, and no dollars of mathematics."""
    return make_printable(name).replace("$", r"\$")


def make_panels(columns: int, rows: int = 1, size: tuple[float, float] = (3.4, 2.5)) -> "Figure":
    """Make a figure of `rows` x `columns` panels of `size` inches, with axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def check_out(out: Path) -> str:
    """Return the kind of file that `out` names; refuse another program's file, and other kinds."""
    kind = out.suffix[1:].lower()
    if kind not in METADATA:
        raise UserError(f"{out}: must end in one of {', '.join(f'.{name}' for name in METADATA)}")
    check_own(out, OWN, "longtail figure")
    return kind


def save(figure: "Figure", out: Path | str) -> Path:
    """Write `figure` to `out` in the format of its suffix."""
    import matplotlib

    out = Path(out)
    kind = check_out(out)
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(buffer, format=kind, metadata=METADATA[kind], dpi=200)
    content = buffer.getvalue()
    with replace_atomically(out) as path:
        path.write_bytes(_shorten(content) if kind == "svg" else content)
    return out


def _shorten(svg: bytes) -> bytes:
    """Cut coordinates to hundredths of a point, finer than print, and write equal styles once."""
    svg = re.sub(
        rb' (d|x|y|width|height|transform)="[^"]*"',
        lambda attribute: re.sub(rb"(\.\d\d)\d+", rb"\1", attribute[0]),
        svg,
    )
    return re.sub(MARKS, lambda g: g[1] + g[3] + b">" + g[2].replace(g[3], b"") + b"</g>", svg)


def draw_line(
    axes: "Axes",
    x: Sequence[float],
    figures: Sequence[Spread],
    look: Look,
    label: str,
    **marks: Any,
) -> None:
    """Draw a line through means with a band of one deviation; None leaves a gap."""
    colour, pattern = look
    dashes = (0, tuple(float(part) / 1.4 for part in pattern.split())) if pattern else "-"
    means = np.array([np.nan if figure is None else figure[0] for figure in figures])
    spreads = np.array([figure[1] or 0.0 if figure else 0.0 for figure in figures])
    axes.plot(x, means, color=colour, linestyle=dashes, label=label, ms=3, **marks)
    if spreads.any():
        low, high = means - spreads, means + spreads
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def start_at_zero(figure: "Figure") -> None:
    """Let the y axes of all panels run from 0 to the highest value of any of them."""
    top = max(axes.get_ylim()[1] for axes in figure.axes)
    for axes in figure.axes:
        axes.set_ylim(0, top)


def add_shared_legend(figure: "Figure") -> None:
    """Explain the lines of all panels once, above them."""
    lines: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        lines.update(zip(labels, handles, strict=True))
    figure.legend(lines.values(), lines.keys(), ncols=len(lines), loc="outside upper center")


def set_rank_axis(axes: "Axes", classes: int, label: str) -> None:
    """Let the x axis run over the ranks 1 to `classes`, with ticks at 1 and at round ranks."""
    from matplotlib.ticker import MaxNLocator

    ranks = MaxNLocator(nbins=6, integer=True).tick_values(0, classes)
    axes.set_xticks([1, *(rank for rank in ranks if 1 < rank <= classes)])
    axes.set_xlim(0.5, classes + 0.5)
    axes.set_xlabel(label)
