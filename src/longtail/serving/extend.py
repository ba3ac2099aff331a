"""Add classes to a trained model from a few photographs, without training.

    longtail extend runs/x okapi=photos/okapi/ -o with-okapi

The mean of the normalised features of the new photographs, less the direction that all features
share (the part that TDE removes), becomes a row of the head. Its length lies between two: that of
the neighbours' rows, and the one at which its logits spread over the class means as the neighbours'
do. They differ for a linear layer, whose rows are long for other reasons.

Symbols: C classes, D features, K heads, w rows of the head (C, D), v a new row (D,), d direction.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError, list_some
from longtail.data.base import Split
from longtail.evaluation.calibration import Calibration
from longtail.evaluation.trust import Trust
from longtail.nn.heads import AffineHead, Head, NormalisedHead
from longtail.nn.linear_heads import FoldedHead
from longtail.nn.ops import normalise
from longtail.runs.folder import Run
from longtail.serving import write as exports
from longtail.serving.answers import list_added, require_one_label
from longtail.serving.inputs import Picture
from longtail.serving.model import ServedModel
from longtail.serving.network import TorchNetwork
from longtail.serving.predictor import BATCH, Predictor, load_model

logger = logging.getLogger(__name__)

NEIGHBOURS = 10
"""Most classes that a new row is scaled to."""
QUIETNESS = 2 / 3
"""How far a new row goes from the length of its neighbours, 0, to the spread of their logits, 1."""
PULL = 30.0
"""Weight with which `refine` keeps the head near its start. The stored means alone rehearse the old
classes too little: with a small weight the photographs take images from them."""


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
        held_out: images of the old classes, which show what the new classes take from them.
        out: folder to write the new model to, which `load_model` and `export` read.

    Raises:
        UserError: if a class exists, has no readable photograph, or the model has no class means
            where they are needed.
    """
    predictor = model if isinstance(model, Predictor) else load_model(model)
    require_one_label(predictor.about, "extend")
    _check_names(classes, predictor.classes)
    served = predictor.model
    if served.exempt:
        raise UserError(
            f"the class '{served.about.background}' keeps its total effect as background, and a "
            "new class has none: extend the run without --background"
        )
    direction = _find_direction(served)
    if refine and served.class_means is None:
        raise _no_means_error("refining the head")
    features, unreadable = _extract(predictor, classes)
    folded, trust = served.fold(predictor.alpha), predictor.trust
    calibration = trust.calibration if trust else Calibration.identity(len(predictor.classes))
    head = calibration.fold(folded.head)
    rows = [_make_row(head, x, direction, served.class_means) for x in features]
    prior = torch.tensor(calibration.prior)
    grown = _grow(head, torch.stack(rows), prior)
    means = served.class_means
    if means is not None:
        means = torch.cat([means, torch.stack([x.mean(0) for x in features]).to(means)])
        if refine:
            _refine(grown, means[: head.classes], features)
    about = replace(
        folded.about,
        classes=(*predictor.classes, *classes),
        counts=(*predictor.about.counts, *map(len, features)),
        metrics={},  # they were measured without the new classes
        trust=None if trust is None else _grow_trust(trust, len(features)).to_json(),
        training={
            **predictor.about.training,
            "added_classes": [*list_added(predictor.about), *classes],
        },
    )
    extended = served.with_head(grown, about, means)
    if out is not None:
        exports.save_pretrained(extended, out)
    near = [_find_neighbours(head, row, 3).tolist() for row in rows]
    new = Predictor(extended.about, TorchNetwork(extended))
    given, taken = (None, None) if held_out is None else _count_taken(predictor, new, held_out)
    return Extension(
        model=new,
        photographs=dict(zip(classes, map(len, features), strict=True)),
        neighbours={
            name: tuple(predictor.classes[c] for c in places)
            for name, places in zip(classes, near, strict=True)
        },
        unreadable=unreadable,
        taken=taken,
        given=given,
    )


