"""A browser that the tests of pages share."""

from collections.abc import Iterator

import pytest

from browser import Browser, browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
