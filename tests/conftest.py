"""Settings of every test process."""

import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Decoded images go to a folder of this test run, not to the user's."""
    os.environ["LONGTAIL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
