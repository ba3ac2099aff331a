"""What an inspection found, in words: each finding with its rows or classes, and what to do."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from longtail.core.names import count_noun
from longtail.data.checks import file_store
from longtail.data.duplicates import RowPlace
from longtail.data.inspection import Duplicates, Inspection

RARE_MODE = 0.1
"""Share of the images up to which a colour mode is unusual."""
SMALL = 0.25
"""A short side below this part of the median is unusual."""
LONG = 4.0
"""A long side of more than this many short sides is unusual."""
MODES = {
    **{"L": "grey", "1": "black and white", "P": "palette", "LA": "grey with transparency"},
    **{"RGBA": "with transparency", "CMYK": "print colours", "I;16": "16-bit grey"},
}
"""What Pillow's modes mean; RGB needs no explanation."""
PARTED = "--val-fraction may hold out the copy of a training image."
SIGNS = "(= equal, ~ nearly equal)"


@dataclass(frozen=True)
class Item:
    """One thing that a finding names: a row, a group of rows that belong together, or a class."""

    rows: tuple[RowPlace, ...] = ()
    note: str = ""
    """The reason or the class; `=` for equal images and `~` for nearly equal ones."""


@dataclass(frozen=True)
class Finding:
    """One kind of fault."""

    kind: str
    """A short name that programs can rely on."""
    summary: str
    """What was found, with its number."""
    advice: str
    """What to do about it."""
    items: tuple[Item, ...]


def list_findings(inspection: Inspection) -> tuple[Finding, ...]:
    """List what is wrong or unusual, the worst first."""
    return tuple(
        finding
        for find in (
            *(_find_problems, _find_unreadable, _find_not_finite, _find_shared, _find_absent),
            *(_find_unusual, _find_ignored),
        )
        for finding in find(inspection)
        if finding.items
    )


def _find_problems(inspection: Inspection) -> Iterator[Finding]:
    errors = inspection.source.problems
    yield Finding(
        "problems",
        f"{count_noun(len(errors), 'problem prevents', 'problems prevent')} training",
        "Each line says what to do.",
        tuple(Item(note=str(error)) for error in errors),
    )


def _find_unreadable(inspection: Inspection) -> Iterator[Finding]:
    items = tuple(
        Item((RowPlace(part, place),), reason)
        for part, facts in inspection.facts.items()
        for place, reason in facts.unreadable.items()
    )
    yield Finding(
        "unreadable",
        f"{count_noun(len(items), 'image')} cannot be read",
        "Repair or remove these files, or pass --corrupt skip to leave them out."
        + "".join(f" {message}." for message in inspection.source.missing),
        items,
    )


def _find_not_finite(inspection: Inspection) -> Iterator[Finding]:
    yield Finding(
        "not-finite",
        f"{count_noun(len(inspection.not_finite), 'row has', 'rows have')} NaN or infinite values",
        "Remove or correct these rows: no network can be trained on them.",
        tuple(Item((row,)) for row in inspection.not_finite),
    )


def _find_shared(inspection: Inspection) -> Iterator[Finding]:
    """Find images that occur more than once: in several parts, with several labels, or neither."""
    groups = inspection.duplicates
    leaks = [group for group in groups if len({row.part for row in group.rows}) > 1]
    labels = [
        group for group in groups if len({inspection.name_class(row) for row in group.rows}) > 1
    ]
    marked = {*leaks, *labels}
    one, several = ("image", "images") if inspection.facts else ("row", "rows")
    plain = [group for group in groups if group not in marked]
    yield Finding(
        "leaks",
        f"{count_noun(len(leaks), f'{one} is', f'{several} are')} in more than one part {SIGNS}",
        "Remove each from all parts but one: accuracy on an image that was trained on does not "
        "carry over to new images.",
        _list_groups(leaks),
    )
    yield Finding(
        "label-conflicts",
        f"{count_noun(len(labels), f'{one} has', f'{several} have')} more than one label {SIGNS}",
        "Decide which label is right and remove the other copies.",
        _list_groups(labels),
    )
    for kind, exact, stored in (
        ("exact-duplicates", True, "stored more than once"),
        ("near-duplicates", False, "stored more than once with small changes"),
    ):
        found = [group for group in plain if group.exact == exact]
        together = exact and file_store(inspection.source.train)  # as `hold_out` keeps them
        yield Finding(
            kind,
            f"{count_noun(len(found), f'{one} is', f'{several} are')} {stored}",
            "Keep one copy of each: copies make a class look larger than it is"
            + ("." if together else f", and {PARTED}"),
            _list_groups(found),
        )


