"""One table: a row for each method, mean and standard deviation over its seeds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPLITS = ("overall", "many", "medium", "few")


@dataclass(frozen=True)
class Row:
    """The runs of one method that differ only in their seed."""

    method: str
    alpha: str
    seeds: int
    figures: dict[str, tuple[float, float | None] | None]
    """Mean and deviation of each split; None for an empty one, no deviation for one seed."""

    def cells(self) -> list[str]:
        """As text: name, alpha, number of seeds, the four splits."""
        return [
            self.method,
            self.alpha,
            str(self.seeds),
            *(shown(self.figures[split]) for split in SPLITS),
        ]


SAME = (
    *("method", "data", "ratio", "backbone", "heads", "tau", "gamma", "momentum"),
    *("epochs", "batch_size", "subset_sha256"),
)
"""What runs of one row have in common."""
HEADER = ("method", "alpha", "seeds", *SPLITS)


def rows(results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Group results that differ only in their seed, in order of first appearance."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return [row(group) for group in groups.values()]


def row(results: Sequence[Mapping[str, Any]]) -> Row:
    """All `results` as one row."""
    return Row(
        method=results[0]["method"],
        alpha=_alphas([r["alpha"] for r in results]),
        seeds=len(results),
        figures={split: spread([r[split] for r in results]) for split in SPLITS},
    )


def key(result: Mapping[str, Any]) -> tuple:
    """What is equal for the results of one row, and for no others."""
    return tuple(result.get(name) for name in SAME)


def data_name(result: Mapping[str, Any]) -> str:
    """The data set with its ratio, as `longtail.load` takes it."""
    ratio = result["ratio"]
    return result["data"] + (f":{ratio:g}" if ratio else "")


def spread(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """Mean and standard deviation (n - 1) of what is there."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    deviation = statistics.stdev(present) if len(present) > 1 else None
    return statistics.fmean(present), deviation


def shown(figure: tuple[float, float | None] | None, digits: int = 1) -> str:
    """As in 71.9 ± 0.3; a dash for nothing."""
    if figure is None:
        return "-"
    mean, deviation = figure
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    whole = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)


def _alphas(values: Sequence[float | None]) -> str:
    texts = dict.fromkeys("-" if value is None else f"{value:g}" for value in values)
    return ", ".join(texts)
