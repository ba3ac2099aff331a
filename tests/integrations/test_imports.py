"""Importing longtail is fast, and brings no framework until a bridge is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import longtail as lt
from longtail.integrations import EXTRAS

FRAMEWORKS = (
    *("torch", "lightning", "transformers", "timm", "torchvision", "ultralytics", "ray"),
    *("sklearn", "pandas"),
)
ROOT = Path(__file__).parents[2]
LOOK = f"""
import sys, time
start = time.process_time()
import longtail as lt
seconds = time.process_time() - start
lt.integrations, lt.UserError, dir(lt), dir(lt.integrations)
print(seconds, *(name for name in {FRAMEWORKS} if name in sys.modules))
"""


def test_importing_longtail_is_fast_and_imports_no_framework():
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    seconds, *found = done.stdout.split()
    assert not found
    assert float(seconds) < 0.3  # of this process alone, so that others cannot slow it down


@pytest.mark.parametrize("name", EXTRAS)
def test_every_bridge_is_small_and_has_a_page(name):
    lines = (ROOT / f"src/longtail/integrations/{name}.py").read_text().splitlines()
    assert len(lines) < 120
    assert (ROOT / f"docs/integrations/{name}.md").is_file()


def test_bridges_load_by_name():
    assert lt.integrations.timm.create_model.__module__ == "longtail.integrations.timm"
    with pytest.raises(AttributeError, match="no attribute 'tim'"):
        _ = lt.integrations.tim


def test_a_missing_framework_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "longtail.integrations.huggingface", raising=False)
    monkeypatch.delitem(vars(lt.integrations), "huggingface", raising=False)
    with pytest.raises(lt.UserError, match=r"pip install 'longtail\[huggingface\]'"):
        _ = lt.integrations.huggingface
