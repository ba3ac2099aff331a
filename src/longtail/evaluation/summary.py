"""The tables that show one evaluation, in a terminal and in a notebook."""

from collections.abc import Sequence
from typing import NamedTuple

from longtail.core.names import count_noun, shorten
from longtail.core.notebook import Cell, format_lines, html_table
from longtail.evaluation import tables
from longtail.evaluation.metrics import COVERAGE, Interval, Metrics

SHOWN = 5
"""Confusions that a summary shows."""
WIDEST = 28
"""Characters of a class name that a text shows, so that a line fits 80 columns."""


class SummaryTable(NamedTuple):
    """A table of a summary."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def split_table(metrics: Metrics) -> SummaryTable:
    """Show the accuracies with their intervals, and the classes and images they are of."""
    figures = metrics.accuracy.splits()
    overall = metrics.sizes["overall"]
    lines = {
        "overall": (figures.pop("overall"), overall),
        "class_mean": (metrics.class_mean, overall),
        **{name: (value, metrics.sizes[name]) for name, value in figures.items()},
    }
    if metrics.measure == "average precision":
        del lines["class_mean"]  # overall is that already
    if metrics.top5 is not None:
        lines["top5"] = (metrics.top5, overall)
    names = {"class_mean": "class mean", "top5": "top-5"}
    rows = [
        [names.get(name, name), *size, value, interval and format_interval(interval)]
        for name, (value, size) in lines.items()
        for interval in [metrics.intervals[name]]
    ]
    return SummaryTable(
        ["", "classes", "images", metrics.measure, f"{COVERAGE:g} % interval"], rows
    )


def average_table(metrics: Metrics) -> SummaryTable:
    """Show the macro and weighted averages."""
    rows = [["macro", *metrics.macro], ["weighted", *metrics.weighted]]
    return SummaryTable(["average", "precision", "recall", "F1", "average precision"], rows)


def confusion_table(metrics: Metrics) -> SummaryTable:
    """Show the most frequent confusions."""
    rows: list[list[Cell]] = [
        [one.label, one.prediction, one.images, f"{one.share:.1f} %"]
        for one in metrics.confusions[:SHOWN]
    ]
    return SummaryTable(["class", "taken for", "images", "of the class"], rows)


def certainty_table(metrics: Metrics) -> SummaryTable:
    """Show likelihood, Brier score and calibration errors, the errors in percent."""
    certainty = metrics.certainty
    found = {"softmax": certainty.softmax}
    if certainty.answers:
        found["calibrated"] = certainty.answers.reliability
    rows = [
        [
            *(name, f"{one.nll:.3f}", f"{one.brier:.3f}", 100 * one.ece, 100 * one.ece_mass),
            *(value and 100 * value for value in one.classwise.values()),
        ]
        for name, one in found.items()
        if one is not None
    ]
    errors = ["ECE", "equal mass", "class-wise", *list(tables.SPLITS)[1:]]
    return SummaryTable(["probability", "NLL", "Brier", *errors], rows)


def describe_answers(metrics: Metrics) -> str:
    """Describe how accurate the answers of `predict` are; empty if they are those of the tables."""
    answers = metrics.certainty.answers
    if answers is None or not answers.changed:
        return ""
    figures = {**answers.accuracy.splits(), tables.CLASS_MEAN: answers.accuracy.class_mean}
    return (
        f"longtail predict answers with calibrated probabilities; {answers.changed:.1f} % of its "
        f"answers differ\n  from the table's: {tables.describe_splits(figures)}"
    )


def describe_averages(metrics: Metrics) -> str:
    """Say what the averages count as 0 or leave out; empty if there is nothing to say."""
    if metrics.sizes["overall"].classes == 1:
        return "with images of a single class, only recall has a meaning"
    number = metrics.never_predicted
    if not number:
        return ""
    classes = count_noun(number, "class is", "classes are")
    return f"{classes} never predicted: precision 0 in the averages"


def to_text(metrics: Metrics, title: str, choice: str = "") -> str:
    """Show all tables as text, and how alpha or a rule was chosen."""
    lines = [title, *format_lines(*split_table(metrics)), ""]
    lines += format_lines(*average_table(metrics))
    lines += filter(None, [describe_averages(metrics), *metrics.notes])
    if metrics.confusions:
        header, rows = confusion_table(metrics)
        shown = [[shorten(c, WIDEST) if isinstance(c, str) else c for c in row] for row in rows]
        lines += ["", *format_lines(header, shown)]
    if metrics.certainty.softmax:
        lines += ["", *format_lines(*certainty_table(metrics))]
    return "\n".join([*lines, *filter(None, [describe_answers(metrics), choice])])


def to_html(metrics: Metrics, title: str, choice: str = "") -> str:
    """Show all tables as HTML."""
    averages = filter(
        None, ["averages over the classes", describe_averages(metrics), *metrics.notes]
    )
    titles = {"; ".join(filter(None, [title, choice])): split_table}
    titles["; ".join(averages)] = average_table
    if metrics.confusions:
        titles["most frequent confusions"] = confusion_table
    if metrics.certainty.softmax:
        parts = ["calibration errors in percent", describe_answers(metrics)]
        titles["; ".join(filter(None, parts))] = certainty_table
    return "".join(html_table(*make(metrics), text) for text, make in titles.items())


def format_interval(interval: Interval) -> str:
    """Format an interval, as in '70.1 to 73.8'."""
    return f"{interval[0]:.1f} to {interval[1]:.1f}"
