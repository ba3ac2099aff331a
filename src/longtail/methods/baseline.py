"""The method that all others are compared with."""

from longtail.methods.base import Method
from longtail.nn.linear_heads import BiasedHead, LinearHead


def baseline(*, bias: bool = False) -> Method:
    """Linear classifier, softmax cross-entropy, instance-balanced sampling."""
    return Method(head=BiasedHead if bias else LinearHead)
