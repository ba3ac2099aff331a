"""The method that all others are compared with."""

from longtail.methods.base import Method


def baseline() -> Method:
    """Linear classifier, softmax cross-entropy, instance-balanced sampling."""
    return Method()
