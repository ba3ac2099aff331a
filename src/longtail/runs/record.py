"""Evaluate a finished training, and write result.json and the files beside it."""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.evaluation import result as results
from longtail.evaluation import scoring, tables
from longtail.evaluation.cost import ClassifierCost
from longtail.evaluation.examples import NAME as EXAMPLES
from longtail.evaluation.examples import make_examples
from longtail.evaluation.label_metrics import LabelMetrics
from longtail.evaluation.predictions import NAME as PREDICTIONS
from longtail.evaluation.predictions import (
    make_label_predictions,
    make_predictions,
    read_table,
    write_predictions,
)
from longtail.evaluation.slider import FORMAT, SliderCounts, count_for_slider
from longtail.evaluation.slider import NAME as SLIDER
from longtail.evaluation.stored_features import StoredFeatures
from longtail.nn.background import find_background
from longtail.nn.heads import NormalisedHead
from longtail.runs.auto import Decision, decide
from longtail.runs.folder import Run
from longtail.runs.held_out import compute_class_means, fit_trust
from longtail.runs.packing import on_cuda
from longtail.runs.plan import DataOf, Job
from longtail.runs.store import CLASS_MEANS
from longtail.runs.train import FinishedTraining
from longtail.training.loop import Progress
from longtail.training.model import Blueprint
from longtail.training.trainer import Trainer

logger = logging.getLogger(__name__)


def evaluate_training(
    group: Sequence[Job],
    training: FinishedTraining,
    replica: Trainer,
    data_of: DataOf,
    progress: Progress | None,
) -> Iterator[Job]:
    """Evaluate and write every job of `group`, which `replica` was trained for, one by one."""
    extracted: dict[int, tuple[scoring.Features, float]] = {}
    finished: dict[str, Trainer] = {}
    for job in group:
        data = data_of(job)  # jobs that share a training may differ in the part they evaluate on
        if id(data) not in extracted:
            began = time.perf_counter()
            features = scoring.extract_parts(data, replica.features)
            _ = features.train  # the jobs of a training share the time that this takes
            extracted[id(data)] = features, time.perf_counter() - began
        features, extraction_seconds = extracted[id(data)]
        began = time.perf_counter() - extraction_seconds  # as if the job were alone
        decision = decide(job, replica, features, data, progress, finished, training.shared)
        if decision.trainer is not replica:
            features = scoring.extract_parts(data, decision.trainer.features)
        evaluation, alpha, chosen = _score(job, decision, features, data)
        cost = _save_weights(job, decision, training, replica, began)
        means = compute_class_means(features, data)
        trust = fit_trust(decision, evaluation, means, data)
        chosen |= {} if trust is None else {"trust": trust}
        choice = (alpha, decision.rule)
        result = results.make_result(job.config, data, evaluation, choice, cost, chosen)
        if replica.fabric.global_rank == 0:
            if job is not group[0]:
                job.run.write_metrics(group[0].run.metrics)
            stored = StoredFeatures.of(means, features.held_out)
            _write_files(job, decision, evaluation, stored, result, data)
        yield job


def _score(
    job: Job, decision: Decision, features: scoring.Features, data: Data
) -> tuple[scoring.Evaluation, float | None, dict[str, Any]]:
    """Score `features`; also return the alpha, and what a result stores as chosen."""
    method, winner = decision.method, decision.trainer
    background = find_background(job.config.background, data.classes)
    evaluation = scoring.score_parts(
        method, winner.model.head, features, data, decision.scale, background
    )
    alpha = method.alpha or 0.0 if isinstance(evaluation.head, NormalisedHead) else None
    chosen = dict(decision.chosen)
    if background:
        chosen["background"] = job.config.background
    if job.config.flips:
        mirrored = winner.mirrored_features(data.evaluated)
        chosen["flips"] = scoring.score_flips(evaluation, mirrored, alpha, data.counts)
    return evaluation, alpha, chosen


