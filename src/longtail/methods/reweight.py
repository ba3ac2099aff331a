"""Losses that weight an image by its class or by its difficulty."""

from functools import partial

from longtail.methods.base import CausalReading, Method, Paper, Stage, require
from longtail.nn import losses


def focal(*, gamma: float = 2.0) -> Method:
    """Focal loss, which gives easy images less weight (Lin et al. 2017)."""
    require(least=0, gamma=gamma)
    loss = partial(losses.focal, gamma=gamma)
    return Method(
        stages=(Stage(loss),),
        departures=(
            "The probabilities are those of a softmax over the classes; the original detector has "
            "a sigmoid for each, as `class-balanced` with beta 0 has.",
        ),
        paper=Paper("Lin et al.", 2017, "1708.02002"),
    )


def class_balanced(*, beta: float = 0.99, gamma: float = 1.0, softmax: bool = False) -> Method:
    """Sigmoid focal loss over effective class sizes, or softmax (Cui et al. 2019)."""
    require(least=0, below=1, beta=beta)
    require(least=0, gamma=gamma)
    loss = partial(losses.class_balanced, beta=beta, gamma=gamma, softmax=softmax)
    return Method(
        stages=(Stage(loss),),
        departures=(
            "The offset -log(C - 1) of the sigmoid's logits is fixed; the authors' code trains a "
            "bias that starts there.",
            "Beta is 0.99, the best mean over six CIFAR-LT sets on held-out images; the authors "
            "choose it for each data set.",
        ),
        paper=Paper("Cui et al.", 2019, "1901.05555"),
        weighs_counts=True,
    )


def eql(*, threshold: float = 0.3, ignore: float = 0.9) -> Method:
    """Softmax equalisation loss: frequent classes do not suppress rare ones (Tan et al. 2020)."""
    require(least=0, threshold=threshold)
    require(least=0, most=1, ignore=ignore)
    loss = partial(losses.eql, threshold=threshold, ignore=ignore)
    return Method(
        stages=(Stage(loss),),
        paper=Paper("Tan et al.", 2020, "2003.05176"),
        weighs_counts=True,
        reading=CausalReading(rebalances=True),
    )
