"""Methods that remove the class prior from the logits, during or after training."""

from dataclasses import replace
from functools import partial

import torch

from longtail.methods.base import Auto, Choice, Method, Paper, RuleInputs, Stage, require
from longtail.methods.deconfound import deconfound
from longtail.nn import losses
from longtail.nn.heads import AffineHead, Head

STRENGTHS = tuple(i / 10 for i in range(21))
"""Values that `auto` tries for tau: 0 to 2 in steps of 0.1."""
MENON = Paper("Menon et al.", 2021, "2007.07314")


def balanced_softmax(*, strength: float = 1.0) -> Method:
    """Softmax over z + strength * log n in training, over z at test time (Ren et al. 2020)."""
    require(least=0, strength=strength)
    loss = partial(losses.balanced_softmax, strength=strength)
    paper = Paper("Ren et al.", 2020, "2007.10740")
    return Method(stages=(Stage(loss),), paper=paper, weighs_counts=True)


def logit_adjustment(*, tau: Auto = 1.0) -> Method:
    """Baseline, then z - tau * log of the class prior at test time (Menon et al. 2021)."""
    require(least=0, tau=tau)
    return Method(
        rule=None if tau == "auto" else partial(subtract_prior, tau=tau),
        choice=Choice("tau", STRENGTHS) if tau == "auto" else None,
        training="baseline",
        post_hoc=("tau",),
        paper=MENON,
        weighs_counts=True,
    )


def deconfound_balanced(
    *, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32, strength: float = 1.0
) -> Method:
    """De-confounded head under the loss of `balanced-softmax` (Eq. 7; Ren et al. 2020)."""
    balanced = balanced_softmax(strength=strength)
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    return replace(trained, stages=balanced.stages, weighs_counts=True)


def subtract_prior(inputs: RuleInputs, *, tau: float) -> Head:
    """Return the head with -tau * log of the class frequencies as its bias."""
    counts = inputs.counts.tensor().to(inputs.head.weight).clamp(min=1)
    head = inputs.head.with_bias(-tau * torch.log(counts / counts.sum()))
    if isinstance(head, AffineHead):
        head.tau = tau
    return head
