"""The house: thirteen rooms in one row, each importing only itself and rooms above it."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.common.versions import ROOMS

SOURCE = Path(__file__).parents[1] / "src" / "longtail"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

LOOSE = {"__init__.py", "__main__.py", "py.typed"}


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that `path` imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "longtail":
            inner = (node.module or "").split(".")[1:]
            found |= {inner[0]} if inner else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {name[1] for name in names if name[0] == "longtail" and len(name) > 1}
    return found


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE)


def place(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_the_rooms_are_those_listed_and_nothing_lies_loose_beside_them():
    # folders that a pull leaves empty, but for bytecode, do not count
    files = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.*") if path.is_file()]
    entries = {path.parts[0] for path in files if "__pycache__" not in path.parts}
    assert entries == LOOSE | set(ROOMS)


def test_benchmarks_lie_in_folders_of_which_the_common_one_needs_no_other():
    loose = {"__init__.py", "__main__.py", "command.py", "golden.py", "registry.py"}
    assert {path.name for path in BENCHMARKS.glob("*.py")} == loose
    for path in BENCHMARKS.glob("common/*.py"):
        imported = re.findall(r"from benchmarks\.?(\w*)", path.read_text())
        assert set(imported) <= {"common"}, f"{path.name} imports another folder"


@pytest.mark.parametrize("path", modules(), ids=place)
def test_a_room_imports_only_itself_and_rooms_above(path):
    room = path.relative_to(SOURCE).parts[0]
    for other in imported_rooms(path):
        assert ROOMS.index(other) <= ROOMS.index(room), f"{room} imports {other}, a room below it"


def test_names_of_modules_in_a_room_and_of_classes_are_unique():
    names = [(path.relative_to(SOURCE).parts[0], path.name) for path in modules()]
    assert repeated([name for name in names if name[1] != "__init__.py"]) == set()
    classes = list_classes([*modules(), *BENCHMARKS.rglob("*.py")])
    # those of Lightning and transformers; and a change of that file would draw shapes-lvis anew
    assert repeated(classes) == {"TailCallback", "Split"}


def list_classes(paths: list[Path]) -> list[str]:
    trees = [ast.parse(path.read_text()) for path in paths]
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


def repeated(names: list) -> set:
    return {name for name, count in Counter(names).items() if count > 1}


@pytest.mark.parametrize("module", ["longtail.cli.parser", "benchmarks.command"])
def test_help_does_not_import_torch(module):
    code = f"import sys, longtail, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
