"""The examples in the docstrings of the heads, and of what they need, run as written."""

import doctest

import pytest

import longtail as lt


@pytest.mark.parametrize("name", ["DeconfoundHead", "Tail", "background_exempt", "choose_alpha"])
def test_the_example_runs(name):
    (test,) = (
        found
        for found in doctest.DocTestFinder(recurse=False).find(getattr(lt, name), name)
        if found.examples
    )
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
