"""The table of methods for the terminal and the docs, generated from the methods."""

from pathlib import Path

from longtail.methods import build, describe, options_of, registry

HEADER = (
    *("method", "paper", "stages", "needs counts", "changes"),
    *("re-balancing", "de-confound", "direct effect"),
)
INTRODUCTION = """# Methods

Train with `longtail train DATA --method NAME`, with several methods as `NAME,NAME`, or with `all`.
This page is generated from the code of the methods; `longtail methods --out FILE` writes it too.

- **paper**: the one that introduced the method. `auto`, `deconfound-balanced` and the methods with
  `self-prior` are our own; theirs is the paper that they build on.
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
    table, sections = [HEADER, ("---",) * len(HEADER)], []
    for name in by_year():
        method, (_, paper, *rest) = build(name), row(name)
        if method.paper:
            paper = f"[{paper}](https://arxiv.org/abs/{method.paper.arxiv})"
        table.append((f"[{name}](#{name})", paper, *rest))
        sections += ["", f"## {name}", "", describe(name)]
        if options := options_of(name).values():
            listed = [f"- `--{o.name} {_format_default(o.default)}`" for o in options]
            sections += ["", *listed]
        if method.backbone:
            sections += ["", f"It requires the backbone `{method.backbone}`."]
    lines = [INTRODUCTION, *(f"| {' | '.join(cells)} |" for cells in table), *sections]
    return "\n".join(lines) + "\n"


def write(path: Path) -> Path:
    """Write the page to `path` and return `path`."""
    path.write_text(markdown())
    return path


def _format_default(default: object) -> str:
    return f"{default:.6g}" if isinstance(default, float) else str(default)


def _format_flag(yes: bool) -> str:
    return "yes" if yes else "-"
