"""Benches that measure something other than the accuracies of recipes, one file each.

Each writes its figures as JSON the moment they exist, and makes its Markdown table, if it has one,
from the files alone, so that a table never holds a figure that no file has.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` whole or not at all, rounded as all results are."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(round_floats(dict(content)), indent=1) + "\n")


def check_features(sha256: str, made: Iterable[Path]) -> None:
    """Refuse results in the files `made` that are of other features than those of `sha256`."""
    for path in made:
        if json.loads(path.read_text())["subset_sha256"] != sha256:
            raise UserError(f"{path} was measured on other features than there are now: delete it")


def read_all(folder: Path) -> list[dict[str, Any]]:
    """Every JSON file under `folder`, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))]


def write_page(results: Path, name: str, parts: Iterable[str]) -> Path:
    """RESULTS/NAME.md: paragraphs and tables under the command that made them."""
    out = results / f"{name}.md"
    with replace_atomically(out) as path:
        head = f"# {name}\n\nMade by `python -m benchmarks {name}`."
        path.write_text("\n\n".join([head, *(part.strip() for part in parts)]) + "\n")
    return out


def figure(values: Iterable[float | None], digits: int = 1) -> str:
    """Mean and deviation of what is there, as in 71.9 ± 0.3; a dash for nothing."""
    return tables.format_figure(tables.spread(list(values)), digits)
