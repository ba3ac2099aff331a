"""The table of methods, made from the methods themselves: for the terminal and for the docs."""

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

Made by `longtail methods --out docs/methods.md` from the methods themselves; a test keeps it so.
Any of them: `longtail train DATA --method NAME`, several with commas, or `all`.

- **stages**: epochs of each, as parts of `--epochs`.
- **needs counts**: whether the number of training images of each class must be known, by the loss,
  the sampler or the rule.
- **changes**: what differs from the baseline, its training or only what is done with its features
  and weights afterwards. Methods that change only inference share the baseline's training.
- **re-balancing, de-confound, direct effect**: the causal reading of tab:1 of Tang et al. 2020,
  *do(D)*, *do(X)* and CDE, NDE or TDE. A dash: no, or not read there.
"""


def by_year() -> list[str]:
    """Names of all methods, those without a paper first, then as they were published."""
    papers = {name: build(name).paper for name in registry()}
    return sorted(papers, key=lambda name: (getattr(papers[name], "year", 0), name))


def row(name: str) -> list[str]:
    """One line of the table under `HEADER`."""
    method = build(name)
    paper, reading = method.paper, method.reading
    return [
        name,
        f"{paper.authors} {paper.year}" if paper else "-",
        " + ".join(f"{stage.share:.2g}" for stage in method.stages),
        _mark(method.needs_counts),
        " and ".join(method.changes) or "-",
        _mark(reading.rebalances),
        _mark(reading.deconfounds),
        reading.effect or "-",
    ]


def markdown() -> str:
    """The whole page: the table, then each method with its options."""
    lines = [INTRODUCTION, _line(HEADER), _line(["---"] * len(HEADER))]
    lines += [_line(_linked(build(name), row(name))) for name in by_year()]
    for name in by_year():
        lines += ["", f"## {name}", "", describe(name), *_options(name)]
        if build(name).backbone:
            lines += ["", f"Always on the backbone `{build(name).backbone}`."]
    return "\n".join(lines) + "\n"


def write(path: Path) -> Path:
    """Write the page."""
    path.write_text(markdown())
    return path


def _options(name: str) -> list[str]:
    options = options_of(name).values()
    listed = [f"- `--{option.name} {_shown(option.default)}`" for option in options]
    return ["", *listed] if listed else []


def _shown(default: object) -> str:
    return f"{default:.6g}" if isinstance(default, float) else str(default)


def _linked(method: Method, cells: list[str]) -> list[str]:
    """The row with a link to its section and one to its paper."""
    name, paper, *rest = cells
    if method.paper:
        paper = f"[{paper}](https://arxiv.org/abs/{method.paper.arxiv})"
    return [f"[{name}](#{name})", paper, *rest]


def _mark(yes: bool) -> str:
    return "yes" if yes else "-"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
