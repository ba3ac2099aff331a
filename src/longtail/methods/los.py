"""Label over-smoothing: train only the classifier further, toward nearly uniform targets.

With the targets (1 - smoothing) * one-hot + smoothing / C, the logits of all classes shrink, those
of frequent classes most, since they have most images. No class count enters (Sun et al. 2025). It
is a post-hoc rule, because the features stay as they are.
"""

from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from longtail.methods.base import Method, Paper, RuleInputs, require
from longtail.methods.baseline import baseline
from longtail.methods.deconfound import deconfound
from longtail.nn.heads import Head

SUN = Paper("Sun et al.", 2025, "2403.00250")
EPOCHS, BATCH_SIZE, MOMENTUM = 20, 64, 0.9
"""SGD of the authors' code; its learning rate falls along a cosine, epoch by epoch."""
DEPARTURES = (
    "The classifier is trained on features of images without augmentation, extracted once.",
    "The classifier has no bias, that of the authors' code has one.",
)


def los(*, smoothing: float = 0.98, los_lr: float = 5e-4) -> Method:
    """Baseline, then its classifier under over-smoothed labels (Sun et al. 2025)."""
    return _add_rule("baseline", baseline(), smoothing, los_lr)


def deconfound_los(
    *,
    heads: int = 2,
    tau: float = 16.0,
    gamma: float = 1 / 32,
    smoothing: float = 0.98,
    los_lr: float = 0.01,
) -> Method:
    """De-confounded training, then its class weights under over-smoothed labels.

    Normalised features are shorter than those that a linear head sees, so the rate is higher.
    """
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    return _add_rule("deconfound", trained, smoothing, los_lr)


def _add_rule(name: str, trained: Method, smoothing: float, los_lr: float) -> Method:
    """Add the second stage to the method `trained`, whose name is `name`."""
    require(least=0, most=1, smoothing=smoothing)
    require(least=0, los_lr=los_lr)
    return replace(
        trained,
        rule=partial(train_over_smoothed, smoothing=smoothing, lr=los_lr),
        training=name,
        post_hoc=("smoothing", "los_lr"),
        paper=SUN,
        departures=DEPARTURES,
    )


@torch.enable_grad()
def train_over_smoothed(inputs: RuleInputs, *, smoothing: float, lr: float) -> Head:
    """Return the head after SGD with label smoothing on the features of the training images.

    The weights of a normalised head are divided by their norms first, at alpha 0, and are then
    trained as those of a linear head on normalised features, whose logits can shrink.
    """
    weight, features, labels = inputs.head.weight, inputs.features, inputs.labels
    head = inputs.head.with_bias(weight.new_zeros(len(weight)))
    optimizer = torch.optim.SGD([head.weight.requires_grad_()], lr=lr, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    generator = torch.Generator().manual_seed(0)  # a rule is pure: the same inputs, the same head
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        for rows in order.split(BATCH_SIZE):
            loss = F.cross_entropy(head(features[rows]), labels[rows], label_smoothing=smoothing)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
    head.weight.requires_grad_(False)
    return head.eval()
