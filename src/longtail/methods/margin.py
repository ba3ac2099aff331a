"""Margins by class: the rarer, the wider."""

from functools import partial

from longtail import losses
from longtail.errors import UserError
from longtail.heads import CosineHead
from longtail.methods.base import Method, Paper, Reading, Stage


def ldam_drw(
    *, margin: float = 0.5, scale: float = 30.0, beta: float = 0.9999, defer: float = 0.8
) -> Method:
    """Margins as n^(-1/4) on cosines; re-weighted after `defer` of training (Cao et al. 2019)."""
    if not 0 < defer < 1:
        raise UserError(f"ldam-drw: --defer {defer} must lie between 0 and 1 (0.8 is the paper's)")
    loss = partial(losses.ldam, margin=margin, scale=scale)
    return Method(
        head=partial(CosineHead, tau=scale, alpha=0.0),
        stages=(Stage(loss, share=defer), Stage(partial(loss, beta=beta), share=1 - defer)),
        alpha=0.0,
        paper=Paper("Cao et al.", 2019, "1906.07413"),
        weighs_counts=True,
        reading=Reading(rebalances=True, deconfounds=True, effect="CDE"),
    )
