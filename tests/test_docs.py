"""What the documents show is run; what they link to is there."""

import functools
import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from benchmarks.command import parse as parse_bench
from benchmarks.registry import BENCHMARKS, check_options
from helpers import PHOTOS, photos
from longtail import methods
from longtail.cli.parser import COMMANDS, main, parse
from longtail.core.errors import UserError
from longtail.data.formats import letters
from longtail.nn import weights
from longtail.runs import own_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BESIDE = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*/*.md")]


def blocks(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S))


@pytest.fixture
def own_photos(tmp_path, monkeypatch) -> None:
    """Photographs and weights, as docs/own-photos.md has them; a tiny network takes few steps."""
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos", val=(3, 3, 2))
    torch.manual_seed(0)
    state = timm.create_model("test_efficientnet").state_dict()
    save_file(state, "tf_efficientnet_lite0.safetensors")
    monkeypatch.setattr(weights, "fetch_state", lambda name: state)
    monkeypatch.setattr(own_recipe, "require_backbone", lambda path: "test_efficientnet")
    monkeypatch.setattr(own_recipe, "DEFAULT_NETWORK", "test_efficientnet")
    monkeypatch.setattr(own_recipe, "CPU_STEPS", 8)


@pytest.fixture
def few_letters(monkeypatch) -> None:
    """A shorter text for letters-lt, which pages train on."""
    monkeypatch.setattr(letters, "LETTERS_READ", 1000)
    monkeypatch.setattr(letters, "TEST_EACH", 5)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch, own_photos, few_letters):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page), str(page), "exec"), {})


def test_the_commands_for_own_photographs_run(own_photos, capsys):
    outputs = {}
    for words in command_lines(shell_blocks(ROOT / "docs/own-photos.md")):
        main(words[1:])
        outputs[" ".join(words)] = capsys.readouterr().out
    assert len(outputs) == 10
    trained = [out for command, out in outputs.items() if command.startswith("longtail train")]
    assert all("rules on held-out data; chosen: " in out for out in trained)
    rivals = ["balanced-softmax" in out for out in trained]
    assert rivals == [False, False, True, False]
    assert "logit-adjustment:0.25" in Path("report.html").read_text()
    tables = [out for command, out in outputs.items() if "predict" in command]
    assert all(name in out for name in PHOTOS for out in tables)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page; none of ours has the same twice."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    shown = re.sub(r"\]\([^)]*\)", "", text).lower()
    headings = re.findall(r"^#+ (.*)$", shown, flags=re.M)
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}


def check_links(page: Path) -> None:
    read = functools.cache(anchors)  # many links of a page go to the same one
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in read(target), link


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda p: p.name)
def test_links_are_real(page):
    check_links(page)


def test_a_wrong_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    text = "# `A-b`: what, it_costs\n## [Linked](page.md)\n```\n# code\n```\n[see]({})\n"
    for right in ("#a-b-what-it_costs", "page.md#linked", "page.md", "https://x.org/#y"):
        page.write_text(text.format(right))
        check_links(page)
    for wrong in ("#code", "page.md#link", "none.md#linked", "none.md"):
        page.write_text(text.format(wrong))
        with pytest.raises(AssertionError, match=wrong):
            check_links(page)


def check_files(page: Path) -> None:
    """A file of the package is named as under src/longtail, any other as under the repository."""
    for name in re.findall(r"`([^`\s]+\.py)`", page.read_text()):
        assert any((base / name).is_file() for base in (ROOT, ROOT / "src/longtail")), name


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda p: p.name)
def test_files_of_code_are_real(page):
    check_files(page)


def test_a_wrong_file_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`tests/reference.py`, `nn/heads.py` and `python a.py`")
    check_files(page)
    page.write_text("`tests/test_docs.py` and `heads.py`")
    with pytest.raises(AssertionError, match=r"heads\.py"):
        check_files(page)


def shell_blocks(page: Path) -> str:
    """Return what the page shows without a language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.S | re.M)
    return "".join(text for language, text in fences if not language)


def command_lines(shell: str) -> list[list[str]]:
    """The words from each `longtail` or `benchmarks` on, up to a pipe or a redirection."""
    found = []
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        starts = [i for i, word in enumerate(words) if word in ("longtail", "benchmarks")]
        if starts:
            words = words[starts[0] :]
            found.append(list(takewhile(lambda word: word not in ("|", ">"), words)))
    return found


def check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "longtail":
        parse(rest)
        return
    asked = parse_bench(rest)
    assert asked.name in BENCHMARKS or (ROOT / "recipes" / asked.name).is_dir()
    check_options(asked)


def test_a_wrong_command_line_is_noticed(capsys):
    text = (
        "find . | longtail predict run - > out  # names\npython -m benchmarks cost \\\n  --rows 5\n"
    )
    first, second = "longtail predict run -", "benchmarks cost --rows 5"
    assert command_lines(text) == [first.split(), second.split()]
    options = ("benchmarks cost --rows 5", "longtail train --no-such 1")
    for wrong in (*options, "benchmarks cots", "longtail evaluate runs/x", "longtail sweep"):
        with pytest.raises((UserError, AssertionError)):
            check_command(wrong.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_command_lines_are_real(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    if page.name == "add-a-method.md":  # its command is of the method that it writes
        written: dict = {}
        exec(blocks(page), written)
        monkeypatch.setitem(methods.registry(), "square-root", written["square_root"])
    for words in command_lines(shell_blocks(page)):
        check_command(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_are_real(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = command_lines(COMMANDS[name].examples)
    assert lines
    for words in lines:
        check_command(words)


def test_the_first_command_comes_early():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert "make demo" in lines[:15]
    assert "make test" in (ROOT / "README.md").read_text()


def test_every_kind_of_input_has_its_line_its_command_and_its_test(monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = re.findall(
        r"^\| .* \| `(lt\.load.*?)` \| (.*?) \| `(.*?)::(.*?)` \|$",
        (ROOT / "docs/data.md").read_text(),
        flags=re.M,
    )
    assert len(rows) == 16
    for line, command, file, test in rows:
        compile(line, "docs/data.md", "eval")
        if command != "Python only":
            check_command(shlex.split(command.strip("`")))
        assert f"\ndef {test}(" in (ROOT / "tests" / "data" / file).read_text(), test
