"""What the documents show is run; what they link to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page), str(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_commands_are_real(page):
    from longtail.cli import COMMANDS

    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    for words in re.findall(r"^longtail (\S+) ?(\S*)", text, flags=re.M):
        assert words[0] in COMMANDS or " ".join(words) in COMMANDS, words


def test_the_first_command_comes_early():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert "make demo" in lines[:15]
    assert "make test" in (ROOT / "README.md").read_text()
