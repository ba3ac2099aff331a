"""An audit as text for a terminal of 80 columns."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import torch

from longtail.core.errors import list_some
from longtail.core.names import count_noun, make_printable, shorten
from longtail.data.base import ClassCounts
from longtail.data.findings import Finding, Item
from longtail.data.inspection import Inspection
from longtail.data.label_sets import describe_sizes
from longtail.data.overview import SPLITS
from longtail.evaluation.growth import ClassOutlook
from longtail.reporting.class_order import rank_classes
from longtail.reporting.outlook import RunOutlook

WIDTH = 80
NAME_WIDTH = 30
"""Letters of a class name before a bar."""
MOST_BARS = 40
"""Classes of the longest tail that is drawn whole."""
SHOWN_BARS = 13
"""Bars of the head, the middle and the end of a longer tail."""
MOST_ITEMS_IN_TEXT = 5
"""Items of a finding that the text lists."""
MOST_NAMES = 8
"""Classes that a list in the text or on the page names at most."""


def describe_data(inspection: Inspection) -> Iterator[str]:
    """Describe the counts, the tail and the images."""
    counts, classes = inspection.counts["train"], len(inspection.source.classes)
    readable = inspection.count_readable()
    parts = ", ".join(f"{number:,} {part}" for part, number in readable.items())
    rows = "rows" if not inspection.facts else "images"
    total = sum(readable.values())
    yield make_printable(inspection.name)
    yield f"{total:,} {rows} of {classes:,} classes: {parts}"
    if labels := describe_labels(inspection):
        yield labels
    yield describe_imbalance(counts)
    yield ""
    yield from draw_bars([make_printable(name) for name in inspection.source.classes], counts)
    yield ""
    for split, members in ClassCounts(counts).splits.items():
        names = [make_printable(inspection.source.classes[number]) for number in members]
        listed = f": {list_some(names, MOST_NAMES)}" if names else ""
        line = f"{SPLITS[split]}, {count_noun(len(names), 'class', 'classes')}{listed}"
        yield from _wrap(line, "", "  ")
    yield from _wrap(describe_images(inspection), "", "  ")


def describe_labels(inspection: Inspection) -> str:
    """Describe how many labels the images of multi-label data have; empty for other data."""
    if not inspection.source.multi_label:
        return ""
    sizes = torch.cat([part.labels.sum(1) for part in inspection.source.parts.values()])
    without = count_noun(int((sizes == 0).sum()), "image has", "images have")
    return f"multi-label: {describe_sizes(sizes)} per image, {without} no label"


def describe_imbalance(counts: Sequence[int]) -> str:
    """Describe the imbalance ratio: the largest class over the smallest that has an image."""
    present = [count for count in counts if count]
    if not present:
        return "no class has a training image"
    return (
        f"imbalance ratio {ClassCounts(tuple(counts)).imbalance:.3g}: {max(present):,} training "
        f"images in the largest class, {min(present):,} in the smallest"
    )


def describe_images(inspection: Inspection) -> str:
    """Describe the sizes and colour modes of the images; empty if there are none."""
    images = inspection.summarise_images()
    if images is None:
        return ""
    smallest, median, largest = ("{}x{}".format(*size) for size in images[1:4])
    sizes = (
        f"all images are {smallest}"
        if images.sizes == 1
        else f"{images.sizes:,} image sizes, {smallest} to {largest}, median {median}"
    )
    modes = ", ".join(f"{number:,} {mode}" for mode, number in images.modes.items())
    rotated = f"; {images.rotated:,} stored rotated" if images.rotated else ""
    return f"{sizes}; colour modes: {modes}{rotated}"


def draw_bars(names: Sequence[str], counts: Sequence[int]) -> Iterator[str]:
    """Draw a bar for each class, the largest first; of a long tail its head, middle and end."""
    order = rank_classes(counts)
    if len(order) <= MOST_BARS:
        blocks = [order]
    else:
        middle = (len(order) - SHOWN_BARS) // 2
        blocks = [
            order[:SHOWN_BARS],
            order[middle : middle + SHOWN_BARS],
            order[-SHOWN_BARS:],
        ]
    longest = min(max(len(names[number]) for block in blocks for number in block), NAME_WIDTH)
    largest = max(counts) or 1
    digits = len(f"{largest:,}")
    room = WIDTH - longest - digits - 2
    for place, block in enumerate(blocks):
        if place:
            hidden = order.index(block[0]) - order.index(blocks[place - 1][-1]) - 1
            yield f"... {count_noun(hidden, 'class', 'classes')} more"
        for number in block:
            length = round(room * counts[number] / largest)
            bar = "█" * max(length, 1 if counts[number] else 0)
            name = shorten(names[number], longest)
            yield f"{name:<{longest}} {counts[number]:>{digits},} {bar}".rstrip()


def describe_findings(inspection: Inspection, findings: Iterable[Finding]) -> Iterator[str]:
    """Describe each finding, some of its items, and what to do."""
    number = 0
    for number, finding in enumerate(findings, start=1):
        yield ""
        yield f"{number}. {finding.summary}"
        for item in finding.items[:MOST_ITEMS_IN_TEXT]:
            yield from _wrap(describe_item(inspection, finding, item), "   - ", "     ")
        if (more := len(finding.items) - MOST_ITEMS_IN_TEXT) > 0:
            yield f"   ... and {more:,} more (all of them: --json)"
        yield from _wrap(make_printable(finding.advice), "   > ", "     ")
    if not number:
        yield ""
        yield "Nothing is wrong with this data."


def describe_item(inspection: Inspection, finding: Finding, item: Item) -> str:
    """Describe one item: its rows, their classes if these matter, and the note."""
    with_class = finding.kind == "label-conflicts"
    rows = [
        f"{row.part}: {inspection.name_row(row)}"
        + (f" ({inspection.name_class(row)})" if with_class else "")
        for row in item.rows
    ]
    if item.note in ("=", "~"):
        text = f" {item.note} ".join(rows[:4]) + (f" and {len(rows) - 4:,} more" * (len(rows) > 4))
    else:
        text = ": ".join([*rows, *[item.note] * bool(item.note)])
    return make_printable(text)


TOO_LOOSE = (
    ": too loose to tell which classes more labels would help. The number of images does not "
    "explain the accuracies; train longer, or look at the classes one by one"
)
FLAT = (
    ": too flat to tell which classes more labels would help. The number of images does not "
    "explain the accuracies; look at the classes one by one"
)


def describe_outlook(outlook: RunOutlook) -> Iterator[str]:
    """Describe the curve of a run and the classes that would gain most."""
    yield ""
    yield f"{make_printable(str(outlook.folder))} ({outlook.method}, {outlook.evaluated_on} part)"
    curve = outlook.curve
    if curve is None:
        yield "too few classes with an accuracy to fit accuracy against training images"
        return
    yield from _wrap(describe_curve(outlook), "", "")
    if outlook.names_gains:
        yield "more labels would help most here (gain of the curve from twice as many images):"
        yield from _list_outlooks(outlook.classes[:MOST_NAMES])
    if outlook.far_below:
        yield "far below the curve: check their images and labels before adding more"
        yield from _list_outlooks(outlook.far_below[:MOST_NAMES])


def describe_curve(outlook: RunOutlook) -> str:
    """Describe the fitted curve and how far classes lie from it."""
    curve = outlook.curve
    assert curve is not None
    return (
        f"accuracy = {curve.ceiling:.1f} - {curve.drop:.1f} n^-{curve.power:.2f} for n training "
        f"images, ± {curve.spread:.1f} over {curve.classes:,} classes"
        + ("" if outlook.names_gains else FLAT if curve.ranks else TOO_LOOSE)
    )


def _list_outlooks(outlooks: Iterable[ClassOutlook]) -> Iterator[str]:
    yield f"  {'class':<{NAME_WIDTH}} {'images':>7} {'accuracy':>9} {'expected':>9} {'gain':>6}"
    for each in outlooks:
        name = shorten(make_printable(each.name), NAME_WIDTH)
        yield (
            f"  {name:<{NAME_WIDTH}} {each.images:>7,} {each.accuracy:>9.1f} "
            f"{each.expected:>9.1f} {each.gain:>+6.1f}"
        )


def _wrap(text: str, first: str, rest: str) -> list[str]:
    """Break text into lines that begin with `first` and then `rest`; names keep their hyphens."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
