"""The example photographs of a report: what images of the worst classes were taken for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from longtail.evaluation.examples import MOST_CONFIDENT, PER_CLASS, find_worst
from longtail.evaluation.slider import SliderCounts
from longtail.reporting.reported_runs import Group
from longtail.reporting.template import encode_jpeg
from longtail.runs.record import read_examples

BUDGET = 1_500_000
"""Bytes of thumbnails on a page, so that it stays below 3 MB."""


@dataclass(frozen=True)
class Card:
    """A mistake: an image and a correct image of the class that it was taken for."""

    image: str
    """The thumbnail as a data URL."""
    other: str | None
    """Thumbnail of the class that it was taken for; None if no image of that class was correct."""
    name: str
    """Name of its class."""
    taken_for: str
    """Name of the predicted class."""
    percent: str
    """Probability of the prediction."""
    file: str


@dataclass(frozen=True)
class Gallery:
    """Mistakes of one run at its own alpha."""

    run: str
    """Name and alpha of the run."""
    worst: list[tuple[str, str, list[Card]]]
    """The worst classes: name, correct images in words, and mistakes."""
    confident: list[Card]
    """The most confident of all other mistakes."""

    @property
    def size(self) -> int:
        """Characters of all thumbnails."""
        cards = [card for _, _, cards in self.worst for card in cards] + self.confident
        return sum(len(card.image) + len(card.other or "") for card in cards)


def arrange_galleries(groups: Sequence[Group]) -> list[Gallery]:
    """Arrange the examples of the first run of each group, up to `BUDGET` bytes."""
    galleries, used = [], 0
    for run, *_ in groups:
        examples = read_examples(run.run)
        if not examples:  # neither embeddings nor a run without mistakes has any
            continue
        gallery = arrange(run.name_at_alpha, examples, run.slider, run.names)
        used += gallery.size
        if used > BUDGET:
            break
        galleries.append(gallery)
    return galleries


def arrange(run: str, examples: pa.Table, counts: SliderCounts, names: Sequence[str]) -> Gallery:
    """Arrange the `examples` of a run; `counts` gives its worst classes."""
    rows = examples.to_pylist()
    correct = {row["label"]: row for row in rows if row["label"] == row["prediction"]}
    mistakes = [row for row in rows if row["label"] != row["prediction"]]
    mistakes.sort(key=lambda row: -row["probability"])

    def card(row: dict[str, Any]) -> Card:
        other = correct.get(row["prediction"])
        return Card(
            image=encode_jpeg(row["thumbnail"]),
            other=encode_jpeg(other["thumbnail"]) if other else None,
            name=names[row["label"]],
            taken_for=names[row["prediction"]],
            percent=f"{100 * row['probability']:.0f}\N{NO-BREAK SPACE}%",
            file=row["file"] or "",
        )

    worst, shown = [], list[dict[str, Any]]()
    for c in find_worst(counts.own_hits, counts.seen):
        of_class = [row for row in mistakes if row["label"] == c][:PER_CLASS]
        shown += of_class
        correct_images = f"{counts.own_hits[c]} of {counts.seen[c]} correct"
        worst.append((names[c], correct_images, [card(row) for row in of_class]))
    others = [row for row in mistakes if row not in shown]
    return Gallery(run, worst, [card(row) for row in others[:MOST_CONFIDENT]])
