"""Pictures of certainty: the reliability diagram, coverage by class, and accuracy against coverage.

Each is an SVG to place into a page. Colours are CSS variables with fallbacks, as in `tail_picture`.
"""

from collections.abc import Sequence

from longtail.reporting.class_order import COLOURS, rank_classes
from longtail.reporting.tail_picture import AXIS, MOST, TEXT

SIDE, LEFT, BOTTOM, TOP = 230, 34, 36, 18
"""Pixels of a square, and of the margins for its axes; 390 pixels of a phone hold it."""
LOW, HEIGHT = 26, 120
"""Pixels above the bars of the coverage, and of the bars."""
Point = tuple[float, float]


def draw_reliability(
    softmax: Sequence[Sequence[float]], calibrated: Sequence[Sequence[float]] | None
) -> str:
    """Draw accuracy against confidence, as (confidence, accuracy, share) of each bin."""
    lines = [_draw_line([(0, 0), (1, 1)], "var(--soft, #777)", dash="2 4")]
    series = {"softmax": (softmax, COLOURS["medium"], "var(--medium, {})")}
    if calibrated is not None:
        series["calibrated"] = (calibrated, COLOURS["many"], "var(--many, {})")
    for place, (name, (bins, fallback, variable)) in enumerate(series.items()):
        colour = variable.format(fallback)
        lines.append(_draw_line([(bin[0], bin[1]) for bin in bins], colour))
        for confidence, accuracy, share in bins:
            x, y = _place(confidence, accuracy)
            radius = 2 + 6 * share**0.5
            lines.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" style="fill: {colour}">'
                f"<title>{name}: confidence {100 * confidence:.1f} %, accuracy "
                f"{100 * accuracy:.1f} %, {100 * share:.1f} % of the images</title></circle>"
            )
        x, y = LEFT + 8, TOP + 14 + 16 * place
        lines.append(f'<text x="{x}" y="{y}" style="{TEXT}; fill: {colour}">{name}</text>')
    return _frame("Reliability diagram", lines, "probability (%)", "accuracy (%)")


def draw_abstention(points: Sequence[Sequence[float]]) -> str:
    """Draw accuracy against the share of images that get an answer, both in percent."""
    curve = [(share / 100, accuracy / 100) for _, share, accuracy in points]
    lines = [_draw_line(curve, f"var(--many, {COLOURS['many']})")]
    for (size, share, accuracy), (x, y) in zip(points, curve, strict=True):
        cx, cy = _place(x, y)
        lines.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3" style="fill: var(--many, '
            f'{COLOURS["many"]})"><title>sets of at most {size:g} classes: {share:.1f} % of the '
            f"images answered, {accuracy:.1f} % of these correctly</title></circle>"
        )
    return _frame("Accuracy against coverage", lines, "images answered (%)", "accuracy (%)")


def draw_coverage(
    per_class: Sequence[float | None], counts: Sequence[int], splits: Sequence[str], level: float
) -> str:
    """Draw the coverage of each class in percent, from the most to the fewest training images."""
    covered = {c: value for c in rank_classes(counts) if (value := per_class[c]) is not None}
    each = max(1, -(-len(covered) // MOST))  # classes that share a bar
    order = list(covered)
    bars = [order[start : start + each] for start in range(0, len(order), each)]
    width, lines = 100 / max(1, len(bars)), []
    for place, members in enumerate(bars):
        value = sum(covered[c] for c in members) / len(members)
        split, high = splits[members[0]], HEIGHT * value / 100
        lines.append(
            f'<rect x="{place * width:.3f}%" y="{LOW + HEIGHT - high:.1f}" '
            f'width="{width * 0.86:.3f}%" height="{high:.1f}" '
            f'style="fill: var(--{split}, {COLOURS[split]})"><title>{value:.1f} %</title></rect>'
        )
    y = LOW + HEIGHT * (1 - level)
    style = "stroke: var(--ink, currentColor); stroke-dasharray: 4 3"
    lines.append(f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" style="{style}"/>')
    lines.append(f'<text x="0" y="14" style="{TEXT}">wanted: {100 * level:g} %</text>')
    inside, total = "\n".join(lines), LOW + HEIGHT
    return (
        f'<svg role="img" aria-label="Coverage of the answer sets by class" width="100%" '
        f'height="{total}" style="height: {total}px" xmlns="http://www.w3.org/2000/svg">\n'
        f"{inside}\n</svg>"
    )


def _place(x: float, y: float) -> Point:
    """Return the pixel of a point of the unit square."""
    return LEFT + SIDE * x, TOP + SIDE * (1 - y)


def _draw_line(points: Sequence[Point], colour: str, dash: str = "") -> str:
    pixels = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_place(*point) for point in points))
    style = f"fill: none; stroke: {colour}; stroke-width: 1.5; stroke-dasharray: {dash or 'none'}"
    return f'<polyline points="{pixels}" style="{style}"/>'


def _frame(title: str, lines: Sequence[str], below: str, left: str) -> str:
    """Draw axes of percentages around `lines`."""
    parts = []
    for value in (0, 0.5, 1):
        (x, y), label = _place(value, value), f"{100 * value:g}"
        base = TOP + SIDE
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{base}" style="{AXIS}"/>')
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + SIDE}" y1="{y}" y2="{y}" style="{AXIS}"/>')
        middle = 'text-anchor="middle"'
        parts.append(f'<text x="{x}" y="{base + 15}" {middle} style="{TEXT}">{label}</text>')
        end = 'text-anchor="end"'
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4}" {end} style="{TEXT}">{label}</text>')
    parts.append(
        f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 31}" text-anchor="middle" '
        f'style="{TEXT}">{below}</text>'
    )
    parts.append(f'<text x="0" y="11" style="{TEXT}">{left}</text>')
    width, height = LEFT + SIDE + 14, TOP + SIDE + BOTTOM
    inside = "\n".join([*parts, *lines])
    return (
        f'<svg role="img" aria-label="{title}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width: 100%" '
        f'xmlns="http://www.w3.org/2000/svg">\n{inside}\n</svg>'
    )
