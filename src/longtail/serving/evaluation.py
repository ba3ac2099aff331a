"""The figures of a model on other labelled data than a run's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from longtail.evaluation import summary, tables
from longtail.evaluation.metrics import Metrics
from longtail.evaluation.result import round_floats

PARTS = {"test": "the test part", "val": "the validation part", "all": "all images"}
"""Parts of other data that a model may be evaluated on, in words."""


@dataclass(frozen=True, repr=False)
class ModelEvaluation:
    """The figures of a model on other labelled data than a run's own."""

    model: str
    """Method and seed of a run, name of a file; the method of a model that was loaded already."""
    data: str
    evaluated_on: str
    """The part of the data: a key of `PARTS`."""
    alpha: float | None
    metrics: Metrics
    """All figures; splits are those of the model's own training images."""
    unknown: Mapping[str, int]
    """Images of each class that the model does not know, which were left out. With several labels
    per image, only the label was left out."""
    unreadable: Mapping[str, str]
    """Unreadable images, which were left out, and the reasons."""
    trained_on: int = 0
    """Images that were left out because the run was trained on them."""
    choice: str = ""
    """The alpha or rule of a run and how it was chosen, in words; empty if nothing was open."""

    def __repr__(self) -> str:
        figures = tables.describe_splits(self.metrics.accuracy.splits())
        return f"ModelEvaluation({self.title}: {figures})"

    def __str__(self) -> str:
        return summary.to_text(self.metrics, self.title, self.choice)

    def _repr_html_(self) -> str:
        return summary.to_html(self.metrics, self.title, self.choice)

    @property
    def overall(self) -> float | None:
        """Accuracy over all images, in percent."""
        return self.metrics.accuracy.overall

    @property
    def many(self) -> float | None:
        """Mean accuracy of the classes with more than 100 training images."""
        return self.metrics.accuracy.many

    @property
    def medium(self) -> float | None:
        """Mean accuracy of the classes with 20 to 100 training images."""
        return self.metrics.accuracy.medium

    @property
    def few(self) -> float | None:
        """Mean accuracy of the classes with fewer than 20 training images."""
        return self.metrics.accuracy.few

    @property
    def class_mean(self) -> float | None:
        """Mean accuracy over the classes that have an image."""
        return self.metrics.class_mean

    @property
    def per_class(self) -> tuple[float | None, ...]:
        """Accuracy of each class; None without images."""
        return self.metrics.accuracy.per_class

    @property
    def counts(self) -> tuple[int, ...]:
        """Training images of each class."""
        return self.metrics.counts

    @property
    def title(self) -> str:
        """Model, alpha, part and data in words."""
        alpha = "" if self.alpha is None else f" at alpha {self.alpha:g}"
        return f"{self.model}{alpha} on {PARTS[self.evaluated_on]} of {self.data}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with the keys of result.json, as far as they apply."""
        plain = {
            "model": self.model,
            "data": self.data,
            "alpha": self.alpha,
            "evaluated_on": self.evaluated_on,
            **self.metrics.accuracy.splits(),
            "counts": self.counts,
            "per_class": self.per_class,
            **self.metrics.to_json(),
            "unknown": dict(self.unknown),
            "unreadable": dict(self.unreadable),
            "trained_on": self.trained_on,
        }
        return cast(dict[str, Any], round_floats(plain))
