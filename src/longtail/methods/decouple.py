"""Decoupled training (Kang et al. 2020): the features of `baseline`, then another classifier.

With the same seed, the first stage gives exactly the weights of `baseline`, with `--bias` for
`decouple-crt` and `decouple-lws`.
"""

from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.data.base import ClassCounts
from longtail.methods.base import (
    Auto,
    CausalReading,
    Choice,
    Method,
    Model,
    Paper,
    RuleInputs,
    Stage,
    backbone_and_linear,
    compute_centroids,
    head_only,
    require,
)
from longtail.nn.linear_heads import AffineHead, BiasedHead, FoldedHead, Head, TrainedBiasHead
from longtail.nn.ops import product

TAUS = tuple(i / 10 for i in range(21))
"""Values that `auto` tries: 0 to 2 in steps of 0.1."""
COSINE_TAU = 16.0
"""Scale of the cosines of `decouple-ncm`: that of the paper's cosine classifiers."""
KANG = Paper("Kang et al.", 2020, "1910.09217")
NO_BIAS = "The network is trained without the bias that the classifier of the authors' code has."
TWO_STAGE = CausalReading(rebalances=True, effect="NDE")


def decouple_joint() -> Method:
    """The first stage alone: `baseline` under the name of that paper (Kang et al. 2020)."""
    return Method(training="baseline", departures=(NO_BIAS,), paper=KANG)


def decouple_ncm() -> Method:
    """Nearest class mean by cosine, on the baseline's features (Kang et al. 2020)."""
    return Method(
        rule=use_class_means,
        training="baseline",
        departures=(NO_BIAS,),
        paper=KANG,
        reading=TWO_STAGE,
    )


def decouple_crt(*, share: float = 0.1) -> Method:
    """New classifier on frozen features, class-balanced sampling (Kang et al. 2020)."""
    require(above=0, share=share)
    second = Stage(samplers=("class",), trains=head_only, prepare=_reset_head, share=share)
    return Method(
        BiasedHead,
        (Stage(), second),
        first="baseline",
        first_options={"bias": True},
        paper=KANG,
        reading=TWO_STAGE,
    )


def decouple_tau_norm(*, tau: Auto = "auto") -> Method:
    """Baseline whose class weights are divided by |w|^tau (Kang et al. 2020)."""
    require(least=0, tau=tau)
    return Method(
        rule=None if tau == "auto" else partial(_normalise_weights, tau=tau),
        choice=Choice("tau", TAUS) if tau == "auto" else None,
        training="baseline",
        post_hoc=("tau",),
        departures=(NO_BIAS,),
        paper=KANG,
        reading=TWO_STAGE,
    )


def decouple_lws(*, share: float = 0.1) -> Method:
    """Learned scale of each frozen class weight, class-balanced sampling (Kang et al. 2020)."""
    require(above=0, share=share)
    second = Stage(samplers=("class",), trains=_scale_only, share=share)
    return Method(
        ScaledHead,
        (Stage(trains=backbone_and_linear), second),
        first="baseline",
        first_options={"bias": True},
        paper=KANG,
        reading=TWO_STAGE,
    )


@final
class ScaledHead(TrainedBiasHead):
    """A linear head with a learned scale for each class: z_i = g_i (<w_i, x> + b_i).

    At first b_i = 0 and g_i = 1. The first stage trains w and b, the second one g.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        self.scale = nn.Parameter(torch.ones(classes))

    @property
    def class_weight(self) -> Tensor:
        return self.scale[:, None] * self.weight

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias) * self.scale


def _scale_only(model: Model) -> list[nn.Parameter]:
    assert isinstance(model.head, ScaledHead)
    return [model.head.scale]


def _reset_head(model: Model, features: Tensor, labels: Tensor, counts: ClassCounts) -> None:
    assert isinstance(model.head, BiasedHead)
    model.head.reset_parameters()
    nn.init.zeros_(model.head.bias)


@torch.no_grad()
def use_class_means(inputs: RuleInputs) -> Head:
    """Return the cosine classifier whose weights are the class means.

    Its logits have the scale of the trained head, or that of the paper's cosine classifiers:
    cosines alone lie so close together that every class would be about equally probable.
    """
    means = compute_centroids(inputs.features, inputs.labels, len(inputs.counts))
    head = FoldedHead(means.shape[1], len(means)).to(means)
    head.weight.copy_(getattr(inputs.head, "tau", COSINE_TAU) * F.normalize(means))
    return head.eval()


def _normalise_weights(inputs: RuleInputs, *, tau: float) -> Head:
    weight = inputs.head.weight
    norms = weight.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return AffineHead.of(weight / norms**tau, tau=tau)
