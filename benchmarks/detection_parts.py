"""Where the time of a detector goes: its own calls are watched while it runs.

Every part is waited for, which by itself takes time. Some hold others: the masks of inference hold
their pooling.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from torch import Tensor

from longtail.detection.network import cascade as cascades
from longtail.detection.network.detector import Detector

ALL = "all"
"""What a whole batch is called among its parts."""


def parts_of(
    detector: Detector,
    works: Mapping[str, Callable[[], Any]],
    wait: Callable[[], None],
    rounds: int,
) -> dict[str, dict[str, float]]:
    """Milliseconds of the parts of each work, by its name.

    Args:
        detector: what is watched.
        works: each runs the detector on a batch.
        wait: until the device has done all it was told.
        rounds: the median of so many counts.
    """
    cascade, stages = detector.cascade, detector.cascade.each
    places: dict[str, list[tuple[Any, str]]] = {
        "pyramid": [(detector.pyramid, "forward")],
        "proposals": [(detector.proposals, "forward")],
        "levels on one map": [(cascades, "stack_levels")],
        "pooling": [(cascade, "_pool")],
        "box features": [(stage.features, "forward") for stage in stages],
        "box classifiers": [
            *((stage, "compute_effects") for stage in stages),
            (cascades, "compute_scores"),
        ],
        "choice of detections": [(cascades, "select")],
        "masks": [(cascade, "_predict_masks")],
        "classifier losses": [(cascade, "_class_loss")],
        "mask losses": [(cascade, "_mask_loss")],
        "backward": [(Tensor, "backward")],
    }
    return {name: _spent(places, work, wait, rounds) for name, work in works.items()}


def _spent(
    places: Mapping[str, list[tuple[Any, str]]],
    work: Callable[[], Any],
    wait: Callable[[], None],
    rounds: int,
) -> dict[str, float]:
    """Milliseconds of one work in each of the `places`, where an owner's callable is watched."""
    spent: dict[str, list[float]] = {}

    def watched(label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            wait()
            began = time.perf_counter()
            found = call(*args, **options)
            wait()
            spent.setdefault(label, [0.0])[-1] += 1000 * (time.perf_counter() - began)
            return found

        return run

    work()
    with ExitStack() as stack:
        for label, owners in places.items():
            for owner, name in owners:
                stack.enter_context(patch.object(owner, name, watched(label, getattr(owner, name))))
        for _ in range(rounds):
            watched(ALL, work)()
            for each in spent.values():
                each.append(0.0)
    return {label: statistics.median(each[:-1]) for label, each in spent.items()}
