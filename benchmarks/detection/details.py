"""What a benchmark of detectors measures beside its table: a sweep over alpha, and cosines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common.result_files import format_spread
from longtail.core.names import count_noun
from longtail.detection.config import DetectionConfig, InferenceConfig
from longtail.detection.cosines import COSINE_IMAGES
from longtail.detection.data.dataset import COMMON_MOST, RARE_MOST
from longtail.detection.reopen import OpenDetector
from longtail.detection.run import FIGURES
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats

ALPHAS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""The sweep; the paper's alpha is 1.5."""
SWEPT = ("AP", "AP_r", "AP_c", "AP_f")
"""Figures of the table of the sweep."""
Rows = Sequence[tuple[str, Sequence[Mapping[str, Any]]]]
"""Names of rows with their results."""
RARE_GROUPS = ((1, 1), (2, 2), (3, 3), (4, 5), (6, RARE_MOST))
"""Fewest and most training images of the groups into which a table divides the rare classes."""


def measure_details(
    finished: OpenDetector, config: DetectionConfig, content: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `mean_cos` and `class_cos` of a normalised head, and `sweep` of a method with TDE.

    `content` is the result of `config`. Results with another average of the stages have neither,
    since another row has them.
    """
    if config.row.head == "linear" or config.inference.average != InferenceConfig.average:
        return {}
    mean_cos, class_cos = finished.cosines
    details: dict[str, Any] = {"mean_cos": mean_cos, "class_cos": class_cos}
    if config.tde != "off":
        details["sweep"] = dict(_sweep(finished, config, content))
    return dict(round_floats(details))


def _sweep(
    finished: OpenDetector, config: DetectionConfig, content: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yield the figures at each alpha; every rank evaluates its share."""
    own = finished.config.inference
    like_stored = replace(config.inference, tde=own.tde, alpha=own.alpha) == own
    for alpha in ALPHAS:
        inference = replace(config.inference, alpha=alpha)
        if inference == config.inference:
            figures = content.get("ap", {})
        elif alpha == 0 and like_stored and finished.config.tde == "off":
            figures = finished.stored["ap"]  # alpha 0 scores as without TDE
        else:
            result = finished.evaluate_as(replace(config, inference=inference))
            figures = result.details.ap if result else {}
        yield f"{alpha:g}", {name: figures.get(name) for name in FIGURES}


def make_tables(rows: Rows) -> Iterator[str]:
    """Yield the tables of rare classes, sweeps and cosines."""
    if evaluated := [(name, found) for name, found in rows if found]:
        yield "AP of the rare classes by their number of training images:\n"
        yield tables.markdown(*_divide_rare_classes(evaluated))
    swept = [
        (name, kept) for name, all_ in rows if (kept := [r["sweep"] for r in all_ if "sweep" in r])
    ]
    if swept:
        alphas = list(swept[0][1][0])
        yield f"{', '.join(SWEPT)} at each alpha:\n"
        yield tables.markdown(
            ["method", *(f"alpha {alpha}" for alpha in alphas)],
            ([name, *(_cell(kept, alpha) for alpha in alphas)] for name, kept in swept),
        )
    measured = [
        (name, kept)
        for name, all_ in rows
        if (kept := [r for r in all_ if "mean_cos" in r and r["tde"] == "off"])
    ]
    if measured:
        yield (
            "Mean cosine of an object's features and the direction of the last stage's head, over "
            f"the objects of {COSINE_IMAGES:,} training images, and over validation objects of the "
            "frequent, common and rare classes:\n"
        )
        yield tables.markdown(
            ["method", "training", "frequent", "common", "rare"],
            ([name, *_cosine_cells(kept)] for name, kept in measured),
        )


def _cell(sweeps: Sequence[Mapping[str, Any]], alpha: str) -> str:
    figures = [tables.spread([sweep[alpha][name] for sweep in sweeps]) for name in SWEPT]
    return ", ".join("-" if figure is None else f"{figure[0]:.1f}" for figure in figures)


def _divide_rare_classes(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the AP of groups of rare classes, without empty groups."""
    counts = rows[0][1][0]["counts"]
    groups = [
        (f"{least} to {most}" if most > least else str(least), own)
        for least, most in RARE_GROUPS
        if (own := [i for i, count in enumerate(counts) if least <= count <= most])
    ]
    header = [
        "method",
        *(f"{images} ({count_noun(len(own), 'class', 'classes')})" for images, own in groups),
    ]
    return header, [
        [name, *(format_spread(_average(r["per_class"], own) for r in found) for _, own in groups)]
        for name, found in rows
    ]


def _average(values: Sequence[float | None], places: Sequence[int]) -> float | None:
    """Average the known ones of `values` at `places`; None without any."""
    mean = tables.spread([values[i] for i in places])
    return mean[0] if mean else None


def _cosine_cells(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean cosines of training, and of the groups from many to few images."""
    groups: list[list[float | None]] = [[], [], []]
    for result in results:
        for place, group in enumerate(groups):
            group.append(_average_group(result, place))
    training = [result["mean_cos"] for result in results]
    return [format_spread(values, 3) for values in (training, *groups)]


def _average_group(result: Mapping[str, Any], place: int) -> float | None:
    """Average the cosines of the frequent (0), common (1) or rare (2) classes of a result."""
    counts = enumerate(result["counts"])
    own = [i for i, n in counts if (n <= COMMON_MOST) + (n <= RARE_MOST) == place]
    return _average(result["class_cos"], own)
