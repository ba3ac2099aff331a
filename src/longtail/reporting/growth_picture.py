"""Accuracy against training images as a picture: a point for each class, and the fitted curve.

Like the picture of the tail it is an SVG of any width with CSS variables for colours.
"""

import math
from html import escape
from itertools import pairwise

from longtail.core.names import make_printable
from longtail.evaluation.growth import AccuracyCurve, ClassOutlook
from longtail.reporting.class_order import COLOURS
from longtail.reporting.tail_picture import AXIS, TEXT

HEIGHT, TOP, BOTTOM = 260, 16, 24
"""Pixels of the picture, above 100% and below 0%."""
STEPS = 48
"""Pieces of the curve; each is straight."""


def draw_growth(curve: AccuracyCurve, classes: tuple[ClassOutlook, ...]) -> str:
    """Draw the curve over its classes, with the number of images on a logarithmic axis."""
    least = min(each.images for each in classes)
    most = max(each.images for each in classes)
    lines = []
    for percent in (0, 50, 100):
        y = _down(percent)
        lines.append(f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" style="{AXIS}"/>')
        lines.append(f'<text x="0" y="{y - 3:.1f}" style="{TEXT}">{percent}%</text>')
    steps = [least * (most / least) ** (step / STEPS) for step in range(STEPS + 1)]
    for start, end in pairwise(steps):
        lines.append(
            f'<line x1="{_across(start, least, most)}%" x2="{_across(end, least, most)}%" '
            f'y1="{_down(curve.at(start)):.1f}" y2="{_down(curve.at(end)):.1f}" '
            'style="stroke: var(--shade, #0072b2); stroke-width: 2"/>'
        )
    for each in classes:
        title = f"{make_printable(each.name)}: {each.images:,} images, {each.accuracy:.1f}%"
        lines.append(
            f'<circle cx="{_across(each.images, least, most)}%" cy="{_down(each.accuracy):.1f}" '
            f'r="4" style="fill: var(--few, {COLOURS["few"]}); fill-opacity: .8">'
            f"<title>{escape(title)}</title></circle>"
        )
    for images, place, anchor in ((least, 0, "start"), (most, 100, "end")):
        lines.append(
            f'<text x="{place}%" y="{HEIGHT - 6}" text-anchor="{anchor}" style="{TEXT}">'
            f"{images:,} training images</text>"
        )
    inside = "\n".join(lines)
    return (
        f'<svg role="img" aria-label="Accuracy against training images" width="100%" '
        f'height="{HEIGHT}" style="height: {HEIGHT}px" xmlns="http://www.w3.org/2000/svg">'
        f"\n{inside}\n</svg>"
    )


def _across(images: float, least: int, most: int) -> str:
    """Return the place on the axis in percent of the width; points at the ends stay inside."""
    return f"{3 + 94 * math.log(images / least) / (math.log(most / least) or 1):.2f}"


def _down(accuracy: float) -> float:
    """Return the distance from the top in pixels."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * accuracy / 100
