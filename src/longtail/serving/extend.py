"""Add classes to a trained model from a few photographs, without training.

    longtail extend runs/x okapi=photos/okapi/ -o with-okapi

`new_rows` says how photographs become rows of the head. Shapes: D features.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from longtail.core.errors import UserError, list_some
from longtail.data.base import Split
from longtail.evaluation.calibration import Calibration
from longtail.evaluation.trust import Trust
from longtail.methods.base import HeldOut
from longtail.nn.heads import Head
from longtail.runs.folder import Run
from longtail.serving import write as exports
from longtail.serving.answers import list_added, require_one_label
from longtail.serving.model import ModelDescription, ServedModel
from longtail.serving.new_rows import (
    find_direction,
    find_neighbours,
    fit_rows,
    grow,
    make_row,
    no_means_error,
    refine_head,
    scale_row,
)
from longtail.serving.predictor import Predictor, load_model
from longtail.serving.user_inputs import Picture, refuse_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Extension:
    """A model with more classes."""

    model: Predictor
    """The model, its new classes last."""
    photographs: Mapping[str, int]
    """Readable photographs of each new class."""
    neighbours: Mapping[str, tuple[str, ...]]
    """The three old classes nearest to each new one, which it may take images from."""
    unreadable: Mapping[str, Mapping[int, str]]
    """Places of the unreadable photographs of each new class, and the reasons."""
    taken: Mapping[str, Mapping[str, int]] | None
    """Held-out images that each new class takes from each old one; None without held-out images.

    Only images count that the model got right before.
    """
    given: Mapping[str, int] | None
    """Held-out images that get each new class as their answer, right before or not."""
    recognised: Mapping[str, int]
    """Photographs of each new class that get it as their answer."""
    held_out: int
    """Number of held-out images of the old classes that were at hand."""


def extend(
    model: Run | Predictor | Path | str,
    classes: Mapping[str, Iterable[Picture]],
    *,
    refine: bool = False,
    held_out: Split | None = None,
    out: Path | str | None = None,
) -> Extension:
    """Add `classes` to a model, each from a few photographs.

    Args:
        model: a run or its folder, a loaded model, or a file or folder that `load_model` takes.
        classes: photographs of each new class by its name: files, arrays, PIL images, or rows of
            embeddings.
        refine: then fit the head to the photographs and to the stored class means.
        held_out: images of the old classes, which decide how readily a new class is the answer, and
            show what it takes from them; by default those whose features the model stores.
        out: folder to write the new model to, which `load_model` and `export` read.

    Raises:
        UserError: if a class exists, has no readable photograph, or the model has no class means
            where they are needed.
    """
    if out is not None:
        exports.check_folder(Path(out))
    predictor = model if isinstance(model, Predictor) else load_model(model)
    require_one_label(predictor.about, "extend")
    _check_classes(classes, predictor.classes)
    _check_shared(classes)
    served = predictor.require_model("adding classes")
    _check_can_grow(served, refine=refine)
    direction = find_direction(served)
    features, unreadable = _extract(predictor, classes)
    known = _get_held_out(served) if held_out is None else _extract_old(predictor, held_out)
    folded, trust = served.fold(predictor.alpha), predictor.trust
    calibration = trust.calibration if trust else Calibration.identity(len(predictor.classes))
    head, means = calibration.fold(folded.head), served.stored.class_means
    rows = {name: make_row(head, x, direction) for name, x in features.items()}
    prior = torch.tensor(calibration.prior)
    grown = _grow_head(head, list(rows.values()), prior, means, known)
    if means is not None:
        if refine:
            refine_head(grown, means, list(features.values()))
        means = torch.cat([means, torch.stack([x.mean(0) for x in features.values()]).to(means)])
    photographs = {name: len(x) for name, x in features.items()}
    about = _describe(folded.about, trust, photographs)
    extended = folded.with_head(grown, about, replace(folded.stored, class_means=means))
    if out is not None:
        exports.save_pretrained(extended, out)
    given, taken = _count_taken(head, grown, known, about.classes) if known else (None, None)
    return Extension(
        model=predictor.with_model(extended),
        photographs=photographs,
        neighbours={name: _name_neighbours(head, row, about) for name, row in rows.items()},
        unreadable=unreadable,
        taken=taken,
        given=given,
        recognised=_count_recognised(grown, features),
        held_out=len(known.labels) if known else 0,
    )


def _check_can_grow(served: ServedModel, *, refine: bool) -> None:
    """Refuse a model that keeps a background or, with `refine`, one without class means."""
    if served.exempt:
        raise UserError(
            f"the class '{served.about.background}' keeps its total effect as background, and a "
            "new class has none: extend the run without --background"
        )
    if refine and served.stored.class_means is None:
        raise no_means_error("refining the head")


def _name_neighbours(head: Head, row: Tensor, about: ModelDescription) -> tuple[str, ...]:
    """Return the names of the three old classes nearest to a new `row` (D,)."""
    return tuple(about.classes[c] for c in find_neighbours(head, row, 3).tolist())


def _describe(
    about: ModelDescription, trust: Trust | None, added: Mapping[str, int]
) -> ModelDescription:
    """Describe the model with the classes `added`, from their numbers of photographs."""
    return replace(
        about,
        classes=(*about.classes, *added),
        counts=(*about.counts, *added.values()),
        metrics={},  # they were measured without the new classes
        trust=None if trust is None else _grow_trust(trust, len(added)).to_json(),
        training={**about.training, "added_classes": [*list_added(about), *added]},
    )


def _get_held_out(served: ServedModel) -> HeldOut | None:
    """Return the features of held-out images that the model stores; warn if there are none."""
    if served.stored.held_out is None:
        logger.warning(
            "the model stores no features of held-out images, because it was trained without a "
            "validation part or by an older version: length and bias of the new rows follow the "
            "old ones, which is less reliable, and what they take from old classes cannot be "
            "counted. Of a run with a validation part, delete result.json and repeat longtail "
            "train --resume"
        )
    return served.stored.held_out


def _grow_head(
    head: Head, rows: list[Tensor], prior: Tensor, means: Tensor | None, known: HeldOut | None
) -> Head:
    """Return `head` with `rows` (D,), whose length and bias held-out images set if they suffice."""
    if known is not None and len(known.labels) >= head.classes:
        return grow(head, *fit_rows(head, torch.stack(rows), prior, known), prior=prior)
    return grow(head, torch.stack([scale_row(head, row, means) for row in rows]), prior=prior)


def _extract_old(predictor: Predictor, held_out: Split) -> HeldOut:
    """Compute the features (N, D) of held-out images."""
    parts = []
    for rows in torch.arange(len(held_out)).split(predictor.batch_size):
        found, unreadable = predictor.extract(held_out.take(rows).load_inputs())
        for place, reason in unreadable.items():
            raise UserError(f"held-out image {int(rows[place])} cannot be read: {reason}")
        parts.append(found)
    return HeldOut(torch.cat(parts), held_out.labels.cpu())


@torch.no_grad()
def _count_recognised(head: Head, features: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the photographs that get their class, by their `features` (n, D); warn if none does."""
    first, found = head.classes - len(features), {}
    for place, (name, x) in enumerate(features.items(), start=first):
        found[name] = int((head(x.to(head.weight)).argmax(1) == place).sum())
        if not found[name]:
            logger.warning(
                "the new model takes the photographs of '%s' for other classes, all of them: "
                "refine it, add photographs, or extend a model with more held-out images",
                name,
            )
    return found