def _count_taken(
    before: Predictor, after: Predictor, held_out: Split
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Count the images that get each new class, and by old class those that were right before."""
    taken: dict[str, Counter[str]] = {
        name: Counter() for name in after.classes[len(before.classes) :]
    }
    given = dict.fromkeys(taken, 0)
    for rows in torch.arange(len(held_out)).split(BATCH):
        part = held_out.take(rows)
        inputs = part.load_inputs()
        was, now = (model.predict(inputs, top=1) for model in (before, after))
        for old, new, label in zip(was, now, part.labels.tolist(), strict=True):
            if new.name in taken:
                given[new.name] += 1
                taken[new.name][old.name] += old.name == before.classes[label]
    return given, {name: dict((+counts).most_common()) for name, counts in taken.items()}


def _check_names(new: Iterable[str], known: Sequence[str]) -> None:
    names = list(new)
    if not names:
        raise UserError("which classes? Give the name and the photographs of each new one")
    if taken := [name for name in names if name in known]:
        raise UserError(
            f"the model has the class {list_some(taken)} already: choose another name, or train "
            "it with more photographs"
        )
    if "" in names:
        raise UserError("a new class needs a name")


def _extract(
    predictor: Predictor, classes: Mapping[str, Iterable[Picture]]
) -> tuple[list[Tensor], dict[str, Mapping[int, str]]]:
    """Return the features (n, D) of the photographs of each class, and the unreadable ones."""
    features: list[Tensor] = []
    unreadable: dict[str, Mapping[int, str]] = {}
    for name, photographs in classes.items():
        found, unreadable[name] = predictor.extract(photographs)
        if not len(found):
            reason = next(iter(unreadable[name].values()), "there is none")
            raise UserError(f"class '{name}' has no readable photograph: {reason}")
        if len(found) == 1:
            logger.warning(
                "class '%s' has one photograph: five or more make its row far more reliable", name
            )
        features.append(found)
    return features, unreadable


def _find_direction(served: ServedModel) -> Tensor:
    """Return the direction (K, D/K) that all features share, unit or zero in each head."""
    if isinstance(served.head, NormalisedHead):
        return served.head.direction
    if served.class_means is None:
        raise _no_means_error("adding a class to a head without a direction")
    heads = served.head.heads if isinstance(served.head, FoldedHead) else 1
    return normalise(served.class_means.mean(0), heads, 0.0)


def _no_means_error(purpose: str) -> UserError:
    return UserError(
        f"{purpose} needs the mean feature of each class, which this model does not store: use the "
        "folder of the run that trained it, trained again if an older version did"
    )


def _normalise_features(head: Head, features: Tensor) -> Tensor:
    """Return features (N, D) as they meet the rows of the head."""
    if isinstance(head, FoldedHead):
        return normalise(features, head.heads, head.squash).flatten(-2)
    return features


def _find_neighbours(head: Head, row: Tensor, most: int) -> Tensor:
    """Return the classes whose rows are nearest to `row` (D,), nearest first."""
    cosines: Tensor = F.normalize(head.weight, dim=1) @ F.normalize(row, dim=0)
    return cosines.topk(min(most, head.classes)).indices


@torch.no_grad()
def _make_row(head: Head, features: Tensor, direction: Tensor, means: Tensor | None) -> Tensor:
    """Return the row (D,) of a class with `features` (n, D), scaled to its neighbours."""
    heads = len(direction)
    direction = direction.to(head.weight)
    unit = normalise(features.to(head.weight), heads, 0.0).mean(0)  # (K, D/K)
    row = (unit - (unit * direction).sum(-1, keepdim=True) * direction).flatten()
    near = _find_neighbours(head, row, NEIGHBOURS)
    scale = head.weight[near].norm(dim=1).mean() / row.norm().clamp(min=1e-12)
    if means is not None and len(means) > 2:
        points = _normalise_features(head, means.to(head.weight))  # (C, D)
        logits = points @ head.weight[near].T  # (C, neighbours)
        others = torch.arange(len(points), device=near.device)[:, None] != near
        spread = torch.stack([z[o].std() for z, o in zip(logits.T, others.T, strict=True)])
        own = (points @ row).std().clamp(min=1e-12)
        quiet = spread.square().mean().sqrt() / own
        scale = scale * (quiet / scale) ** QUIETNESS
    scaled: Tensor = scale * row
    return scaled


@torch.no_grad()
def _grow(head: Head, rows: Tensor, prior: Tensor) -> Head:
    """Return `head` with further `rows` (n, D), as frequent in its mix `prior` (C,) as the mean."""
    assert isinstance(head, (AffineHead, FoldedHead)) and head.bias is not None
    weight, log_prior = torch.cat([head.weight, rows]), prior.to(head.bias).log()
    own = (head.bias - log_prior).mean() + log_prior.exp().mean().log()
    bias = torch.cat([head.bias, own.expand(len(rows))])
    if isinstance(head, AffineHead):
        return AffineHead.of(weight, bias)
    grown = FoldedHead(head.dim, len(weight), head.heads, head.squash).to(weight)
    grown.weight.copy_(weight)
    return grown.with_bias(bias)


def _refine(head: Head, means: Tensor, features: Sequence[Tensor]) -> None:
    """Fit the weights of `head` to old class means and new photographs, each class alike."""
    new = [x.to(head.weight) for x in features]
    inputs = _normalise_features(head, torch.cat([means.to(head.weight), *new])).double()
    sizes = torch.tensor([1] * len(means) + [len(x) for x in new])
    labels = torch.arange(len(sizes)).repeat_interleave(sizes).to(inputs.device)
    weights = (1 / sizes.double()).to(inputs.device)[labels] / len(sizes)
    start, bias = head.weight.detach().double(), head.bias
    assert isinstance(bias, Tensor)
    offset, size = bias.double(), start.square().sum(1).mean()
    weight = start.clone().requires_grad_()
    solver = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        losses = F.cross_entropy(inputs @ weight.T + offset, labels, reduction="none")
        pull = PULL * (weight - start).square().sum() / (size * len(start))
        loss: Tensor = weights @ losses + pull
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    head.weight.data.copy_(weight.detach())


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
