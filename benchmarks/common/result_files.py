"""JSON result files and Markdown pages of the benchmarks.

A benchmark writes its figures as JSON as soon as it has them, and makes its page from these files
only, so that every figure of a page is in a file.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from longtail.core.errors import UserError
from longtail.core.files import check_own, replace_atomically
from longtail.core.plain import check_fields, read_text
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats

CURVES = ".metrics.jsonl"
"""End of the name of a file with the losses of a training, beside its result."""
REPAIR = "Restore it, or delete it and run the benchmark again"
"""The way out where a result file is damaged."""
REPAIR_LINE = "restore it, or delete the line and run the benchmark again"
"""The way out where a line of a result file is damaged."""
OPENING = "# {0}\n\nMade by `python -m benchmarks {0}`."
"""How the page of a benchmark begins."""


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file.

    Raises:
        UserError: if it holds no JSON object, or numbers that are not finite.
    """
    try:
        result = json.loads(read_text(path), parse_constant=_refuse_constant)
    except UserError as error:
        raise UserError(f"{error}. {REPAIR}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable JSON: {error}. {REPAIR}") from None
    check_fields(result, {}, str(path), REPAIR)
    return cast(dict[str, Any], result)


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads although JSON has no such numbers."""
    raise ValueError(f"{name} is not a number of JSON")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` atomically, rounded like all results."""
    with replace_atomically(path) as temporary:
        temporary.write_text(
            json.dumps(round_floats(dict(content)), indent=1) + "\n", encoding="utf-8"
        )


def check_device(path: Path, device: str) -> None:
    """Refuse to replace a measurement of another device, before anything is measured."""
    known = read_result(path).get("device", device) if path.exists() else device
    if known != device:
        raise UserError(
            f"{path} was measured on {known}, and this device is {device}: pass another --results"
        )


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append `line` in one write, so that processes can share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.seek(0, 2) - 1))
        end = file.read(1)
        cut = end not in (b"", b"\n")  # a killed process left a line without its end
        file.write(b"\n" * cut + json.dumps(line).encode() + b"\n")


def read_lines(*places: Path, skip_cut: bool = True) -> list[dict[str, Any]]:
    """Read the JSON objects in the lines of files, and of the .jsonl files of folders.

    Args:
        places: files and folders; a file may not exist yet.
        skip_cut: skip objects that a killed process cut short, whose training is repeated.

    Raises:
        UserError: if any other line is not an object.
    """
    found = (place.glob("*.jsonl") if place.is_dir() else [place] for place in places)
    lines: list[dict[str, Any]] = []
    for path in sorted({path for paths in found for path in paths if path.exists()}):
        for number, text in enumerate(read_text(path).splitlines(), 1):
            if not text:
                continue
            source = f"{path}, line {number},"
            try:
                line = json.loads(text, parse_constant=_refuse_constant)
            except ValueError:
                if skip_cut and text.startswith("{") and not text.endswith("}"):
                    continue
                raise UserError(f"{source} is not whole JSON: {REPAIR_LINE}") from None
            check_fields(line, {}, source, REPAIR_LINE)
            lines.append(line)
    return lines


def check_features(sha256: str, paths: Iterable[Path]) -> None:
    """Raise if a result file in `paths` was measured on features with another hash."""
    for path in paths:
        if read_result(path)["subset_sha256"] != sha256:
            raise UserError(
                f"{path} was measured on other features than the present ones: delete it"
            )


def read_all(folder: Path) -> list[dict[str, Any]]:
    """Read every JSON file under `folder`, in the order of their names."""
    return [read_result(path) for path in sorted(folder.rglob("*.json"))]


def list_results(folder: Path) -> list[Path]:
    """List the result files under `folder`; the curves beside a result share its commit."""
    found = [p for p in sorted(folder.rglob("*")) if p.suffix in (".json", ".jsonl")]
    return [p for p in found if not (p.name.endswith(CURVES) and _find_result(p).exists())]


def _find_result(curves: Path) -> Path:
    return curves.with_name(curves.name.replace(CURVES, ".json"))


@cache
def read_results(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Read a JSON file as one line, and a file of JSON lines line by line."""
    if path.suffix == ".jsonl":
        return tuple(read_lines(path, skip_cut=False))
    return (read_result(path),)


def check_page(page: Path) -> None:
    """Raise if a benchmark would replace a page that it did not write."""
    mark = rf"\A{re.escape(OPENING.format(page.stem))}"
    check_own(page, mark.encode(), "python -m benchmarks")


def write_page(results: Path, name: str, parts: Iterable[str]) -> Path:
    """Write RESULTS/NAME.md: the command that makes it, then paragraphs and tables."""
    out = results / f"{name}.md"
    check_page(out)
    with replace_atomically(out) as path:
        paragraphs = [OPENING.format(name), *(part.strip() for part in parts)]
        path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return out


def replace_between(page: Path, name: str, content: str) -> None:
    """Replace what is between the markers `<!-- NAME -->` and `<!-- /NAME -->` of a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin in text and end in text:
        head, rest = text.split(begin, 1)
        tail = rest.split(end, 1)[1]
        with replace_atomically(page) as path:
            path.write_text(f"{head}{begin}\n{content}{end}{tail}", encoding="utf-8")


def format_spread(values: Iterable[float | None], digits: int = 1) -> str:
    """Format mean and deviation of the known values, as in 71.9 ± 0.3; a dash without any."""
    return tables.format_figure(tables.spread(list(values)), digits)
