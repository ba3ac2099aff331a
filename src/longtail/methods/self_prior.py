"""Remove the prior that a network shows by itself: no class counts anywhere.

The mean softmax of a trained network over its training images is close to the class frequencies it
was trained with. Its logarithm, times a strength, is subtracted from the logits.
"""

from dataclasses import replace
from functools import partial

import torch

from longtail.methods.base import Auto, Choice, Method, RuleInputs, require
from longtail.methods.baseline import baseline
from longtail.methods.deconfound import deconfound
from longtail.methods.logit_adjustment import MENON
from longtail.nn.heads import Head, NormalisedHead

STRENGTHS = tuple(i * 0.25 for i in range(9))
"""Values that `auto` tries: 0 to 2 in steps of 0.25."""


def baseline_self_prior(*, strength: Auto = 1.0) -> Method:
    """Baseline, then z - strength * log of its own mean softmax on the training images."""
    return _add_rule("baseline", baseline(), strength)


def deconfound_self_prior(
    *, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32, strength: Auto = 1.0
) -> Method:
    """De-confounded training, then z - strength * log of its own mean softmax."""
    return _add_rule("deconfound", deconfound(heads=heads, tau=tau, gamma=gamma), strength)


def _add_rule(name: str, trained: Method, strength: Auto) -> Method:
    require(least=0, strength=strength)
    return replace(
        trained,
        rule=None if strength == "auto" else partial(subtract_self_prior, strength=strength),
        choice=Choice("strength", STRENGTHS) if strength == "auto" else None,
        training=name,
        post_hoc=("strength",),
        paper=MENON,
    )


@torch.no_grad()
def subtract_self_prior(inputs: RuleInputs, *, strength: float) -> Head:
    """Return the head with -strength * log(mean softmax over the training images) as its bias."""
    head = inputs.head
    total = head.total if isinstance(head, NormalisedHead) else head
    prior = total(inputs.features).softmax(1).mean(0)  # (C,)
    return head.with_bias(-strength * prior.clamp(min=torch.finfo(prior.dtype).tiny).log())
