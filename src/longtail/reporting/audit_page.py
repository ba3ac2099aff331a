"""An audit as HTML: the tail, the findings with thumbnails, and the curve of a run."""

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from longtail.core.names import make_printable
from longtail.data.base import ClassCounts
from longtail.data.decoding.thumbnails import encode_thumbnail
from longtail.data.duplicates import Row
from longtail.data.findings import Finding
from longtail.data.inspection import Inspection
from longtail.evaluation.result import short_name
from longtail.reporting import audit_text
from longtail.reporting.outlook import RunOutlook
from longtail.reporting.tail_picture import COLOURS, draw_tail
from longtail.reporting.template import source, template

MOST_ITEMS = 200
"""Items of a finding that the page lists."""
MOST_PICTURED = 20
"""Items of a finding that the page shows thumbnails of."""
MOST_ROWS = 4
"""Thumbnails of an item."""
PICTURED = ("leaks", "label-conflicts", "exact-duplicates", "near-duplicates", "odd-sizes")
"""Findings whose images the page shows."""
THUMBNAIL = 96
"""Pixels of the longer side of a thumbnail."""
HEIGHT = 260
"""Pixels of the picture of the curve."""


def render_page(
    inspection: Inspection, findings: Sequence[Finding], outlook: RunOutlook | None
) -> str:
    """Render a page that is complete in one file."""
    return template("audit.html.j2").render(
        title=make_printable(short_name(inspection.name)),
        body=render_body(inspection, findings, outlook),
        style=source("style.css"),
    )


def render_body(
    inspection: Inspection, findings: Sequence[Finding], outlook: RunOutlook | None
) -> str:
    """Render all of the page except its head, as a notebook shows it."""
    names = [make_printable(name) for name in inspection.source.classes]
    counts = inspection.counts
    order = sorted(range(len(names)), key=lambda number: (-counts["train"][number], number))
    thumbnails = _make_thumbnails(inspection, findings)
    return template("audit_body.html.j2").render(
        name=make_printable(short_name(inspection.name)),
        rows="images" if inspection.facts else "rows",
        parts={part: sum(each) for part, each in counts.items()},
        imbalance=audit_text.describe_imbalance(counts["train"]),
        images=audit_text.describe_images(inspection),
        picture=draw_tail(names, counts["train"]),
        splits=[
            (split, COLOURS[split], audit_text.SPLITS[split], [names[c] for c in members])
            for split, members in ClassCounts(counts["train"]).splits.items()
        ],
        classes=[(names[c], [each[c] for each in counts.values()]) for c in order],
        findings=[_describe(inspection, finding, thumbnails) for finding in findings],
        outlook=outlook,
        curve=audit_text.describe_curve(outlook) if outlook and outlook.curve else "",
        plot=draw_curve(outlook) if outlook and outlook.curve else "",
        printable=make_printable,
        shown=audit_text.MOST_NAMES,
    )


def _describe(
    inspection: Inspection, finding: Finding, thumbnails: Mapping[Row, str]
) -> dict[str, Any]:
    """Return what the template shows of a finding."""
    return {
        "summary": finding.summary,
        "advice": finding.advice,
        "more": max(0, len(finding.items) - MOST_ITEMS),
        "items": [
            (
                audit_text.describe_item(inspection, finding, item),
                [thumbnails[row] for row in item.rows[:MOST_ROWS] if row in thumbnails],
            )
            for item in finding.items[:MOST_ITEMS]
        ],
    }


def _make_thumbnails(inspection: Inspection, findings: Iterable[Finding]) -> dict[Row, str]:
    """Return the addresses of thumbnails, as `data:` URLs, of the rows that the page shows."""
    rows = [
        row
        for finding in findings
        if finding.kind in PICTURED
        for item in finding.items[:MOST_PICTURED]
        for row in item.rows[:MOST_ROWS]
    ]
    encoded = {row: encode_thumbnail(blob, THUMBNAIL) for row, blob in inspection.read_rows(rows)}
    return {
        row: f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
        for row, jpeg in encoded.items()
        if jpeg
    }


def draw_curve(outlook: RunOutlook) -> str:
    """Draw accuracy against training images, on a logarithmic axis, as an SVG of any width."""
    curve = outlook.curve
    assert curve is not None
    low, high = (f([each.images for each in outlook.classes]) for f in (min, max))
    span = math.log(high / low) or 1.0

    def across(images: float) -> float:
        return 3 + 94 * math.log(images / low) / span

    def down(accuracy: float) -> float:
        return HEIGHT - 24 - (HEIGHT - 40) * accuracy / 100

    text = "font-size: 12px; fill: var(--soft, currentColor)"
    line = "stroke: var(--line, #999)"
    parts = []
    for percent in (0, 50, 100):
        y = f"{down(percent):.1f}"
        parts.append(f'<line x1="0" x2="100%" y1="{y}" y2="{y}" style="{line}"/>')
        parts.append(f'<text x="0" y="{down(percent) - 3:.1f}" style="{text}">{percent}%</text>')
    steps = [low * (high / low) ** (step / 48) for step in range(49)]
    for one, next_one in pairwise(steps):
        parts.append(
            f'<line x1="{across(one):.2f}%" x2="{across(next_one):.2f}%" '
            f'y1="{down(curve.at(one)):.1f}" y2="{down(curve.at(next_one)):.1f}" '
            'style="stroke: var(--shade, #0072b2); stroke-width: 2"/>'
        )
    for each in outlook.classes:
        title = f"{make_printable(each.name)}: {each.images:,} images, {each.accuracy:.1f}%"
        parts.append(
            f'<circle cx="{across(each.images):.2f}%" cy="{down(each.accuracy):.1f}" r="4" '
            f'style="fill: var(--few, #b5487c); fill-opacity: .8"><title>{escape(title)}'
            "</title></circle>"
        )
    for images, anchor in ((low, "start"), (high, "end")):
        place = 0 if anchor == "start" else 100
        parts.append(
            f'<text x="{place}%" y="{HEIGHT - 6}" text-anchor="{anchor}" style="{text}">'
            f"{images:,} training images</text>"
        )
    inside = "\n".join(parts)
    return (
        f'<svg role="img" aria-label="Accuracy against training images" width="100%" '
        f'height="{HEIGHT}" style="height: {HEIGHT}px" xmlns="http://www.w3.org/2000/svg">'
        f"\n{inside}\n</svg>"
    )
