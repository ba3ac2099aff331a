"""Methods that remove the class prior from the logits, during or after training."""

from functools import partial

import torch

from longtail.methods.base import Auto, Choice, Method, Paper, RuleInputs, Stage, require
from longtail.nn import losses
from longtail.nn.heads import AffineHead, Head

STRENGTHS = tuple(i / 10 for i in range(21))
"""Values that `auto` tries for tau: 0 to 2 in steps of 0.1."""


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
        rule=None if tau == "auto" else partial(_subtract_prior, tau=tau),
        choice=Choice("tau", STRENGTHS) if tau == "auto" else None,
        training="baseline",
        post_hoc=("tau",),
        paper=Paper("Menon et al.", 2021, "2007.07314"),
        weighs_counts=True,
    )


def _subtract_prior(inputs: RuleInputs, *, tau: float) -> Head:
    weight = inputs.head.weight
    counts = inputs.counts.tensor().to(weight).clamp(min=1)
    return AffineHead.of(weight, -tau * torch.log(counts / counts.sum()), tau=tau)
