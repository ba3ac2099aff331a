"""Fixtures of the reports."""

from collections.abc import Iterator

import pytest

from longtail.evaluation import metrics


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    """Draw few intervals, since a report has them at every position of its slider."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "DRAWS", 20)
        yield
