"""Adapt a model to the class mix of the place where it is used.

    longtail adapt runs/x photos-of-this-week/ -o adapted

The mix is estimated from unlabelled images, or given. The new model has the calibration and the mix
in the weights and the bias of its head, so it costs nothing more to run.
Shapes: N images, C classes.
"""

import csv
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.core.errors import UserError, list_some, unknown_error
from longtail.core.names import count_noun
from longtail.data.base import ClassCounts
from longtail.evaluation.label_shift import (
    LEAST_IMAGES,
    Mix,
    estimate_mix,
    estimate_target,
    group_classes,
)
from longtail.evaluation.novelty import FALSE_ALARMS, measure_energy
from longtail.evaluation.trust import Trust
from longtail.runs.folder import Run
from longtail.serving import write as exports
from longtail.serving.answers import (
    require_measured,
    require_one_label,
    require_trust,
)
from longtail.serving.model import ServedModel
from longtail.serving.predictor import Predictor, load_model
from longtail.serving.user_inputs import Picture, UnreadableInputs, refuse_path

logger = logging.getLogger(__name__)

ONE_CLASS = 0.95
"""Share of the images, as EM estimates it, that one class may not exceed."""
UNKNOWN = 5 * FALSE_ALARMS
"""Share of the images that may look like no class before a warning."""
IMAGES_PER_CLASS = 5
"""Images on average from which a class mix is estimated without a warning."""
PER_CENT = 100
"""Sum of the shares of a mix that was written in per cent."""
LEAST_SHARE = 1e-6
"""Share of a class that a given mix leaves out; 0 would forbid the class for good."""


@dataclass(frozen=True)
class Adaptation:
    """A model adapted to a class mix, and how the mix was found."""

    model: Predictor
    """The adapted model."""
    before: Tensor
    """(C,) class mix that the probabilities of the original model were for."""
    prior: Tensor
    """(C,) class mix that the probabilities of the adapted model are for."""
    mix: Mix | None
    """The estimate, with its intervals; None for a given mix."""
    images: int
    """Number of images that the mix was estimated from."""
    unreadable: Mapping[int, str]
    """Places of the unreadable images, and the reasons."""

    def list_moves(self, most: int = 10) -> list[int]:
        """List the classes whose share changed most, the largest change first."""
        change = (self.prior - self.before).abs()
        return change.argsort(descending=True, stable=True)[:most].tolist()


def adapt(
    model: Run | Predictor | Path | str,
    images: Iterable[Picture] | None = None,
    *,
    prior: Mapping[str, float] | Path | str | None = None,
    uniform: bool = False,
    out: Path | str | None = None,
) -> Adaptation:
    """Adapt a model to the class mix of `images`, which need no labels, or to a known mix.

    Args:
        model: a run or its folder, a loaded model, or a file or folder that `load_model` takes.
        images: images of the place of use: files, arrays or PIL images, or rows of embeddings.
        prior: the mix instead, as shares by class name, or a .json or .csv file of them.
        uniform: adapt to equally frequent classes instead.
        out: folder to write the adapted model to, which `load_model` and `export` read.

    Raises:
        UserError: if the model stores no calibration, the images say too little, or a class of the
            model has no held-out images because `extend` added it.
    """
    if sum((images is not None, prior is not None, uniform)) != 1:
        raise UserError("adapt to what? Give images, or a known prior, or uniform: one of them")
    refuse_path(images)
    if out is not None:
        exports.check_folder(Path(out))
    predictor = model if isinstance(model, Predictor) else load_model(model)
    require_one_label(predictor.about, "adapting to a class mix")
    trust = require_trust(predictor.about, predictor.trust, "adapting to a class mix")
    served = predictor.require_model("adapting to a class mix").fold(predictor.alpha)
    mix, count = None, 0
    unreadable: dict[int, str] = {}
    if images is not None:
        require_measured(predictor.about)
        mix, count, unreadable = _estimate(predictor, trust, images)
        target = mix.shares
    elif prior is not None:
        target = _check_prior(prior, predictor.classes)
    else:
        classes = len(predictor.classes)
        target = torch.full((classes,), 1 / classes, dtype=torch.double)
    adapted = _set_mix(served, trust, target, count)
    if out is not None:
        exports.save_pretrained(adapted, out)
    return Adaptation(
        model=predictor.with_model(adapted),
        before=torch.tensor(trust.calibration.prior, dtype=torch.double),
        prior=target,
        mix=mix,
        images=count,
        unreadable=unreadable,
    )


