"""The long tail as a picture: a bar for each class, the largest first, in the colour of its split.

The picture is an SVG to place into a page. Widths are percentages, so it fills any width and its
text keeps its size. Colours are CSS variables (`--many`, `--medium`, `--few`, `--soft`, `--line`)
with fallbacks.
"""

from collections.abc import Sequence
from html import escape

from longtail.data.base import FEW_BELOW, MANY_ABOVE, ClassCounts

COLOURS = {"many": "#0072b2", "medium": "#d98c00", "few": "#b5487c"}
HEIGHT, TOP, BOTTOM = 240, 16, 24
"""Pixels of the picture, above the bars and below them."""
MOST = 300
"""Bars that a screen can show; more classes share bars."""
LONGEST = 24
"""Letters of a class name on the axis."""


def draw_tail(names: Sequence[str], counts: Sequence[int]) -> str:
    """Draw the number of training images of each class; the name shows when the mouse is there."""
    order = sorted(range(len(counts)), key=lambda number: (-counts[number], number))
    each = -(-len(order) // MOST)  # classes that share a bar
    bars = [order[start : start + each] for start in range(0, len(order), each)]
    split_of = {c: name for name, classes in _splits(counts).items() for c in classes}
    largest, width = max(counts) or 1, 100 / len(bars)
    lines = []
    for number, members in enumerate(bars):
        count, split = counts[members[0]], split_of[members[0]]
        height = max((HEIGHT - TOP - BOTTOM) * count / largest, min(count, 1))  # 1 pixel is seen
        lines.append(
            f'<rect x="{number * width:.3f}%" y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{width * 0.86:.3f}%" height="{height:.1f}" '
            f'style="fill: var(--{split}, {COLOURS[split]})">'
            f"<title>{_describe(members, names, counts)}</title></rect>"
        )
    lines += [_draw_boundary(value, largest) for value in (MANY_ABOVE, FEW_BELOW)]
    axis, text = "stroke: var(--line, #999)", "font-size: 12px; fill: var(--soft, currentColor)"
    base = HEIGHT - BOTTOM
    ends = ((0, "start", order[:1]), (100, "end", order[-1:] if len(order) > 1 else []))
    lines.append(f'<line x1="0" x2="100%" y1="{base}" y2="{base}" style="{axis}"/>')
    lines.append(f'<text x="0" y="12" style="{text}">{largest:,} training images</text>')
    for place, anchor, members in ends:
        for number in members:
            shown = escape(_shorten(names[number]))
            lines.append(
                f'<text x="{place}%" y="{HEIGHT - 8}" text-anchor="{anchor}" '
                f'style="{text}">{shown}, {counts[number]:,}</text>'
            )
    inside = "\n".join(lines)
    label = f"Training images of {len(counts)} classes, {largest} to {min(counts)}"
    return (
        f'<svg class="tail" role="img" aria-label="{label}" width="100%" height="{HEIGHT}" '
        f'style="height: {HEIGHT}px" xmlns="http://www.w3.org/2000/svg">\n{inside}\n</svg>'
    )


def _splits(counts: Sequence[int]) -> dict[str, tuple[int, ...]]:
    return ClassCounts(tuple(counts)).splits


def _describe(members: Sequence[int], names: Sequence[str], counts: Sequence[int]) -> str:
    """Describe the classes of a bar by name and number of images."""
    return escape(", ".join(f"{names[number]}: {counts[number]:,}" for number in members))


def _draw_boundary(value: int, largest: int) -> str:
    """Draw the line where a split ends; none if the tallest bar is lower."""
    if value >= largest:
        return ""
    y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / largest
    style = "stroke: var(--soft, currentColor); stroke-dasharray: 2 4"
    text = "font-size: 12px; fill: var(--soft, currentColor)"
    return (
        f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" style="{style}"/>'
        f'<text x="100%" y="{y - 3:.1f}" text-anchor="end" style="{text}">{value}</text>'
    )


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
