"""Evaluate a model on labelled data: a run on its own, or any model on other data.

Classes are matched by name. Images are prepared as the model's description says.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError, list_some, suggest
from longtail.core.names import count_noun
from longtail.core.progress import log_progress
from longtail.data.base import ClassCounts
from longtail.data.evaluated import EvaluatedPart
from longtail.data.image_files import list_images
from longtail.data.kinds import is_named
from longtail.data.load import open_evaluated
from longtail.evaluation.alpha import explain_choice
from longtail.evaluation.label_metrics import Thresholds, measure_labels
from longtail.evaluation.metrics import Metrics, measure
from longtail.evaluation.result import ClassifierResult, short_name
from longtail.methods.base import Auto
from longtail.nn.heads import check_alpha
from longtail.runs.folder import Run
from longtail.runs.own_data import find_own_data, own_data
from longtail.runs.reopen import evaluate_own
from longtail.runs.training_images import leave_out_training_images
from longtail.serving.evaluation import ModelEvaluation as ModelEvaluation
from longtail.serving.predictor import Predictor, load_model
from longtail.serving.read import MODEL_CONFIG, PICKLES
from longtail.serving.user_inputs import UnreadableInputs

logger = logging.getLogger(__name__)

SUFFIXES = (".safetensors", ".onnx", ".pt2", *PICKLES)
"""Suffixes of model files; those that `load_model` refuses have its explanation."""
SHOWN = 10
"""Classes or files that a warning names."""
Measurement = tuple[Metrics, dict[str, int], dict[str, str]]
"""Metrics; how often each unknown class or label occurs; and the fault of each unreadable file."""


def evaluate(
    model: Run | Predictor | Path | str,
    data: Any = None,
    alpha: Auto | None = None,
    *,
    root: Path | str | None = None,
    background: str | None = None,
    flips: bool = False,
) -> ClassifierResult | ModelEvaluation:
    """Evaluate a model on labelled data; nothing is written.

    A run on its own data gives a `Result`. Any other data whose class names match the model's gives
    a `ModelEvaluation`: of its test part, else of its validation part, else of all of it. A subset
    of the classes is enough; images of unknown classes and unreadable images are named and left
    out, as are those that a run was trained on. Of images with several labels, only the unknown
    labels are left out.

    Args:
        model: a run or its folder, a file of `export`, a folder of `retrofit` or
            `save_pretrained`, or what `load_model` returned.
        data: labelled data as `load` takes it, or loaded already; None for the run's own. If the
            run's own data was moved, its place.
        alpha: a number, or None for the model's own. For a run on its own data also `auto`: chosen
            on held-out data that is not the evaluated part, or by the label-free rule without any.
        root: folder that the paths of a table or list are relative to, if it is not its own.
            Without `data`, the place that the run's own data was moved to.
        background: class that keeps its total effect (Eq. 9); the model's own by default.
        flips: also score the mean logits of every image and its mirror image; for a run on its own
            data.

    Raises:
        UserError: if the data has no class of the model, or is none that the model takes.
    """
    if isinstance(data, (int, float)):
        raise UserError(f"data {data!r} is a number: pass alpha by its name, as in alpha={data!r}")
    if alpha is not None and alpha != "auto":
        alpha = check_alpha(alpha)
    run = _find_run(model)
    if run and data is None:
        moved = None if root is None else own_data(run, root=root)
        return evaluate_own(run, alpha, data=moved, background=background, flips=flips)
    if run and data is not None and (own := find_own_data(run, data, root)) is not None:
        return evaluate_own(run, alpha, data=own, background=background, flips=flips)
    if flips:
        raise UserError("--flips needs a run and its own data: leave it out")
    predictor = model if isinstance(model, Predictor) else load_model(run or model)
    if data is None:
        raise UserError(f"{model} does not hold the data it was trained on: pass data, or --data")
    if alpha == "auto":
        raise UserError("alpha auto needs the run's own data: pass a number, or leave alpha out")
    if background is not None:
        predictor = predictor.with_background(background)
    if alpha is not None:
        predictor = copy(predictor)  # the caller's keeps its alpha
        predictor.alpha = alpha
    part = _open_part(predictor, run, data, root)
    new = leave_out_training_images(run, part) if run else part
    found = _evaluate_part(predictor, _name_model(run or model), new)
    if run is None:
        return found
    found = replace(found, trained_on=len(part) - len(new))
    given = {} if alpha is None else {"alpha": alpha, "alpha_rule": "given"}
    return replace(found, choice=explain_choice(given or run.result))


def _find_run(model: Run | Predictor | Path | str) -> Run | None:
    """Open `model` if it is a run; None for an exported model."""
    if isinstance(model, (Run, Predictor)):
        return model if isinstance(model, Run) else None
    path = Path(model)
    if path.is_file() and path.suffix not in SUFFIXES:
        raise UserError(
            f"{path} is not a model: a model is the folder of a run, of longtail retrofit or of "
            "save_pretrained, or a file that longtail export wrote (.safetensors or .onnx). "
            "Pass labelled data as --data"
        )
    named = path.suffix in SUFFIXES and not path.is_dir()
    exported = path.is_file() or named or (path / MODEL_CONFIG).is_file()
    return None if exported else Run.open(path)


def _name_model(model: Run | Predictor | Path | str) -> str:
    """Name a run by method and seed, a file by its name, a loaded model by its method."""
    if isinstance(model, Predictor):
        return str(model.about.training.get("method", "model"))
    if isinstance(model, Run):
        return f"{model.result['method']}, seed {model.result['seed']}"
    return short_name(str(model))


def _open_part(
    predictor: Predictor, run: Run | None, data: Any, root: Path | str | None
) -> EvaluatedPart:
    """Open the part of `data` to evaluate on, for images as the model takes them."""
    _check_labelled(data)
    blueprint, own = predictor.about.blueprint, run.config.files.root if run else None
    config = DataConfig(
        root=Path(root) if root else own,
        image_size=None if blueprint.embeddings else max(blueprint.shape[1:]),
        interpolation=blueprint.interpolation,
    )
    part = open_evaluated(data, config)
    if part.embeddings != blueprint.embeddings:
        kinds = ("embeddings", "images") if part.embeddings else ("images", "embeddings")
        raise UserError(f"{part.name} holds {kinds[0]}, but the model takes {kinds[1]}")
    return part


def _check_labelled(data: Any) -> None:
    """Refuse a folder of images without class folders, and name the command for it."""
    if not is_named(data) or not Path(data).expanduser().is_dir():
        return
    folder = Path(data).expanduser()
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if any(path.is_dir() or path.suffix.lower() == ".parquet" for path in inside):
        return
    if list_images(folder):
        raise UserError(
            f"{data} has images but no class folders, and an evaluation needs labels: move the "
            f"images to {data}/CLASS/. Without labels, longtail predict MODEL {data} answers them"
        )


def _compare_names(names: Sequence[str], classes: Sequence[str]) -> str:
    """Return a hint for labels that are numbers, or that differ from the classes only in case."""
    folded = {name.casefold() for name in classes}
    if all(name.isdecimal() for name in names) and not all(map(str.isdecimal, classes)):
        return ". Its labels are numbers: replace them by the names of the classes"
    if all(name.casefold() in folded for name in names):
        return ". They differ only in upper and lower case: write them as the model does"
    return ""


def _evaluate_part(predictor: Predictor, name: str, part: EvaluatedPart) -> ModelEvaluation:
    """Evaluate the model called `name` on the classes or labels of `part` that it knows."""
    several_labels = predictor.about.thresholds is not None
    if part.multi_label and not several_labels:
        raise UserError(f"{part.name} has several labels per image, and {name} gives only one")
    measure_rows = _measure_labels if several_labels else _measure_classes
    metrics, unknown, unreadable = measure_rows(predictor, part)
    evaluation = ModelEvaluation(
        model=name,
        data=short_name(part.name),
        evaluated_on=part.evaluated_on,
        alpha=predictor.alpha,
        metrics=metrics,
        unknown=unknown,
        unreadable=unreadable | dict.fromkeys(part.missing, "it does not exist"),
    )
    _log_left_out(evaluation, several_labels=several_labels)
    return evaluation


def _measure_classes(predictor: Predictor, part: EvaluatedPart) -> Measurement:
    """Measure the rows of `part` whose class the model knows."""
    numbers = {each: number for number, each in enumerate(predictor.classes)}
    names = part.class_names()
    unknown = dict(Counter(each for each in names if each not in numbers))
    kept = [place for place, each in enumerate(names) if each in numbers]
    if not kept:
        raise _no_class_error(part, unknown, predictor)
    known = part.take(torch.tensor(kept))
    logits, unreadable = _compute_logits(predictor, known)
    labels = [numbers[names[row]] for place, row in enumerate(kept) if place not in unreadable]
    counts = ClassCounts(predictor.about.counts)
    trust = predictor.about.trust if predictor.trust else None
    metrics = measure(logits, torch.tensor(labels), counts, predictor.classes, trust)
    return metrics, unknown, _describe_rows(known, unreadable)


def _measure_labels(predictor: Predictor, part: EvaluatedPart) -> Measurement:
    """Measure all rows of `part` by several labels each, without labels that are unknown."""
    numbers, sets = {each: n for n, each in enumerate(predictor.classes)}, part.label_sets()
    unknown = dict(Counter(each for names in sets for each in names if each not in numbers))
    labels = torch.zeros(len(sets), len(numbers), dtype=torch.bool)
    for row, names in enumerate(sets):
        labels[row, [numbers[each] for each in names if each in numbers]] = True
    if not labels.any():
        raise _no_class_error(part, unknown, predictor)
    logits, unreadable = _compute_logits(predictor, part)
    readable = [row for row in range(len(sets)) if row not in unreadable]
    assert predictor.thresholds is not None
    thresholds = Thresholds(predictor.thresholds, "model")
    counts = ClassCounts(predictor.about.counts)
    metrics = measure_labels(logits, labels[readable], counts, predictor.classes, thresholds)
    return metrics, unknown, _describe_rows(part, unreadable)


def _describe_rows(part: EvaluatedPart, reasons: Mapping[int, str]) -> dict[str, str]:
    """Name the rows of `reasons` by their files."""
    return {part.part.describe(place): reason for place, reason in reasons.items()}


def _no_class_error(
    part: EvaluatedPart, unknown: Mapping[str, int], predictor: Predictor
) -> UserError:
    return UserError(
        f"{part.name} has no class of the model. Its classes are {list_some(sorted(unknown))}; "
        f"those of the model are {list_some(predictor.classes)}"
        f"{_compare_names(list(unknown), predictor.classes)}"
    )


def _compute_logits(predictor: Predictor, part: EvaluatedPart) -> tuple[Tensor, dict[int, str]]:
    """Compute the logits (N, classes) of the readable rows; also return why others are not."""
    unreadable = UnreadableInputs()
    found: list[Tensor] = []
    batches = predictor.stream_logits(part.inputs())
    for reasons, logits in log_progress("evaluated", batches, len(part), predictor.batch_size):
        found.append(logits)
        unreadable.add(reasons)
    if len(unreadable.reasons) == len(part):
        place, reason = next(iter(unreadable.reasons.items()))
        raise UserError(
            f"none of the {len(part):,} inputs of {part.name} can be read, such as "
            f"{part.part.describe(place)} ({reason})"
        )
    return torch.cat(found), unreadable.reasons


def _log_left_out(evaluation: ModelEvaluation, *, several_labels: bool = False) -> None:
    """Warn about what was left out: unknown classes or labels, and unreadable files."""
    unknown, unreadable = evaluation.unknown, evaluation.unreadable
    if unknown:
        names = [  # a suggestion takes long, so the rest has none
            f"'{name}' ({unknown[name]:,}{hint and ';'}{hint})"
            for name in list(unknown)[:SHOWN]
            for hint in [suggest(name, evaluation.metrics.classes)]
        ]
        what = f"the images of {count_noun(len(unknown), 'class', 'classes')}"
        if several_labels:  # an image keeps its other labels
            what = count_noun(len(unknown), "label")
        listed = list_some([*names, *list(unknown)[SHOWN:]], SHOWN)
        logger.warning("left out %s that the model does not know: %s", what, listed)
    if unreadable:
        shown = [f"{file} ({reason})" for file, reason in unreadable.items()]
        logger.warning(
            "left out %d of %d images, which are unreadable: %s",
            *(len(unreadable), len(unreadable) + len(evaluation.metrics.labels)),
            list_some(shown, SHOWN),
        )
