"""Scripts of the pages under docs/integrations."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "integrations"


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Run the script of a page in an empty folder and return its names."""

    def run(name: str) -> dict:
        (script,) = re.findall(r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.S)
        assert len(script.splitlines()) <= 60
        monkeypatch.chdir(tmp_path)
        names = {"__name__": "__main__"}
        exec(compile(script, f"{name}.md", "exec"), names)
        return names

    return run
