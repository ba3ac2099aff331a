"""Classification and contrast with a density of each class, trained together (Du et al. 2024).

Both methods see three views as those in `contrastive` do; the two further ones are compared with
the von Mises-Fisher densities of all classes.
"""

from dataclasses import replace
from functools import partial
from typing import cast

from torch import Tensor, nn

from longtail.methods.base import Batch, Loss, Method, Paper, Stage, require
from longtail.methods.baseline import baseline
from longtail.methods.deconfound import deconfound
from longtail.nn import losses
from longtail.nn.densities import Densities, decay_and_add, density_logits, sum_views
from longtail.nn.heads import Head
from longtail.nn.losses import State

DU = Paper("Du et al.", 2024, "2403.06726")
DEPARTURES = (
    "Running sums of each class decay from step to step; those of the authors' code hold one to "
    "two epochs.",
)


def proco(
    *,
    strength: float = 1.0,
    classify: float = 1.0,
    contrast: float = 1.0,
    temperature: float = 0.1,
) -> Method:
    """Contrast with class densities, both losses that of `balanced-softmax` (Du et al. 2024)."""
    require(least=0, strength=strength)
    stage = Stage(partial(losses.balanced_softmax, strength=strength))
    trained = replace(baseline(), stages=(stage,), weighs_counts=True)
    return _add_densities(trained, classify, contrast, temperature)


def deconfound_proco(
    *,
    heads: int = 2,
    tau: float = 16.0,
    gamma: float = 1 / 32,
    classify: float = 1.0,
    contrast: float = 1.0,
    temperature: float = 0.1,
) -> Method:
    """De-confounded training, and contrast with class densities; no class counts anywhere."""
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    return _add_densities(trained, classify, contrast, temperature)


def _add_densities(trained: Method, classify: float, contrast: float, temperature: float) -> Method:
    """Train `trained` on three views, with the weights `classify` and `contrast` of its losses."""
    require(least=0, classify=classify, contrast=contrast)
    require(above=0, temperature=temperature)
    step = partial(_step, classify=classify, contrast=contrast, temperature=temperature)
    (stage,) = trained.stages
    stage = replace(stage, step=step, views=("simclr", "simclr"), parts=Densities)
    return replace(trained, stages=(stage,), paper=DU, departures=DEPARTURES)


def _step(
    model: nn.Module,
    loss: Loss,
    batches: list[Batch],
    state: State,
    *,
    classify: float,
    contrast: float,
    temperature: float,
) -> Tensor:
    """Return classify * loss of the first view + contrast * the same loss of the density logits.

    A part of an accumulated batch sees densities that hold its own views; the running sums decay
    once, when the whole batch is known.
    """
    (batch,) = batches
    assert batch.labels is not None
    outputs = model(batch.inputs, views=batch.views)
    views, sums = outputs.parts
    new = sum_views(views, batch.labels, len(sums))
    seen = decay_and_add(sums, new)
    logits = density_logits(views, seen, temperature=temperature)  # (V * B, C)
    head, densities = cast(Head, model.head), cast(Densities, model.parts)
    head.update_statistics(new, densities.update)
    between = loss(outputs._replace(logits=logits), batch.labels.repeat(len(views)), state)
    return classify * loss(outputs, batch.target, state) + contrast * between
