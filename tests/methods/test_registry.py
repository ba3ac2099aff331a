"""Adding a method takes one file; building a head imports that file only if it must."""

import subprocess
import sys
from pathlib import Path

METHOD = '''
from longtail.methods.base import Method, Paper, RuleInputs
from longtail.nn.heads import AffineHead, Head, LinearHead


class DroppedHead(Head):
    """A head that this file defines."""


def dropped_in(*, strength: float = 2.0) -> Method:
    """A method in a file of its own."""
    return Method(head=DroppedHead, paper=Paper("Doe et al.", 2031, "3101.00001"))


def dropped_rule() -> Method:
    """A rule in the same file."""
    return Method(rule=_double, training="baseline")


def _double(inputs: RuleInputs) -> Head:
    return AffineHead.of(2 * inputs.head.weight)


def helper() -> Head:
    """Not a method: it returns a head."""
    return LinearHead(2, 2)
'''
HEAD = """
from longtail.training.model import Blueprint

def head(kind):
    values = {"kind": kind, "dim": 4, "classes": 3}
    return Blueprint("identity", values, (4,), (), (), ()).build().head
"""


def run(code: str, *arguments: str) -> str:
    """Run `code` in a fresh interpreter and return what it prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_method_dropped_into_the_folder_is_found_everywhere(tmp_path: Path):
    (tmp_path / "dropped.py").write_text(METHOD)
    code = """
import sys
from longtail import methods
methods.__path__.append(sys.argv[1])
assert {"dropped-in", "dropped-rule"} <= set(methods.registry())
assert "helper" not in methods.registry() and "double" not in methods.registry()
assert methods.parse_options("dropped-in", {"strength": "3"}) == {"strength": 3.0}
assert methods.build("dropped-rule").changes == ("inference",)
from longtail.methods.table import by_year, markdown
assert by_year()[-1] == "dropped-in"
assert "A method in a file of its own." in markdown() and "- `--strength` 2" in markdown()
"""
    run(code, str(tmp_path))


def test_a_head_of_a_method_is_found_in_a_fresh_process(tmp_path: Path):
    (tmp_path / "dropped.py").write_text(METHOD)
    code = f"""
import sys
from longtail import methods
methods.__path__.append(sys.argv[1]){HEAD}
print(*(type(head(kind)).__name__ for kind in ("DroppedHead", "MemoryHead", "ScaledHead")))
"""
    assert run(code, str(tmp_path)) == "DroppedHead MemoryHead ScaledHead"


def test_a_head_of_the_library_is_built_without_importing_any_method():
    code = f"""
import sys
{HEAD}
for kind in ("LinearHead", "CosineHead", "CapsuleHead", "DeconfoundHead", "FoldedHead"):
    head(kind)
loaded = {{name.rpartition(".")[2] for name in sys.modules if name.startswith("longtail.methods.")}}
print(*loaded)
"""
    assert run(code) == "base"
