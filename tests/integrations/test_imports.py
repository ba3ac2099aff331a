"""Importing longtail imports no other library, and a bridge its framework when it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import longtail as lt
from longtail.integrations import EXTRAS

ROOT = Path(__file__).parents[2]
LOOK = """
import sys
before = set(sys.modules)
import longtail as lt
lt.integrations, lt.UserError, dir(lt), dir(lt.integrations)
imported = set(sys.modules) - before
print(*{name.partition(".")[0] for name in imported} - sys.stdlib_module_names)
"""


def test_importing_longtail_imports_the_standard_library_alone():
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["longtail"]


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
