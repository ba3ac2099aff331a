"""The causal graph of the paper, and TDE as a difference of two graphs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longtail.reporting.figures import canvas
from longtail.runs.compare import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACES = {"M": (0.5, 0.88), "X": (0.12, 0.22), "D": (0.5, 0.5), "Y": (0.88, 0.22)}
LINKS = (("M", "X"), ("M", "D"), ("X", "D"), ("D", "Y"), ("X", "Y"))
"""Section 3: M -> X, (M, X) -> D, X -> D -> Y, X -> Y."""


@canvas.apply_style
def draw_causal_graph(sources: Sequence[Source] = ()) -> "Figure":
    """Draw the causal graph, and TDE as a difference of two graphs (fig:1(a) and fig:4).

    The nodes are momentum M, feature X, its projection D on the head direction, and logits Y. The
    total direct effect is the effect of X = x on Y minus that of a null input with D kept at d.
    """
    figure = canvas.make_panels(3, size=(2.3, 2.3))
    whole, factual, counterfactual = figure.axes
    _draw(whole, "the causal graph", LINKS)
    left = [link for link in LINKS if link != ("M", "X")]  # de-confounded training: do(X = x)
    _draw(factual, "TDE = effect of X = x ...", left, X="x", D="d")
    null = [link for link in left if link != ("X", "D")]  # D keeps its value
    _draw(counterfactual, "... minus that of X = 0, D still d", null, X="0", D="d")
    legend = "M momentum, X feature, D its projection\non the head direction, Y logits"
    whole.text(0.5, -0.02, legend, ha="center", va="top", fontsize=7)
    return figure


def _draw(axes: "Axes", title: str, links: Sequence[tuple[str, str]], **set_to: str) -> None:
    """Draw the nodes and `links`; nodes `set_to` a value are filled squares."""
    boxes = {}
    for node, place in PLACES.items():
        value = set_to.get(node)
        box = {"boxstyle": "circle,pad=0.3", "ec": "black", "fc": "white"}
        if value:
            box |= {"boxstyle": "square,pad=0.3", "fc": "#f3d9c4"}
        text = axes.text(
            *place, f"{node} = {value}" if value else node, ha="center", va="center", bbox=box
        )
        boxes[node] = text.get_bbox_patch()
    arrow = {"arrowstyle": "-|>", "color": "black", "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    for start, end in links:  # after the nodes: only then is the place of their boxes known
        ends = {"patchA": boxes[start], "patchB": boxes[end]}
        axes.annotate("", xy=PLACES[end], xytext=PLACES[start], arrowprops=arrow | ends)
    axes.set_title(title)
    axes.set(xlim=(-0.15, 1.15), ylim=(-0.2, 1.1))
    axes.set_axis_off()