@torch.no_grad()
def _count_taken(
    before: Head, after: Head, old: HeldOut, classes: Sequence[str]
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Count the images that get each new class, and by old class those that were right before.

    `classes` are the names of all, the new ones last.
    """
    was, now = (head(old.features.to(head.weight)).argmax(1).cpu() for head in (before, after))
    given, taken = {}, {}
    for place, name in enumerate(classes[before.classes :], start=before.classes):
        given[name] = int((now == place).sum())
        lost = Counter(old.labels[(now == place) & (was == old.labels)].tolist())
        taken[name] = {classes[label]: number for label, number in lost.most_common()}
    return given, taken


def _check_classes(new: Mapping[str, Iterable[Picture]], known: Sequence[str]) -> None:
    if not isinstance(new, Mapping):
        raise UserError("give the photographs of each new class by its name: {name: photographs}")
    for name, photographs in new.items():
        refuse_path(photographs, f"class '{name}': ")
    names = list(new)
    if not names:
        raise UserError("which classes? Give the name and the photographs of each new one")
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise UserError(f"the new class {wrong[0]!r} is not text: pass '{wrong[0]}'")
    if taken := [name for name in names if name in known]:
        raise UserError(
            f"the model has the class {list_some(taken)} already: choose another name. For more "
            "photographs of it, train again, or extend the model from before it was added"
        )
    if "" in names:
        raise UserError("a new class needs a name")


def _check_shared(classes: Mapping[str, Iterable[Picture]]) -> None:
    """Refuse a file that is given for two classes."""
    owners: dict[str, str] = {}
    for name, photographs in classes.items():
        for file in photographs if isinstance(photographs, Sequence) else ():
            if not isinstance(file, (str, Path)):
                continue
            owner = owners.setdefault(os.path.realpath(file), name)
            if owner != name:
                raise UserError(f"{file} is given for {owner} and for {name}: give it to one only")


def _extract(
    predictor: Predictor, classes: Mapping[str, Iterable[Picture]]
) -> tuple[dict[str, Tensor], dict[str, Mapping[int, str]]]:
    """Return the features (n, D) of the photographs of each class, and the unreadable ones."""
    features: dict[str, Tensor] = {}
    unreadable: dict[str, Mapping[int, str]] = {}
    for name, photographs in classes.items():
        features[name], unreadable[name] = predictor.extract(photographs)
        if not len(features[name]):
            place, reason = next(iter(unreadable[name].items()), (0, "there is none"))
            listed = photographs if isinstance(photographs, Sequence) else []
            files = [f"{p}: " for p in listed[place : place + 1] if isinstance(p, (str, Path))]
            raise UserError(f"class '{name}' has no readable photograph: {''.join(files)}{reason}")
        if len(features[name]) == 1:
            logger.warning(
                "class '%s' has one photograph: five or more make its row far more reliable", name
            )
    return features, unreadable


def _grow_trust(trust: Trust, new: int) -> Trust:
    """Return `trust` with `new` classes, of which there are no held-out images.

    A new class has the mean share of the others, and enters a set as a middling class does.
    """
    old = torch.tensor(trust.calibration.prior, dtype=torch.double)
    prior = torch.cat([old, old.mean().expand(new)])
    sets = {
        level: (*values, *(sorted(values)[len(values) // 2],) * new)
        for level, values in trust.sets.items()
    }
    grown = replace(trust, sets=sets, mix=trust.mix.grown(len(prior)))
    return grown.folded(prior / prior.sum())
