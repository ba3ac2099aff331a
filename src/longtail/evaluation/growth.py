"""How accuracy grows with training images: a curve over the classes, and what more would bring.

    accuracy(n) = ceiling - drop * n^-power

n is the number of training images of a class; accuracies are percentages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_CLASSES = 5
LEAST_COUNTS = 3
"""Classes with a known accuracy, and different numbers of images among them, that a fit needs."""
FAR = 1.5
"""Spreads below the curve from which a class is far below it."""
NEAR = 2.0
"""Distance from the curve, in percent, up to which no class is far below it."""
LOOSEST = 25.0
"""Spread, in percent, up to which a curve ranks classes: their distances hide its rise beyond."""
SOFT = 10.0
"""Distance from the curve, in percent, beyond which a class pulls less than its square."""


@dataclass(frozen=True)
class AccuracyCurve:
    """A curve that never falls and levels off."""

    ceiling: float
    drop: float
    power: float
    spread: float
    """Standard deviation of the classes around the curve, in percent."""
    classes: int
    """Number of classes it was fitted to."""

    @property
    def ranks(self) -> bool:
        """Whether the classes lie close enough to the curve to rank them by it."""
        return self.spread <= LOOSEST

    def at(self, images: float) -> float:
        """Accuracy to expect of a class with this many training images."""
        return float(np.clip(self.ceiling - self.drop * images**-self.power, 0, 100))


@dataclass(frozen=True)
class ClassOutlook:
    """A class beside the curve."""

    name: str
    images: int
    accuracy: float
    expected: float
    """Accuracy of the curve at this number of images."""
    gain: float
    """Rise of the curve from here to twice as many images."""


def fit_curve(counts: Sequence[int], accuracies: Sequence[float | None]) -> AccuracyCurve | None:
    """Fit the curve to the classes that have an accuracy; None if they are too few."""
    from scipy.optimize import least_squares  # slow to import, and only needed here

    pairs = [(n, a) for n, a in zip(counts, accuracies, strict=True) if a is not None and n > 0]
    if len(pairs) < LEAST_CLASSES or len({n for n, _ in pairs}) < LEAST_COUNTS:
        return None
    images, values = np.array(pairs, dtype=np.float64).T
    least = images.min()  # the drop is that of the rarest class, so that all three have one scale

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        ceiling, drop, power = parameters
        return np.asarray(ceiling - drop * (images / least) ** -power - values)

    start = (values.max(), max(values.max() - values.min(), 1.0), 0.5)
    bounds = ((0.0, 0.0, 0.05), (100.0, 200.0, 2.0))
    inside = np.clip(start, np.add(bounds[0], 1e-3), np.subtract(bounds[1], 1e-3))
    fitted = least_squares(residuals, inside, bounds=bounds, loss="soft_l1", f_scale=SOFT)
    ceiling, drop, power = map(float, fitted.x)
    spread = float(np.sqrt(np.mean(residuals(fitted.x) ** 2)))
    return AccuracyCurve(ceiling, drop * float(least) ** power, power, spread, len(pairs))


def compare_classes(
    curve: AccuracyCurve,
    names: Sequence[str],
    counts: Sequence[int],
    accuracies: Sequence[float | None],
) -> list[ClassOutlook]:
    """Compare every class that has an accuracy with the curve; the largest gain comes first."""
    found = [
        ClassOutlook(name, n, accuracy, curve.at(n), curve.at(2 * n) - curve.at(n))
        for name, n, accuracy in zip(names, counts, accuracies, strict=True)
        if accuracy is not None and n > 0
    ]
    return sorted(found, key=lambda outlook: (-outlook.gain, outlook.accuracy))


def list_far_below(curve: AccuracyCurve, outlooks: Sequence[ClassOutlook]) -> list[ClassOutlook]:
    """List the classes far below the curve, the farthest first."""
    least = max(FAR * curve.spread, NEAR)
    far = [each for each in outlooks if each.expected - each.accuracy > least]
    return sorted(far, key=lambda outlook: outlook.accuracy - outlook.expected)