def _estimate(
    predictor: Predictor, trust: Trust, images: Iterable[Picture]
) -> tuple[Mix, int, dict[int, str]]:
    """Estimate the class mix of `images`; count them, and explain which are unreadable."""
    scores, distances, unreadable = [], [], UnreadableInputs()
    for reasons, examined in predictor.examine_batches(images):
        unreadable.add(reasons)
        if examined is not None:
            logits, distance = examined
            scores.append(trust.calibration.apply_uniform(logits.double()))
            distances.append(distance)
    skips, better = len(unreadable.reasons), IMAGES_PER_CLASS * len(predictor.classes)
    count = unreadable.inputs - skips
    if count < LEAST_IMAGES:
        first = next(iter(unreadable.reasons.values()), "")
        skipped = f" ({skips:,} more unreadable, the first because {first})" if skips else ""
        raise UserError(
            f"{count_noun(count, 'image')}{skipped}: too few to estimate a class mix, so nothing "
            f"was adapted. Give at least {LEAST_IMAGES}, better {better}, or the mix itself as a "
            "prior"
        )
    uniform = torch.cat(scores)
    logs = uniform.log_softmax(1)
    _check_variety(logs, predictor.classes)
    known = [distance for distance in distances if distance is not None]
    strange = trust.novelty.find_unknown(
        measure_energy(uniform), torch.cat(known) if known else None, FALSE_ALARMS
    )
    if (share := strange.double().mean().item()) > UNKNOWN:
        logger.warning(
            "%.0f %% of the images look like no class of this model (%.0f %% is normal): its class "
            "mix means little for them",
            *(100 * share, 100 * FALSE_ALARMS),
        )
    counts = ClassCounts(predictor.about.counts)
    if count < better:
        logger.warning(
            "%s are few for %d classes: the estimated mix is uncertain; better give %d",
            *(count_noun(count, "image"), len(counts), better),
        )
    mix = estimate_target(logs, counts, trust.mix)
    if not mix.agrees:
        _warn_of_disagreement(mix, counts)
    return mix, count, unreadable.reasons


def _warn_of_disagreement(mix: Mix, counts: ClassCounts) -> None:
    groups = mix.shares @ group_classes(counts)
    logger.warning(
        "EM and BBSE disagree: the estimated class mix explains all but %.0f %% of the "
        "predictions, and noise explains %.0f %%. Groups of classes, the most frequent first, "
        "have the shares %s by EM and %s by BBSE. The images may differ from the training "
        "images in more than their class mix: check the adapted model on labelled images",
        *(100 * mix.distance, 100 * mix.allowed),
        *(", ".join(f"{100 * share:.0f} %" for share in found) for found in (groups, mix.bbse)),
    )


def _check_variety(logs: Tensor, classes: tuple[str, ...]) -> None:
    """Refuse images that are nearly all of one class, by their log p (N, C) for a uniform mix.

    EM estimates their shares: predictions would not do, since a model takes many images of one
    class for others.
    """
    share, top = estimate_mix(logs.exp(), torch.ones(len(classes)) / len(classes)).max(0)
    if share > ONE_CLASS and len(classes) > 1:
        raise UserError(
            f"nearly all of {len(logs):,} images look like '{classes[int(top)]}': a model adapted "
            "to one class answers nothing else. Give a sample of all images of the place, or the "
            "mix as a prior"
        )


