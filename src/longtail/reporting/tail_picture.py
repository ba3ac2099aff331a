"""The long tail as a picture: a bar for each class, the largest first, in the colour of its split.

The picture is an SVG to place into a page. Widths are percentages, so it fills any width and its
text keeps its size. Colours are CSS variables (`--many`, `--medium`, `--few`, `--soft`, `--line`)
with fallbacks.
"""

from collections.abc import Sequence
from html import escape

from longtail.core.names import shorten
from longtail.data.base import FEW_BELOW, MANY_ABOVE, ClassCounts
from longtail.reporting.class_order import COLOURS, rank_classes

HEIGHT, TOP, BOTTOM = 240, 16, 24
"""Pixels of the picture, above the bars and below them."""
MOST = 300
"""Bars that a screen can show; more classes share bars."""
LONGEST, LONGEST_NARROW = 60, 18
"""Letters of a class name on the axis, and on a narrow screen; two of them fit 390 pixels."""
NARROW = """<style>
.tail .narrow { display: none }
@media (max-width: 44rem) { .tail .narrow { display: inline } .tail .roomy { display: none } }
</style>"""
"""Shows the names that fit the screen."""
AXIS = "stroke: var(--line, #999)"
TEXT = "font-size: 12px; fill: var(--soft, currentColor)"


def draw_tail(names: Sequence[str], counts: Sequence[int]) -> str:
    """Draw the number of training images of each class; the name shows when the mouse is there."""
    order = rank_classes(counts)
    each = -(-len(order) // MOST)  # classes that share a bar
    bars = [order[start : start + each] for start in range(0, len(order), each)]
    largest = max(counts) or 1
    lines = [_draw_bar(place, len(bars), bar, names, counts) for place, bar in enumerate(bars)]
    lines += [_draw_boundary(value, largest) for value in (MANY_ABOVE, FEW_BELOW)]
    base = HEIGHT - BOTTOM
    lines.append(f'<line x1="0" x2="100%" y1="{base}" y2="{base}" style="{AXIS}"/>')
    lines.append(f'<text x="0" y="12" style="{TEXT}">{largest:,} training images</text>')
    lines += [_draw_name(order[0], "0", "start", names, counts)]
    lines += [_draw_name(order[-1], "100%", "end", names, counts)]
    inside = "\n".join(lines)
    label = f"Training images of {len(counts)} classes, {largest} to {min(counts)}"
    return (
        f'<svg class="tail" role="img" aria-label="{label}" width="100%" height="{HEIGHT}" '
        f'style="height: {HEIGHT}px" xmlns="http://www.w3.org/2000/svg">\n{inside}\n</svg>'
    )


def _draw_name(
    number: int, x: str, anchor: str, names: Sequence[str], counts: Sequence[int]
) -> str:
    """Draw the name of a class and its images below the axis; a long name also in short."""
    place = f'x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}"'
    kinds = {"roomy": LONGEST, "narrow": LONGEST_NARROW}
    shown = {kind: shorten(names[number], most) for kind, most in kinds.items()}
    if shown["roomy"] == shown["narrow"]:
        del shown["narrow"]
    texts = [
        f'<text class="{kind if len(shown) > 1 else ""}" {place} '
        f'style="{TEXT}">{escape(name)}, {counts[number]:,}</text>'
        for kind, name in shown.items()
    ]
    return "".join([NARROW, *texts] if len(shown) > 1 else texts)


def _draw_bar(
    place: int, bars: int, members: Sequence[int], names: Sequence[str], counts: Sequence[int]
) -> str:
    """Draw the bar of some classes, at the height and in the colour of the first."""
    count, width = counts[members[0]], 100 / bars
    splits = ClassCounts((count,)).splits
    split = next(name for name, classes in splits.items() if classes)
    height = (HEIGHT - TOP - BOTTOM) * count / (max(counts) or 1)
    height = max(height, min(count, 1))  # a pixel can be seen
    return (
        f'<rect x="{place * width:.3f}%" y="{HEIGHT - BOTTOM - height:.1f}" '
        f'width="{width * 0.86:.3f}%" height="{height:.1f}" '
        f'style="fill: var(--{split}, {COLOURS[split]})">'
        f"<title>{_describe(members, names, counts)}</title></rect>"
    )


def _describe(members: Sequence[int], names: Sequence[str], counts: Sequence[int]) -> str:
    """Describe the classes of a bar by name and number of images."""
    return escape(", ".join(f"{names[number]}: {counts[number]:,}" for number in members))


def _draw_boundary(value: int, largest: int) -> str:
    """Draw the line where a split ends; none if the tallest bar is lower."""
    if value >= largest:
        return ""
    y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / largest
    style = "stroke: var(--soft, currentColor); stroke-dasharray: 2 4"
    return (
        f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" style="{style}"/>'
        f'<text x="100%" y="{y - 3:.1f}" text-anchor="end" style="{TEXT}">{value}</text>'
    )
