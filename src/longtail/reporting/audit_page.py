"""An audit as HTML: the tail, the findings with thumbnails, and the curve of a run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longtail.core.errors import list_some
from longtail.core.names import make_printable
from longtail.data.base import ClassCounts
from longtail.data.decoding.thumbnails import encode_thumbnail
from longtail.data.duplicates import RowPlace
from longtail.data.findings import Finding
from longtail.data.inspection import Inspection
from longtail.data.overview import SPLITS
from longtail.evaluation.result import short_name
from longtail.reporting import audit_text
from longtail.reporting.class_order import COLOURS, rank_classes
from longtail.reporting.growth_picture import draw_growth
from longtail.reporting.outlook import RunOutlook
from longtail.reporting.tail_picture import draw_tail
from longtail.reporting.template import encode_jpeg, source, template

MOST_ITEMS_ON_PAGE = 200
"""Items of a finding that the page lists."""
MOST_PICTURED = 20
"""Items of a finding that the page shows thumbnails of."""
MOST_ROWS = 4
"""Thumbnails of an item."""
PICTURED = ("leaks", "label-conflicts", "exact-duplicates", "near-duplicates", "odd-sizes")
"""Findings whose images the page shows."""
THUMBNAIL = 96
"""Pixels of the longer side of a thumbnail."""


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
    ranked = rank_classes(counts["train"])
    thumbnails = _make_thumbnails(inspection, findings)
    return template("audit_body.html.j2").render(
        name=make_printable(short_name(inspection.name)),
        rows="images" if inspection.facts else "rows",
        parts=inspection.count_readable(),
        imbalance=audit_text.describe_imbalance(counts["train"]),
        labels=audit_text.describe_labels(inspection),
        images=audit_text.describe_images(inspection),
        picture=draw_tail(names, counts["train"]),
        splits=[
            (
                *(split, COLOURS[split], SPLITS[split]),
                *(len(members), list_some([names[c] for c in members], audit_text.MOST_NAMES)),
            )
            for split, members in ClassCounts(counts["train"]).splits.items()
        ],
        classes=[(names[c], [each[c] for each in counts.values()]) for c in ranked],
        findings=[_describe(inspection, finding, thumbnails) for finding in findings],
        outlook=outlook,
        curve=audit_text.describe_curve(outlook) if outlook and outlook.curve else "",
        plot=draw_growth(outlook.curve, outlook.classes) if outlook and outlook.curve else "",
        printable=make_printable,
        shown=audit_text.MOST_NAMES,
    )


def _describe(
    inspection: Inspection, finding: Finding, thumbnails: Mapping[RowPlace, str]
) -> dict[str, Any]:
    """Return what the template shows of a finding."""
    return {
        "summary": finding.summary,
        "advice": make_printable(finding.advice),
        "more": max(0, len(finding.items) - MOST_ITEMS_ON_PAGE),
        "items": [
            (
                audit_text.describe_item(inspection, finding, item),
                [thumbnails[row] for row in item.rows[:MOST_ROWS] if row in thumbnails],
            )
            for item in finding.items[:MOST_ITEMS_ON_PAGE]
        ],
    }


def _make_thumbnails(inspection: Inspection, findings: Iterable[Finding]) -> dict[RowPlace, str]:
    """Return the addresses of thumbnails, as `data:` URLs, of the rows that the page shows."""
    rows = [
        row
        for finding in findings
        if finding.kind in PICTURED
        for item in finding.items[:MOST_PICTURED]
        for row in item.rows[:MOST_ROWS]
    ]
    encoded = {row: encode_thumbnail(blob, THUMBNAIL) for row, blob in inspection.read_rows(rows)}
    return {row: encode_jpeg(jpeg) for row, jpeg in encoded.items() if jpeg}