def _find_absent(inspection: Inspection) -> Iterator[Finding]:
    """Find classes that a part lacks, and classes of one image."""
    train = inspection.counts["train"]
    unit = inspection.source.unit
    yield _describe_classes(
        inspection,
        "empty-classes",
        [number for number, count in enumerate(train) if not count],
        "has no training image",
        "have no training images",
        f"Add images, remove the {unit}, or pass --min-count 1 to drop such classes.",
    )
    for part, word in (("val", "validation"), ("test", "test")):
        counts = inspection.counts.get(part, train)
        yield _describe_classes(
            inspection,
            f"no-{word}-images",
            [number for number, count in enumerate(counts) if train[number] and not count],
            f"has no {word} image",
            f"have no {word} images",
            f"Move some of their training images to the {word} part: nothing is known about the "
            "accuracy of these classes otherwise.",
        )
    yield _describe_classes(
        inspection,
        "single-images",
        [number for number, count in enumerate(train) if count == 1],
        "has a single training image",
        "have a single training image each",
        "Add images, or pass --min-count 2 to drop such classes.",
    )
    yield Finding(
        "nothing-held-out",
        "there is neither a validation nor a test part",
        "Pass --val-fraction 0.2 to hold out a fifth of each class for evaluation.",
        (Item(note="train is the only part"),) if len(inspection.counts) == 1 else (),
    )


def _find_unusual(inspection: Inspection) -> Iterator[Finding]:
    """Find unusual sizes and colour modes, and photographs that are stored rotated."""
    rows = [
        RowPlace(part, place)
        for part, facts in inspection.facts.items()
        for place in np.flatnonzero(facts.sizes[:, 0]).tolist()
    ]
    if not rows:
        return
    sizes = np.concatenate([facts.sizes for facts in inspection.facts.values()])
    sizes = sizes[sizes[:, 0] > 0]
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    unusual = (short < SMALL * np.median(short)) | (long > LONG * short)
    odd = [
        Item((rows[number],), "{}x{}".format(*sizes[number])) for number in np.flatnonzero(unusual)
    ]
    yield Finding(
        "odd-sizes",
        f"{count_noun(len(odd), 'image is', 'images are')} unusually small or narrow",
        "Check that they show what they should; --image-size enlarges small images and crops the "
        "centre of narrow ones.",
        tuple(odd),
    )
    modes = [inspection.facts[row.part].modes[row.place] for row in rows]
    rare = {mode for mode, number in Counter(modes).items() if number <= RARE_MODE * len(rows)}
    items = [
        Item((row,), f"{mode}, {MODES[mode]}" if mode in MODES else mode)
        for row, mode in zip(rows, modes, strict=True)
        if mode in rare
    ]
    yield Finding(
        "odd-modes",
        f"{count_noun(len(items), 'image has', 'images have')} an unusual colour mode",
        "All are converted to RGB; check that they are of the same kind as the others.",
        tuple(items),
    )
    turned = [row for row in rows if inspection.facts[row.part].rotated[row.place]]
    yield Finding(
        "rotated",
        f"{count_noun(len(turned), 'photograph is', 'photographs are')} stored rotated",
        "Nothing to do here: longtail turns them upright by their EXIF tag. Other tools may not.",
        tuple(Item((row,)) for row in turned),
    )


def _find_ignored(inspection: Inspection) -> Iterator[Finding]:
    warnings = inspection.source.warnings
    yield Finding(
        "ignored",
        "some of the data is not read",
        "Move, rename or repair what should be read; see docs/data.md.",
        tuple(Item(note=warning) for warning in warnings),
    )


def _describe_classes(
    inspection: Inspection, kind: str, numbers: Sequence[int], one: str, several: str, advice: str
) -> Finding:
    """Describe the classes with these numbers."""
    summary = count_noun(len(numbers), f"class {one}", f"classes {several}")
    items = tuple(Item(note=inspection.source.classes[number]) for number in numbers)
    return Finding(kind, summary, advice, items)


def _list_groups(groups: Sequence[Duplicates]) -> tuple[Item, ...]:
    return tuple(Item(group.rows, "=" if group.exact else "~") for group in groups)
