"""What an evaluation leaves in a run's folder: result.json and the files beside it."""

import json
import logging

from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.evaluation import tables
from longtail.evaluation.intervals import FORMAT, Intervals
from longtail.evaluation.intervals import NAME as INTERVALS
from longtail.evaluation.result import Result, csv_text
from longtail.runs.folder import Run

logger = logging.getLogger(__name__)


def write_result(run: Run, result: Result, where_right: Intervals, data: Data) -> None:
    """All that judging leaves in a run's folder; result.json last, for it says 'finished'."""
    unjudged = [n for n, v in zip(data.classes, result.per_class, strict=True) if v is None]
    if unjudged:
        logger.warning(
            "%d of %d classes have no %s image and are not judged: %s",
            *(len(unjudged), len(data.classes), data.evaluated_on),
            ", ".join(unjudged[:10]) + (" ..." if len(unjudged) > 10 else ""),
        )
    run.write(INTERVALS, json.dumps(where_right.to_json()) + "\n")
    rows = zip(data.classes, data.counts.images, result.per_class, strict=True)
    run.write("per_class.csv", csv_text(("class", "train_images", "accuracy"), rows))
    points = [(alpha, *splits.values()) for alpha, splits in result.sweep.items()]
    run.write("sweep.csv", csv_text(("alpha", *tables.SPLITS, "class_mean"), points))
    run.write("result.json", json.dumps(result.to_json(), indent=None) + "\n")


def read_intervals(run: Run) -> Intervals:
    """What was written when `run` was judged."""
    path = run.folder / INTERVALS
    again = (
        f"delete {run.folder}/result.json, and the same longtail train command with --resume "
        "judges the run again without training it"
    )
    if not path.exists():
        raise UserError(
            f"{run.folder} has no {INTERVALS}, it was judged by an older version: {again}"
        )
    try:
        content = json.loads(path.read_text())
        written_by = content.pop("format")
        if written_by == FORMAT:
            return Intervals(**content)
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UserError(f"{path} cannot be read, it was cut short: {again}") from None
    raise UserError(
        f"{path} has format {written_by}, this version of longtail reads {FORMAT}: make the "
        f"report with the version in {run.folder}/env.json; or {again}"
    )
