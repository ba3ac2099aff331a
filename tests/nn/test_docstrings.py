"""The examples in the docstrings of the heads run as written."""

import doctest

import pytest

from longtail.nn import heads


@pytest.mark.parametrize("name", ["DeconfoundHead", "background_exempt"])
def test_the_example_runs(name):
    (test,) = (
        found
        for found in doctest.DocTestFinder(recurse=False).find(getattr(heads, name), name)
        if found.examples
    )
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
