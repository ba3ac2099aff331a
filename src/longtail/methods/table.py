"""The table of methods for the terminal and the docs, generated from the methods."""

from pathlib import Path

from longtail.methods import build, describe, options_of, registry
from longtail.methods.base import Method

HEADER = (
    "method",
    "paper",
    "stages",
    "needs counts",
    "changes",
    "re-balancing",
    "de-confound",
    "direct effect",
)

INTRODUCTION = """# Methods

Train with `longtail train DATA --method NAME`, with several methods as `NAME,NAME`, or with `all`.
`longtail methods --out docs/methods.md` generates this page from the code of the methods.

- **stages**: epochs of each stage, as fractions of `--epochs`.
- **needs counts**: whether the loss, the sampler or the rule uses the number of training images of
  each class.
- **changes**: what differs from the baseline. Methods that change only inference share the
  baseline's training.
- **re-balancing, de-confound, direct effect**: how Table 1 of Tang et al. 2020 classifies the
  method: *do(D)*, *do(X)*, and CDE, NDE or TDE. A dash also stands for methods it does not list.
"""


def by_year() -> list[str]:
    """Return the names of all methods by year of publication; those without a paper come first."""
    papers = {name: build(name).paper for name in registry()}
    return sorted(papers, key=lambda name: (getattr(papers[name], "year", 0), name))


def row(name: str) -> list[str]:
    """Return the cells of a method under `HEADER`."""
    method = build(name)
    paper, reading = method.paper, method.reading
    return [
        name,
        f"{paper.authors} {paper.year}" if paper else "-",
        " + ".join(f"{stage.share:.2g}" for stage in method.stages),
        _format_flag(method.needs_counts),
        " and ".join(method.changes) or "-",
        _format_flag(reading.rebalances),
        _format_flag(reading.deconfounds),
        reading.effect or "-",
    ]


def markdown() -> str:
    """Return the page for the docs: the table, then a section for each method with its options."""
    lines = [INTRODUCTION, _format_line(HEADER), _format_line(["---"] * len(HEADER))]
    lines += [_format_line(_add_links(build(name), row(name))) for name in by_year()]
    for name in by_year():
        lines += ["", f"## {name}", "", describe(name), *_list_options(name)]
        if build(name).backbone:
            lines += ["", f"It requires the backbone `{build(name).backbone}`."]
    return "\n".join(lines) + "\n"


def write(path: Path) -> Path:
    """Write the page to `path` and return `path`."""
    path.write_text(markdown())
    return path


def _list_options(name: str) -> list[str]:
    options = options_of(name).values()
    listed = [f"- `--{option.name} {_format_default(option.default)}`" for option in options]
    return ["", *listed] if listed else []


def _format_default(default: object) -> str:
    return f"{default:.6g}" if isinstance(default, float) else str(default)


def _add_links(method: Method, cells: list[str]) -> list[str]:
    """Link the name in a row to its section, and its paper to arXiv."""
    name, paper, *rest = cells
    if method.paper:
        paper = f"[{paper}](https://arxiv.org/abs/{method.paper.arxiv})"
    return [f"[{name}](#{name})", paper, *rest]


def _format_flag(yes: bool) -> str:
    return "yes" if yes else "-"


def _format_line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
