"""Time of the parts of a detector, measured by wrapping its own methods.

The clock waits for the device after every part, which itself takes time. Some parts contain others:
the masks of inference contain their pooling.
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
"""Name of the whole batch among its parts."""


def time_parts(
    detector: Detector,
    works: Mapping[str, Callable[[], Any]],
    wait: Callable[[], None],
    rounds: int,
) -> dict[str, dict[str, float]]:
    """Measure the milliseconds of the parts of each work, by the name of the work.

    Args:
        detector: the detector whose parts are timed.
        works: functions that run the detector on a batch, by name.
        wait: blocks until the device is idle.
        rounds: number of rounds, of which the median counts.
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
    return {name: _time_work(places, work, wait, rounds) for name, work in works.items()}


def _time_work(
    places: Mapping[str, list[tuple[Any, str]]],
    work: Callable[[], Any],
    wait: Callable[[], None],
    rounds: int,
) -> dict[str, float]:
    """Measure the milliseconds that one work spends in each of `places`: (owner, method name)."""
    spent: dict[str, list[float]] = {}

    def time_call(label: str, call: Callable[..., Any]) -> Callable[..., Any]:
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
                timed = time_call(label, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
        for _ in range(rounds):
            time_call(ALL, work)()
            for each in spent.values():
                each.append(0.0)
    return {label: statistics.median(each[:-1]) for label, each in spent.items()}