def _save_weights(
    job: Job, decision: Decision, training: FinishedTraining, replica: Trainer, began: float
) -> ClassifierCost:
    """Write model.safetensors; return what the training took, with its evaluation from `began`."""
    fabric, winner = replica.fabric, decision.trainer
    state = winner.model.state_dict()
    weights = job.run.save_model(state) if fabric.global_rank == 0 else None
    return ClassifierCost(
        # of a rival, if one has won
        recipe_id=replace(job, method=decision.method).recipe_id(replica.data),
        training_id=winner.training_id,
        weights_sha256=weights,
        seconds=training.clock.seconds + (time.perf_counter() - began),
        images=replica.images,
        images_per_second=training.images_per_second,
        device=environment(cuda=on_cuda(fabric))["device"],
        capture_seconds=training.clock.paused_seconds,
        replicas=len(training.replicas),
        ranks=fabric.world_size,
    )


def _write_files(
    job: Job,
    decision: Decision,
    evaluation: scoring.Evaluation,
    stored: StoredFeatures,
    result: results.ClassifierResult,
    data: Data,
) -> None:
    """Write all files of an evaluation but model.safetensors."""
    run, model, shipped = job.run, decision.trainer.model, evaluation.shipped
    if decision.method.rule is not None or not isinstance(shipped, type(model.head)):
        run.save_model(shipped.state_dict(), "head.safetensors")
    run.save_model(stored.to_tensors(), CLASS_MEANS)
    blueprint = Blueprint.of(job.config, shipped, data, model.backbone.attention)
    run.write("model.json", json.dumps(blueprint.to_json()) + "\n")
    slider = None
    if not data.multi_label:
        slider = count_for_slider(evaluation.scores, data.counts, result.alpha)
    logits = evaluation.scores.at(result.alpha or 0.0)
    if isinstance(result.metrics, LabelMetrics):
        table = make_label_predictions(logits, data.evaluated, result.metrics)
    else:
        table = make_predictions(logits, data.evaluated, data.classes)
    with run.replace(PREDICTIONS) as path:
        write_predictions(path, table)
    if not data.multi_label:
        write_examples(run, make_examples(logits, data.evaluated))
    run.record_metrics()
    write_result(run, result, slider, data)


def write_result(
    run: Run, result: results.ClassifierResult, slider: SliderCounts | None, data: Data
) -> None:
    """Write what an evaluation leaves; result.json comes last, since it marks a finished run."""
    absent = [n for n, v in zip(data.classes, result.per_class, strict=True) if v is None]
    if absent:
        logger.warning(
            "%d of %d classes %s no %s image and %s not evaluated: %s",
            len(absent),
            len(data.classes),
            "has" if len(absent) == 1 else "have",
            data.evaluated_on,
            "is" if len(absent) == 1 else "are",
            ", ".join(absent[:10]) + (" ..." if len(absent) > 10 else ""),
        )
    if slider is not None:
        run.write(SLIDER, json.dumps(slider.to_json(), separators=(",", ":")) + "\n")
    rows = result.metrics.class_rows()
    run.write("per_class.csv", results.csv_text(rows[0], (row.values() for row in rows)))
    points = [(alpha, *splits.values()) for alpha, splits in result.details.sweep.items()]
    run.write("sweep.csv", results.csv_text(("alpha", *tables.SPLITS, "class_mean"), points))
    run.write("result.json", json.dumps(result.to_json(), indent=None) + "\n")


def write_examples(run: Run, examples: pa.Table | None) -> None:
    """Write the example photographs of an evaluation, if it has any."""
    if examples is not None:
        with run.replace(EXAMPLES) as path:
            parquet.write_table(examples, path)


def read_examples(run: Run) -> pa.Table | None:
    """Read the example photographs of `run`; None for embeddings and runs of older versions."""
    path = run.verify(EXAMPLES)
    return read_table(path, run.way_to_evaluate_again) if path.exists() else None


def read_slider(run: Run) -> SliderCounts:
    """Read the slider counts that the evaluation of `run` wrote, in format 1 or 2."""
    path, again = run.verify(SLIDER), run.way_to_evaluate_again
    if not run.has(SLIDER):
        raise UserError(
            f"{run.folder} has no {SLIDER}, since an older version evaluated it: {again}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
        if version in (1, FORMAT):
            counts = SliderCounts.from_json(content)
            counts.check()
            return counts
    except (OSError, RecursionError, ValueError, KeyError, AttributeError, TypeError):
        raise UserError(f"{path} cannot be read, it was cut short: {again}") from None
    raise UserError(
        f"{path} has format {version}, this version of longtail reads 1 and {FORMAT}: make the "
        f"report with the version in {run.folder}/env.json; or {again}"
    )
