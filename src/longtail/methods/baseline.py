"""The methods everything else is measured against."""

from longtail.methods.base import Method


def baseline() -> Method:
    """Linear classifier, softmax cross-entropy, instance-balanced sampling."""
    return Method()
