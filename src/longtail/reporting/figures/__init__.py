"""Figures from runs and result files: the paper's, and accuracy by class rank.

Each function takes run folders or result files and gives a matplotlib `Figure`; `draw` also writes
it, and `draw_all` the whole set.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.core.errors import UserError, unknown
from longtail.evaluation import tables
from longtail.reporting.figures.canvas import save
from longtail.reporting.figures.classes import (
    class_rank,
    cosine_by_class,
    feature_norm,
    weight_norm,
)
from longtail.reporting.figures.curves import alpha, momentum
from longtail.reporting.figures.features import decomposition, gradcam
from longtail.reporting.figures.graph import causal_graph
from longtail.reporting.figures.simulated import decision_1d, gradients_2d
from longtail.runs.compare import Source, read_all
from longtail.runs.reopen import OwnData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: "dict[str, Callable[..., Figure]]" = {
    "class-rank": class_rank,
    "causal-graph": causal_graph,
    "feature-norm": feature_norm,
    "momentum": momentum,
    "cosine-by-class": cosine_by_class,
    "alpha": alpha,
    "weight-norm": weight_norm,
    "decision-1d": decision_1d,
    "gradients-2d": gradients_2d,
    "decomposition": decomposition,
    "gradcam": gradcam,
}
"""By the name that users type."""
SIMULATED = ("causal-graph", "decision-1d", "gradients-2d")
"""Those that need no run."""
NEED_DATA = ("decomposition", "gradcam")
"""Those that need the data of their runs."""

__all__ = [
    "FIGURES",
    "alpha",
    "causal_graph",
    "class_rank",
    "cosine_by_class",
    "decision_1d",
    "decomposition",
    "draw",
    "draw_all",
    "feature_norm",
    "gradcam",
    "gradients_2d",
    "momentum",
    "save",
    "weight_norm",
]


def draw(name: str, sources: Sequence[Source], out: Path | str, **choices: Any) -> Path:
    """Draw the figure called `name` and write it to `out`; `choices` are its own options."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES, f"they are {', '.join(FIGURES)}")
    if name in SIMULATED and sources:
        raise UserError(f"{name} is drawn from no run: leave out {sources[0]}")
    return save(FIGURES[name](sources, **choices), out)


def draw_all(
    sources: Sequence[Source], out: Path | str, *, data: OwnData = None
) -> Iterator[tuple[str, str]]:
    """Draw every figure into the folder `out`: each name, and its file or why there is none.

    All but `cosine-by-class` compare runs that share their data: those on the data of the first.
    `decomposition` takes the first of them that it can. `data` is the runs' own, if it was moved.
    """
    found = read_all(sources)
    on_first = [
        item.source
        for item in found
        if tables.data_name(item.result) == tables.data_name(found[0].result)
    ]
    with_direction = [i.source for i in found if i.result.get("class_cos") and i.source.is_dir()]
    takes = {
        "cosine-by-class": [item.source for item in found if item.result.get("class_cos")],
        "decomposition": with_direction[:1] or on_first[:1],
        **{name: [] for name in SIMULATED},
    }
    for name in FIGURES:
        try:
            path, own = Path(out) / f"{name}.svg", {"data": data} if name in NEED_DATA else {}
            yield name, str(draw(name, takes.get(name, on_first), path, **own))
        except UserError as error:
            yield name, f"not drawn: {error}"
