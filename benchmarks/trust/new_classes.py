"""Classes left out of a training and added afterwards from a few photographs.

`extend` competes with nearest class means and with a linear probe that is trained anew on the
features of all training images and the new photographs.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F

from longtail.core.config import Config
from longtail.data.base import Data, Split, count
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.runs.reopen import reopen
from longtail.serving.extend import extend
from longtail.serving.predictor import Predictor, load_model
from longtail.training.loop import Progress

LEFT_OUT = 5
"""Classes left out, spread evenly from the most frequent to the rarest."""
SHOTS = (1, 5, 20)
"""Photographs of each new class."""
METHODS = ("baseline", "deconfound-tde")


def measure_extension(
    config: Config,
    data: Data,
    pool: Data,
    seed: int,
    out: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train without some classes, add them from photographs of `pool`, and measure both kinds."""
    chosen = choose_classes(data)
    rest = leave_out(data, chosen)
    runs = fit_all(config, METHODS, [seed], out=out, data=rest, resume=True, progress=progress)
    ways: dict[str, Any] = {}
    assert data.test is not None
    old = [c for c in range(len(data.classes)) if c not in chosen]
    place = torch.tensor([(old + chosen).index(c) for c in range(len(data.classes))])
    test = Split(data.test.inputs, place[data.test.labels])
    for run in runs:
        own = _Extended(run, rest, test)
        for shots in SHOTS:
            photographs = {
                data.classes[c]: draw_photographs(pool.train, c, shots, seed) for c in chosen
            }
            key = f"{run.result['method']} {shots}"
            ways[key] = own.compare(photographs, len(old))
    return {"classes": [data.classes[c] for c in chosen], "ways": ways}


def choose_classes(data: Data) -> list[int]:
    """Return the classes to leave out."""
    order = torch.argsort(data.counts.tensor(), descending=True, stable=True)
    step = len(order) / LEFT_OUT
    return [int(order[int((i + 0.5) * step)]) for i in range(LEFT_OUT)]


def leave_out(data: Data, chosen: list[int]) -> Data:
    """Return `data` without the images of the `chosen` classes."""
    old = [c for c in range(len(data.classes)) if c not in chosen]
    place = torch.full((len(data.classes),), -1)
    place[old] = torch.arange(len(old))

    def keep(split: Split | None) -> Split | None:
        if split is None:
            return None
        kept = split.take(torch.nonzero(place[split.labels] >= 0).flatten())
        return Split(kept.inputs, place[kept.labels])

    train = keep(data.train)
    assert train is not None
    return replace(
        data,
        name=f"{data.name}-left-out",
        classes=tuple(data.classes[c] for c in old),
        train=train,
        val=keep(data.val),
        test=keep(data.test),
        counts=count(train.labels, len(old)),
        evaluated_sha256="",
    )


def draw_photographs(split: Split, label: int, number: int, seed: int) -> list[Tensor]:
    """Draw training images of a class."""
    places = torch.nonzero(split.labels == label).flatten()
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    return list(split.take(places[order[:number]]).load_inputs())


Classifier = Callable[[], Tensor]
"""A function that returns the predicted classes (N,) of the test images."""


class _Extended:
    """A model to which classes are added in several ways."""

    def __init__(self, run: Run, data: Data, test: Split):
        self.predictor, self.test = load_model(run), test
        opened = reopen(run, data)
        self.features, self.labels = opened.features(data.train).cpu(), data.train.labels.cpu()
        self.tested = opened.features(test).cpu()

    def compare(
        self, photographs: dict[str, list[Tensor]], old: int
    ) -> dict[str, dict[str, float]]:
        """Return the accuracy of each way on old and new classes in percent, and its seconds."""
        self._extract(photographs)  # the first batch on a device takes longer
        ways: dict[str, Callable[[], Classifier]] = {
            "nothing": lambda: self._use(self.predictor),
            "extend": lambda: self._extend(photographs, refine=False),
            "extend --refine": lambda: self._extend(photographs, refine=True),
            "nearest mean": lambda: self._nearest(self._extract(photographs)),
            "linear probe": lambda: self._probe(self._extract(photographs)),
        }
        found, labels = {}, self.test.labels
        for name, way in ways.items():
            began = time.perf_counter()
            classify = way()
            seconds = time.perf_counter() - began
            right, new = classify() == labels, labels >= old
            found[name] = {
                "old": 100 * right[~new].double().mean().item(),
                "new": 100 * right[new].double().mean().item(),
                "seconds": seconds,
            }
        return found

    def _extract(self, photographs: dict[str, list[Tensor]]) -> list[Tensor]:
        return [self.predictor.extract(images)[0] for images in photographs.values()]

    def _extend(self, photographs: dict[str, list[Tensor]], refine: bool) -> Classifier:
        return self._use(extend(self.predictor, photographs, refine=refine).model)

    def _use(self, model: Predictor) -> Classifier:
        def classify() -> Tensor:
            trust = model.trust
            assert trust is not None
            served = model.model.fold(model.alpha)
            with torch.no_grad():
                logits = served.head(self.tested.to(served.head.weight)).cpu()
            return trust.calibration.apply(logits.double()).argmax(1)

        return classify

    def _nearest(self, rows: list[Tensor]) -> Classifier:
        means = self.predictor.model.stored.class_means
        assert means is not None
        every = torch.cat([means.cpu(), torch.stack([x.mean(0) for x in rows])])
        return lambda: (F.normalize(self.tested, dim=1) @ F.normalize(every, dim=1).T).argmax(1)

    def _probe(self, rows: list[Tensor]) -> Classifier:
        sizes = torch.tensor([len(x) for x in rows])
        new = (int(self.labels.max()) + 1 + torch.arange(len(rows))).repeat_interleave(sizes)
        x, y = torch.cat([self.features, *rows]), torch.cat([self.labels, new])
        scale = x.norm(dim=1).mean()
        model = LogisticRegression(class_weight="balanced", max_iter=200)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit((x / scale * 16).numpy(), y.numpy())
        return lambda: torch.from_numpy(model.predict((self.tested / scale * 16).numpy()))
