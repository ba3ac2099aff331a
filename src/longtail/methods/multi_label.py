"""Methods for images with several labels each: a binary decision for each label.

The linear head has a bias, since most labels are absent from most images. A normalised head needs
none: its weights take it up along the mean feature, which is what TDE removes.
"""

from dataclasses import replace
from functools import partial

from longtail.methods.base import Loss, Method, Paper, Stage, require
from longtail.methods.deconfound import deconfound, deconfound_tde
from longtail.methods.logit_adjustment import MENON
from longtail.nn import binary_losses
from longtail.nn.linear_heads import BiasedHead

RIDNIK = Paper("Ridnik et al.", 2021, "2009.14119")
WU = Paper("Wu et al.", 2020, "2007.09654")
RIDNIK_DEPARTURES = (
    "The factors that weigh easy labels less have a gradient; the authors' code trains without it.",
)
WU_DEPARTURES = (
    "The focal factor, with which that paper's best figure is made, is left out.",
    "The logits are shifted by kappa times the log prior odds, as in the paper; the authors' code "
    "divides this by the scale of absent labels.",
)
STAGES = (Stage(binary_losses.binary_cross_entropy),)


def bce() -> Method:
    """Several labels per image: linear classifier, binary cross-entropy of every label."""
    return Method(head=BiasedHead, stages=STAGES, multi_label=True)


def logit_adjusted_bce(*, tau: float = 1.0) -> Method:
    """Several labels: z + tau * log-odds of each label's prior in training (Menon et al. 2021)."""
    require(least=0, tau=tau)
    loss = partial(binary_losses.logit_adjusted, tau=tau)
    return replace(_train_with(loss, MENON), weighs_counts=True)


def asymmetric(*, gamma_pos: float = 0.0, gamma_neg: float = 4.0, margin: float = 0.05) -> Method:
    """Several labels: easy absent labels count little or nothing (Ridnik et al. 2021)."""
    require(least=0, gamma_pos=gamma_pos, gamma_neg=gamma_neg)
    require(least=0, below=1, margin=margin)
    loss = partial(
        binary_losses.asymmetric, gamma_pos=gamma_pos, gamma_neg=gamma_neg, margin=margin
    )
    return replace(_train_with(loss, RIDNIK), departures=RIDNIK_DEPARTURES)


def distribution_balanced(
    *,
    lift: float = 0.1,
    slope: float = 10.0,
    centre: float = 0.2,
    scale: float = 2.0,
    kappa: float = 0.05,
) -> Method:
    """Several labels: drawn evenly, re-balanced weights, tolerant of negatives (Wu et al. 2020)."""
    require(least=0, lift=lift, slope=slope, centre=centre, kappa=kappa)
    require(above=0, scale=scale)
    loss = partial(
        binary_losses.distribution_balanced,
        lift=lift,
        slope=slope,
        centre=centre,
        scale=scale,
        kappa=kappa,
    )
    # the weights undo what even draws of labels that occur together repeat
    stage = Stage(loss, samplers=("class",))
    return replace(_train_with(loss, WU), stages=(stage,), departures=WU_DEPARTURES)


def deconfound_bce(*, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32) -> Method:
    """Several labels: de-confounded head, Eq. 7, binary cross-entropy (Tang et al. 2020)."""
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    return replace(trained, stages=STAGES, multi_label=True)


def deconfound_bce_tde(
    *, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32, alpha: float = 1.0
) -> Method:
    """Several labels: de-confounded head, then TDE, Eq. 8, of each label (Tang et al. 2020)."""
    trained = deconfound_tde(heads=heads, tau=tau, gamma=gamma, alpha=alpha)
    return replace(trained, stages=STAGES, training="deconfound-bce", multi_label=True)


def _train_with(loss: Loss, paper: Paper) -> Method:
    return Method(head=BiasedHead, stages=(Stage(loss),), paper=paper, multi_label=True)
