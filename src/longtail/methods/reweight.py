"""One stage, another loss: what an image counts for depends on its class or its difficulty."""

from functools import partial

from longtail.methods.base import CausalReading, Method, Paper, Stage, require
from longtail.nn import losses


def focal(*, gamma: float = 2.0) -> Method:
    """Focal loss: easy images count less (Lin et al. 2017)."""
    require(least=0, gamma=gamma)
    loss = partial(losses.focal, gamma=gamma)
    return Method(stages=(Stage(loss),), paper=Paper("Lin et al.", 2017, "1708.02002"))


def class_balanced(*, beta: float = 0.9999, gamma: float = 1.0) -> Method:
    """Sigmoid focal loss over effective numbers of images; gamma 0: softmax (Cui et al. 2019)."""
    require(least=0, below=1, beta=beta)
    require(least=0, gamma=gamma)
    loss = partial(losses.class_balanced, beta=beta, gamma=gamma)
    paper = Paper("Cui et al.", 2019, "1901.05555")
    return Method(stages=(Stage(loss),), paper=paper, weighs_counts=True)


def eql(*, threshold: float = 0.3, ignore: float = 0.9) -> Method:
    """Softmax equalisation loss: images of others do not push rare classes (Tan et al. 2020)."""
    require(least=0, threshold=threshold)
    require(least=0, most=1, ignore=ignore)
    loss = partial(losses.eql, threshold=threshold, ignore=ignore)
    return Method(
        stages=(Stage(loss),),
        paper=Paper("Tan et al.", 2020, "2003.05176"),
        weighs_counts=True,
        reading=CausalReading(rebalances=True),
    )
