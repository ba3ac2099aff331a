"""Margins that are wider for rarer classes."""

from functools import partial

from longtail.methods.base import CausalReading, Method, Paper, Stage, require
from longtail.nn import losses
from longtail.nn.heads import CosineHead


def ldam_drw(
    *, margin: float = 0.5, scale: float = 30.0, beta: float = 0.9999, defer: float = 0.6
) -> Method:
    """Margins as n^(-1/4) on cosines; re-weighting after `defer` of training (Cao et al. 2019)."""
    # as in that paper, re-weighting starts with the first fall of the default learning rate
    require(least=0, margin=margin)
    require(above=0, scale=scale)
    require(least=0, below=1, beta=beta)
    require(above=0, below=1, defer=defer)
    loss = partial(losses.ldam, margin=margin, scale=scale)
    return Method(
        head=partial(CosineHead, tau=scale, alpha=0.0),
        stages=(Stage(loss, share=defer), Stage(partial(loss, beta=beta), share=1 - defer)),
        alpha=0.0,
        paper=Paper("Cao et al.", 2019, "1906.07413"),
        weighs_counts=True,
        reading=CausalReading(rebalances=True, deconfounds=True, effect="CDE"),
    )
