"""`longtail eval`: evaluate a run or an exported model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from longtail.cli.arguments import parse_number
from longtail.cli.output import is_first_process, print_lines
from longtail.core.names import shorten

if TYPE_CHECKING:
    from longtail.evaluation.metrics import Metrics
    from longtail.evaluation.result import ClassifierResult

WIDEST = 28
"""Characters of a class name that are printed, so that a line fits 80 columns."""


@dataclass(frozen=True)
class Eval:
    """Evaluate a run on its own data, or any model on other labelled data of the same classes."""

    model: Annotated[Path, Positional, arg(metavar="RUN_OR_MODEL")]
    """Folder of a finished run, a folder written by longtail retrofit or save_pretrained, or an
    exported file."""
    alpha: str | None = None
    """A number, or auto: the run's own choice, else one made on its held-out data, else one made
    without labels. By default the model's own alpha."""
    data: str | None = None
    """Labelled data of the same classes, by name: its test part is evaluated, else its validation
    part, else all of it. By default the run's own data; if that has moved, its new location."""
    json: bool = False
    """Print everything as JSON, with a row for each class and the confusion matrix."""

    examples = """
      longtail eval runs/demo/deconfound-tde/s0
      longtail eval runs/demo/deconfound-tde/s0 --alpha 0.5 --json
      longtail eval photos.onnx --data new-photos/"""

    def run(self) -> None:
        """Print tables or JSON."""
        from longtail.evaluation.result import round_floats
        from longtail.serving.evaluate import ModelEvaluation, evaluate

        alpha = self.alpha if self.alpha in (None, "auto") else parse_number("--alpha", self.alpha)
        result = evaluate(self.model, self.data, alpha)  # type: ignore[arg-type]
        if self.json:
            print(json.dumps(result.to_json() | round_floats(result.metrics.tables())))
            return
        print_lines([result.title], [])
        print_metrics(result.metrics)
        if not isinstance(result, ModelEvaluation):
            _print_choice(result, given=isinstance(alpha, float))


def print_metrics(metrics: "Metrics") -> None:
    """Print the tables of an evaluation."""
    from longtail.evaluation import summary

    print_lines(*summary.split_table(metrics))
    print_lines([""], [])
    print_lines(*summary.average_table(metrics))
    if metrics.confusions:
        header, rows = summary.confusion_table(metrics)
        print_lines([""], [])
        print_lines(header, [[_shorten(cell) for cell in row] for row in rows])


def _shorten(cell: Any) -> Any:
    return shorten(cell, WIDEST) if isinstance(cell, str) else cell


def _print_choice(result: "ClassifierResult", *, given: bool) -> None:
    """Print how alpha, or what a rule chose, was chosen."""
    from longtail.evaluation.alpha import RULES, describe_choice

    if result.alpha_rule and is_first_process():
        option, value, rule = describe_choice(result.to_json())
        print(f"{option} {value}, {'as given' if given else RULES[rule]}")
