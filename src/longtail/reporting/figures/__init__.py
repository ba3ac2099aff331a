"""The paper's figures and accuracy by class rank, from runs and result files.

Each function takes run folders or result files and returns a matplotlib `Figure`. `draw` writes one
figure to a file, `draw_all` writes all of them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.core.errors import UserError, list_some, unknown_error
from longtail.evaluation import tables
from longtail.reporting.figures.canvas import check_out, save
from longtail.reporting.figures.classes import (
    draw_class_rank,
    draw_cosine_by_class,
    draw_feature_norm,
    draw_weight_norm,
)
from longtail.reporting.figures.curves import draw_alpha, draw_momentum
from longtail.reporting.figures.decomposition import draw_decomposition
from longtail.reporting.figures.graph import draw_causal_graph
from longtail.reporting.figures.maps import draw_gradcam
from longtail.reporting.figures.simulated import draw_decision_1d, draw_gradients_2d
from longtail.runs.compare import Source, read_all
from longtail.runs.own_data import OwnData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

FIGURES: "dict[str, Callable[..., Figure]]" = {
    "class-rank": draw_class_rank,
    "causal-graph": draw_causal_graph,
    "feature-norm": draw_feature_norm,
    "momentum": draw_momentum,
    "cosine-by-class": draw_cosine_by_class,
    "alpha": draw_alpha,
    "weight-norm": draw_weight_norm,
    "decision-1d": draw_decision_1d,
    "gradients-2d": draw_gradients_2d,
    "decomposition": draw_decomposition,
    "gradcam": draw_gradcam,
}
"""Drawing functions by the name that users type, such as class-rank."""
SIMULATED = ("causal-graph", "decision-1d", "gradients-2d")
"""Figures that need no run."""
NEED_DATA = ("decomposition", "gradcam")
"""Figures that need the data of their runs."""

NOT_DRAWN = "not drawn: "
"""Prefix of a message that says why a figure is missing."""


def draw(name: str, sources: Sequence[Source], out: Path | str, **choices: Any) -> Path:
    """Draw the figure called `name` with its options `choices`, and write it to `out`."""
    if name not in FIGURES:
        raise unknown_error("figure", name, FIGURES, f"figures: {', '.join(FIGURES)}")
    if name in SIMULATED and sources:
        raise UserError(f"{name} takes no run: leave out {sources[0]}")
    check_out(Path(out))  # drawing may take long
    return save(FIGURES[name](sources, **choices), out)


def draw_all(
    sources: Sequence[Source], out: Path | str, *, data: OwnData = None
) -> Iterator[tuple[str, str]]:
    """Draw every figure into the folder `out`; yield each name with its file or an error message.

    `cosine-by-class` gets the runs on any data, `decomposition` the first run with a head
    direction, all others the runs on the same data as the first run. `data` is the place of that
    data, if it was moved.
    """
    found = read_all(sources)
    names = [tables.data_name(item.result) for item in found]
    same_data = [item.source for item, name in zip(found, names, strict=True) if name == names[0]]
    if others := [str(item.source) for item in found if item.source not in same_data]:
        logger.warning(
            "figures that compare runs are of those on %s; cosine-by-class alone also takes %s",
            names[0],
            list_some(others),
        )
    with_direction = [item.source for item in found if item.result.get("class_cos")]
    sources_of = {
        "cosine-by-class": with_direction,
        "decomposition": [path for path in with_direction if path.is_dir()][:1] or same_data[:1],
        **{name: [] for name in SIMULATED},
    }
    for name in FIGURES:
        try:
            path, own = Path(out) / f"{name}.svg", {"data": data} if name in NEED_DATA else {}
            yield name, str(draw(name, sources_of.get(name, same_data), path, **own))
        except UserError as error:
            yield name, f"{NOT_DRAWN}{error}"
