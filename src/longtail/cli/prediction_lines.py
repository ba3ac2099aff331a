"""Predictions as lines of text, CSV or JSON."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from longtail.core.names import join_names, make_text_printable
from longtail.core.spreadsheets import format_rows

if TYPE_CHECKING:
    from longtail.serving.predictor import Prediction


MARK = (
    rb"\Aimage,rank,class,probability[,\r\n]"
    rb'|\A\{"image": "[^\n]*?"top": \['
    rb"|\A(?:(?>[^\n]*?  )[^\r\n]*+"
    rb"(?:(?<=[^ ] [01]\.\d{3})|(?<=no answer)|(?<=no label))\r?\n)++\Z"
)
"""Regular expression that matches a file of predictions: the first line of CSV or JSON, or text in
which every line looks like a prediction. It reads each byte once."""


class Lines(NamedTuple):
    """A format of predictions."""

    format: Callable[[str, "Prediction"], str]
    """Returns the lines of an image, each with its end."""
    header: str = ""
    """The first line of a file."""


def format_text(image: str, prediction: "Prediction") -> str:
    """Format a prediction for readers: image, classes and probabilities."""
    parts = [image]
    if prediction.unknown:
        parts.append("(unlike every class)")
    if prediction.answer_set is not None:
        parts.append("{" + join_names(prediction.answer_set) + "}")
    if prediction.labels is not None:
        parts += [f"{name} {value:.3f}" for name, value in prediction.labels] or ["no label"]
    elif prediction.answered:
        parts += [f"{name} {value:.3f}" for name, value in prediction.top]
    else:
        parts.append("no answer")
    return make_text_printable("  ".join(parts)) + "\n"


def format_json(image: str, prediction: "Prediction") -> str:
    """Format a prediction as one JSON object; it has a class, or the labels if there are several.

    The most probable label need not reach its threshold, so it is not the class of the image.
    """
    ranked = [{"class": name, "probability": value} for name, value in prediction.top]
    content: dict[str, Any] = {"image": image}
    if prediction.labels is None:
        content["class"] = prediction.name if prediction.answered else None
    content["top"] = ranked
    if prediction.labels is not None:
        content["labels"] = [name for name, _ in prediction.labels]
    if prediction.answer_set is not None:
        content["set"] = list(prediction.answer_set)
    if prediction.unknown is not None:
        content["unknown"] = prediction.unknown
    return json.dumps(content) + "\n"


def format_csv(image: str, prediction: "Prediction") -> str:
    """Format a prediction as rows of CSV, one for each class.

    Classes of the answer set and labels beyond the top follow it. Without an answer there are only
    those of the set, of rank 0.
    """
    held, unknown = prediction.answer_set, prediction.unknown
    labels = None if prediction.labels is None else {name for name, _ in prediction.labels}
    whole = list(zip(held or (), prediction.set_probabilities or (), strict=True))
    shown = {name for name, _ in prediction.top}
    more = [pair for pair in [*whole, *(prediction.labels or ())] if pair[0] not in shown]
    pairs = list(enumerate([*prediction.top, *more], start=1))
    if not prediction.answered:
        pairs = [(0, pair) for pair in whole]
    rows = [
        [image, rank, name, value]
        + ([] if held is None else [int(name in held)])
        + ([] if unknown is None else [int(unknown)])
        + ([] if labels is None else [int(name in labels)])
        for rank, (name, value) in pairs
    ]
    return format_rows(rows)
