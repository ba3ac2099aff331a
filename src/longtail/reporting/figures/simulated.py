"""Simulations of the paper's two thought experiments, with fixed seeds and without runs.

The paper gives no numbers for these figures, so the numbers are ours. The docstrings state which of
the paper's claims the simulations do not show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longtail.reporting.figures import canvas, style
from longtail.runs.compare import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD, TAIL = style.SPLITS["many"][0], style.SPLITS["few"][0]
MU = 0.9
SEED = 0


@dataclass(frozen=True)
class SimulatedDecision:
    """One-dimensional features of balanced test data under one way to classify."""

    name: str
    head: np.ndarray
    """Features of the head class, (N,); those above the boundary are correct."""
    tail: np.ndarray
    """Features of the tail class, (N,); those below the boundary are correct."""
    boundary: float = 0.0

    @property
    def accuracy(self) -> tuple[float, float]:
        """Percent correct of head and tail."""
        right = (self.head > self.boundary, self.tail <= self.boundary)
        return 100 * float(right[0].mean()), 100 * float(right[1].mean())

    @property
    def separation(self) -> float:
        """Distance of the class means in standard deviations, which no boundary can change."""
        spread = np.sqrt((self.head.var() + self.tail.var()) / 2)
        return float((self.head.mean() - self.tail.mean()) / spread)


@canvas.apply_style
def draw_decision_1d(sources: Sequence[Source] = ()) -> "Figure":
    """Draw the 1-D example of conventional, re-balanced and TDE classification (spfig:2)."""
    figure = canvas.make_panels(2, 2, size=(3.4, 1.9))
    for axes, found in zip(figure.axes, simulate_decisions(), strict=True):
        low, high = np.percentile([found.head, found.tail], [0.2, 99.8])
        edges = np.linspace(low, high, 40).tolist()
        shown = {"head": (found.head, HEAD, ""), "tail": (found.tail, TAIL, "////")}
        for name, (values, colour, hatch) in shown.items():
            heights, _ = np.histogram(values, edges, density=True)
            axes.stairs(heights, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(heights, edges, edgecolor=colour, hatch=hatch, label=name)
        axes.axvline(found.boundary, color="black", linewidth=1.0, linestyle="--")
        head, tail = found.accuracy
        axes.set_title(
            f"{found.name}\ncorrect: head {head:.0f} %, tail {tail:.0f} %; "
            f"separation {found.separation:.2f}"
        )
        axes.set(xlabel="feature x (no unit; dashed: boundary)", ylabel="density", yticks=[])
        axes.legend()
    return figure


def simulate_decisions() -> list[SimulatedDecision]:
    """Simulate four ways to classify inputs u of 20 + 2 numbers, of which one separates classes.

    The backbone is linear, x = <theta, u>, and the classifier is the sign of x. One number of u is
    the same for all images and lets the features drift towards the head, as post-ReLU features do.
    There are 990 images of the head and 10 of the tail, N(+-1, 1) in the separating number.

    The simulation shows what the paper says of spfig:2. Conventional training loses the tail.
    One-stage re-balancing fits the noise of ten images and separates the classes less. A second
    stage and TDE keep the separation and move the boundary, the second stage too little, because
    the backbone was trained on the same ten tail images.

    It does not show TDE with alpha 1. In one dimension the projection on d is all of x, so TDE
    subtracts alpha times the moving average feature, which is close to the head's own: alpha 1
    would put the head on the boundary. So alpha is chosen here on balanced held-out data.
    """
    random = np.random.default_rng(SEED)

    def draw(images: int, centre: float) -> np.ndarray:
        u = random.normal(size=(images, 22))
        u[:, 0], u[:, 1] = 1.0, u[:, 1] + centre
        return u

    u = np.concatenate([draw(990, 1.0), draw(10, -1.0)])
    y = np.repeat([1.0, -1.0], [990, 10])
    (head, tail), (held_head, held_tail) = ((draw(2000, 1.0), draw(2000, -1.0)) for _ in range(2))
    instance, balanced = np.full(1000, 1e-3), np.repeat([0.5 / 990, 0.5 / 10], [990, 10])

    theta = _fit_logistic(u, y, instance)
    rebalanced = _fit_logistic(u, y, balanced)
    x = u @ theta
    offset = -_fit_logistic(np.ones((1000, 1)), y, balanced, base=x)[0]
    mean = 0.0  # the moving average of Assumption 1, scaled by 1 - mu: its length matters here
    for batch in x[random.permutation(1000)].reshape(20, 50):
        mean = MU * mean + batch.mean()
    mean = mean * (1 - MU) / (1 - MU**20)
    right, left, alphas = held_head @ theta, held_tail @ theta, np.arange(0, 3.25, 0.25)
    hits = [np.mean(right > a * mean) + np.mean(left <= a * mean) for a in alphas]
    alpha = alphas[np.argmax(hits)]
    shift = alpha * mean
    return [
        SimulatedDecision("conventional", head @ theta, tail @ theta),
        SimulatedDecision("one-stage re-balancing", head @ rebalanced, tail @ rebalanced),
        SimulatedDecision("two-stage re-balancing (NDE)", head @ theta, tail @ theta, offset),
        SimulatedDecision(f"TDE, alpha {alpha:g}", head @ theta - shift, tail @ theta - shift),
    ]


def _fit_logistic(
    u: np.ndarray, y: np.ndarray, weights: np.ndarray, base: np.ndarray | float = 0.0
) -> np.ndarray:
    """Fit a weighted logistic regression by gradient descent; `base` is added to the logit."""
    theta = np.zeros(u.shape[1])
    for _ in range(2000):
        pull = weights * y / (1 + np.exp(np.clip(y * (u @ theta + base), -50, 50)))
        theta += 0.5 * (pull @ u - 1e-3 * theta)
    return theta


@dataclass(frozen=True)
class Gradients:
    """Gradients of one epoch with batches of one image."""

    images: tuple[int, int]
    """Number of images of class A and of class B."""
    each: np.ndarray
    """Gradient of each image, class A first, (N, 2)."""
    mean: np.ndarray
    """Mean gradient, (2,)."""
    velocity: np.ndarray
    """(1 - mu) v of Eq. 1 after each step of a shuffled epoch, (N, 2)."""


@canvas.apply_style
def draw_gradients_2d(sources: Sequence[Source] = ()) -> "Figure":
    """Draw two classes' gradients, their mean, and where momentum points (Appendix A)."""
    figure = canvas.make_panels(2, size=(3.0, 2.7))
    for axes, found in zip(figure.axes, map(simulate_gradients, ((50, 50), (99, 1))), strict=True):
        a = found.images[0]
        axes.plot(*found.each[:a].T, ".", color=HEAD, ms=4, label="gradients, class A")
        axes.plot(*found.each[a:].T, "x", color=TAIL, ms=4, label="gradients, class B")
        axes.plot(*found.velocity.T, ".", color="#999999", ms=2, label=f"momentum, mu {MU}")
        tip = {"arrowstyle": "-|>", "color": "black", "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=tuple(found.mean), xytext=(0, 0), arrowprops=tip)
        shown = ", ".join(f"{round(value, 2) + 0:.2f}" for value in found.mean)  # no -0.00
        axes.set_title(f"{found.images[0]} of A, {found.images[1]} of B: mean ({shown})")
        axes.set(xlabel="first component (no unit)", ylabel="second component (no unit)")
        axes.set(xlim=(-1.7, 1.7), ylim=(-0.2, 1.7), aspect="equal")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handletextpad=0.1)
    return figure


def simulate_gradients(images: tuple[int, int]) -> Gradients:
    """Draw gradients near (1, 1) for class A and (-1, 1) for class B, and run Eq. 1 over them.

    The mean is (0, 1) for 50 and 50 images and (0.98, 1) for 99 and 1, as in the paper. The
    simulation does not show that momentum is the cause: (1 - mu) v scatters around the mean
    gradient, which plain SGD follows too. Momentum steadies the direction; imbalance turns it.
    """
    random = np.random.default_rng(SEED)
    centres = np.repeat([[1.0, 1.0], [-1.0, 1.0]], images, axis=0)
    noise = random.normal(scale=0.12, size=centres.shape)
    for rows in (slice(0, images[0]), slice(images[0], None)):
        noise[rows] -= noise[rows].mean(0)  # so that the means are exactly those of the paper
    each = centres + noise
    v, velocity = each.mean(0) / (1 - MU), []  # as after many epochs
    for gradient in each[random.permutation(len(each))]:
        v = MU * v + gradient
        velocity.append((1 - MU) * v)
    return Gradients(images, each, each.mean(0), np.array(velocity))