def _check_prior(prior: Mapping[str, float] | Path | str, classes: tuple[str, ...]) -> Tensor:
    """Return a given class mix (C,); refuse unknown classes and shares that are not a mix."""
    given = prior if isinstance(prior, Mapping) else _read_prior(Path(prior))
    source = "the prior" if isinstance(prior, Mapping) else f"the prior {prior}"
    shares: dict[str, float] = {}
    for name, share in given.items():
        if not isinstance(name, str):
            raise UserError(f"{source} has the name {name!r}, and names of classes are text")
        if name not in classes:
            known = f"the classes are {list_some(classes)}"
            raise unknown_error("class in the prior", name, classes, known)
        try:
            # of numpy and torch, too; True would count as 1
            shares[name] = math.nan if isinstance(share, (bool, np.bool_)) else float(share)
        except (TypeError, ValueError, OverflowError):
            shares[name] = math.nan
        if not 0 <= shares[name] <= PER_CENT:
            raise UserError(f"'{name}' is {share} in {source}: a share is a number from 0 to 1")
    total = math.fsum(shares.values())
    if abs(total - 1) > 1e-3:
        per_cent = round(total) == PER_CENT
        hint = ". These seem to be per cent: divide them by 100" if per_cent else ""
        raise UserError(
            f"{source} sums to {total:g}: the shares of all classes must sum to 1{hint}"
        )
    if absent := [name for name in classes if not shares.get(name)]:
        logger.warning(
            "the prior leaves out %s: such a class is practically never predicted",
            list_some(absent),
        )
    values = torch.tensor([shares.get(name, 0.0) for name in classes], dtype=torch.double)
    values = values.clamp(min=LEAST_SHARE)
    return values / values.sum()


def _read_prior(path: Path) -> dict[str, Any]:
    """Read shares by class from a .json mapping, or from a .csv file of lines `class,share`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            tree = json.loads(text)
            if not isinstance(tree, dict):
                raise ValueError(f"its JSON is a {type(tree).__name__}, not a mapping")
            return tree
        return _read_lines([line for line in text.splitlines() if line.strip()])
    except OSError as error:
        raise UserError(f"the prior {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, csv.Error) as error:
        raise UserError(
            f"{path} is not a prior: it needs a JSON mapping of class names to shares, or lines "
            f"CLASS,SHARE or CLASS;SHARE ({error})"
        ) from None


def _read_lines(lines: Sequence[str]) -> dict[str, float]:
    """Read shares by class from lines of two cells, after a header or none."""
    separator = ";" if all(";" in line for line in lines) else ","
    rows = list(csv.reader(lines, delimiter=separator))
    if rows and rows[0][:1] == ["class"]:
        rows = rows[1:]
    shares: dict[str, float] = {}
    for row in rows:
        if len(row) != 2:
            raise ValueError(f"'{separator.join(row)}' has {count_noun(len(row), 'cell')}, not 2")
        if row[0] in shares:
            raise ValueError(f"'{row[0]}' has two lines")
        shares[row[0]] = _read_share(row[1])
    return shares


def _read_share(text: str) -> float:
    """Read a share as spreadsheets write it: 0.6, 0,6 or 60 %."""
    try:
        number = float(text.strip().removesuffix("%").replace(",", "."))
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    return number / 100 if text.strip().endswith("%") else number


def _set_mix(served: ServedModel, trust: Trust, target: Tensor, images: int) -> ServedModel:
    """Return the model with calibration and `target` (C,) in its head."""
    source = f"the class mix of {images:,} images" if images else "a given class mix"
    calibration = trust.calibration.for_prior(target)
    # a background class needs both effects of its head, so the calibration stays beside it
    head = served.head if served.exempt else calibration.fold(served.head)
    known = replace(trust, calibration=calibration) if served.exempt else trust.folded(target)
    about = replace(
        served.about,
        trust=known.to_json(),
        metrics={},  # they were measured with the former head
        training={**served.about.training, "adapted_to": source},
    )
    return served.with_head(head, about)
