"""Classification and a contrastive loss between views of the images, trained together.

Every method sees three views: the head learns from the first, which the augmentation of the run
makes and CutMix may mix; two more, never mixed, are compared by the balanced contrastive loss.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from longtail.methods.base import Auto, Batch, Loss, Method, Paper, Stage, require
from longtail.methods.deconfound import cosine, deconfound, deconfound_tde
from longtail.methods.self_prior import deconfound_self_prior
from longtail.nn import losses
from longtail.nn.contrast import Projection, balanced_contrast
from longtail.nn.losses import State

ZHU = Paper("Zhu et al.", 2022, "2207.09052")


def balanced_contrastive(
    *,
    tau: float = 30.0,
    strength: float = 1.0,
    classify: float = 2.0,
    contrast: float = 0.6,
    temperature: float = 0.1,
) -> Method:
    """Cosine head under the loss of `balanced-softmax`, and balanced contrast (Zhu et al. 2022)."""
    require(least=0, strength=strength)
    stage = Stage(partial(losses.balanced_softmax, strength=strength))
    trained = replace(cosine(tau=tau), stages=(stage,), weighs_counts=True)
    return _add_contrast(trained, classify, contrast, temperature)


def deconfound_contrastive(
    *,
    heads: int = 2,
    tau: float = 16.0,
    gamma: float = 1 / 32,
    classify: float = 2.0,
    contrast: float = 0.6,
    temperature: float = 0.1,
) -> Method:
    """De-confounded training, and contrast balanced only by the class counts within a batch."""
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    return _add_contrast(trained, classify, contrast, temperature)


def deconfound_contrastive_tde(
    *,
    heads: int = 2,
    tau: float = 16.0,
    gamma: float = 1 / 32,
    classify: float = 2.0,
    contrast: float = 0.6,
    temperature: float = 0.1,
    alpha: Auto = 1.0,
) -> Method:
    """Training of `deconfound-contrastive`, then the total direct effect, Eq. 8."""
    ruled = deconfound_tde(heads=heads, tau=tau, gamma=gamma, alpha=alpha)
    return _share_training(_add_contrast(ruled, classify, contrast, temperature))


def deconfound_contrastive_self_prior(
    *,
    heads: int = 2,
    tau: float = 16.0,
    gamma: float = 1 / 32,
    classify: float = 2.0,
    contrast: float = 0.6,
    temperature: float = 0.1,
    strength: Auto = 1.0,
) -> Method:
    """Training of `deconfound-contrastive`, then z - strength * log of its own mean softmax."""
    ruled = deconfound_self_prior(heads=heads, tau=tau, gamma=gamma, strength=strength)
    return _share_training(_add_contrast(ruled, classify, contrast, temperature))


def _share_training(ruled: Method) -> Method:
    return replace(ruled, training="deconfound-contrastive")


def _add_contrast(trained: Method, classify: float, contrast: float, temperature: float) -> Method:
    """Train `trained` on three views, with the weights `classify` and `contrast` of its losses."""
    require(least=0, classify=classify, contrast=contrast)
    require(above=0, temperature=temperature)
    step = partial(_step, classify=classify, contrast=contrast, temperature=temperature)
    (stage,) = trained.stages
    stage = replace(stage, step=step, views=("simclr", "simclr"), parts=Projection)
    return replace(trained, stages=(stage,), paper=ZHU)


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
    """Return classify * loss of the first view + contrast * loss between the others."""
    (batch,) = batches
    assert batch.labels is not None
    outputs = model(batch.inputs, views=batch.views)
    views, centres = outputs.parts
    between = balanced_contrast(views, batch.labels, centres, temperature=temperature)
    return classify * loss(outputs, batch.target, state) + contrast * between
