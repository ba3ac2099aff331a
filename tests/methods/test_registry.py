"""Adding a method takes one file; building a head imports that file only if it must."""

from pathlib import Path

from helpers import run_afresh

METHOD = '''
from longtail.methods.base import Method, Paper, RuleInputs
from longtail.nn.heads import AffineHead, Head, LinearHead


class DroppedHead(Head):
    """A head that this file defines."""


def dropped_in(*, strength: float = 2.0, tau: float = 1.0, plain: int = 3) -> Method:
    """A method in a file of its own.

    More about it.

    Args:
        strength: how strong it is,
            or how weak: 0 is none.
        tau: what this method calls tau

    Returns:
        plain: not an option
    """
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
SCRIPT = """
import sys
from longtail import methods
from longtail.training.model import Blueprint

def head(kind):
    values = {"kind": kind, "dim": 4, "classes": 3}
    return Blueprint("identity", values, (4,), (), (), ()).build().head

for kind in ("LinearHead", "CosineHead", "CapsuleHead", "DeconfoundHead", "FoldedHead"):
    head(kind)
loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("longtail.methods.")}
assert loaded == {"base"}, loaded  # a head of the library needs no method

methods.__path__.append(sys.argv[1])
for kind in ("DroppedHead", "MemoryHead", "ScaledHead"):  # those of methods are found all the same
    assert type(head(kind)).__name__ == kind

assert {"dropped-in", "dropped-rule"} <= set(methods.registry())
assert "helper" not in methods.registry() and "double" not in methods.registry()
assert methods.parse_options("dropped-in", {"strength": "3"}) == {"strength": 3.0}
assert methods.build("dropped-rule").changes == ("inference",)
from longtail.methods.table import by_year, markdown
assert by_year()[-1] == "dropped-in"
page = markdown()
assert "A method in a file of its own." in page
assert "- `--strength` 2: how strong it is, or how weak: 0 is none\\n" in page
assert "- `--tau` 1: what this method calls tau\\n- `--plain` 3\\n" in page  # not the usual tau
assert "- `--tau` 16: scale of the logits\\n" in page  # that of others
"""


def test_a_dropped_file_is_a_method_and_heads_import_only_what_they_need(tmp_path: Path, capfd):
    (tmp_path / "dropped.py").write_text(METHOD)
    run_afresh(SCRIPT, str(tmp_path), capfd=capfd)
