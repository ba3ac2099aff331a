"""Data goes one way, left to right: nothing imports rightwards."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "longtail"

LAYERS = [
    {"errors", "seeding", "waiting"},
    {"settings", "locks", "provenance"},
    {"config"},
    {"runs", "recipes", "tables", "terminal", "pages"},
    {"comparing"},
    {"data"},
    {"kernels", "arithmetic", "backbones", "heads", "losses"},
    {"networks"},
    {"methods"},
    {"schedule", "resident", "streaming", "features", "models", "replica", "graph", "engine"},
    {"blueprint"},
    {"measures"},
    {"intervals"},
    {"rows"},
    {"classifier"},
    {"estimator"},
    {"results", "jobs"},
    {"training"},
    {"detection"},
    {"pipeline", "finished"},
    {"shipped"},
    {"embeddings", "card", "loading"},
    {"exports"},
    {"retrofits", "predictor"},
    {"gradcam"},
    {"figures"},
    {"reports"},
    {"demo", "console", "bench"},
    {"benches"},
    {"commands"},
    {"cli", "__init__", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """Top-level parts of the package that `path` imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "longtail":
            inner = (node.module or "").split(".")[1:]
            found |= {inner[0]} if inner else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {name[1] for name in names if name[0] == "longtail" and len(name) > 1}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_nothing_imports_rightwards(path):
    here = part_of(path)
    assert here in LEVEL, f"{here} has no layer: give it one"
    for other in imports(path):
        assert LEVEL[other] <= LEVEL[here], f"{here} imports {other}, which lies to its right"


def test_config_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, longtail, longtail.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
