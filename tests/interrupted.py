"""Trainings that end early, and runs compared whatever the clock said."""

from collections.abc import Iterable

import pytest
import torch

from longtail.runs.folder import Run


def same_tensors(a: Run, b: Run) -> bool:
    first, second = a.load_model(), b.load_model()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def without_clock(run: Run) -> tuple:
    timing = {"seconds", "capture_seconds", "images_per_second", "training_id"}
    metrics = [{k: v for k, v in r.items() if k not in timing} for r in run.metrics]
    return {k: v for k, v in run.result.items() if k not in timing}, metrics


class Kill(Exception):
    """Ends a training from inside."""


class KillAfter:
    """Raises when `epoch` epochs are over and saved, or just before the save of the next."""

    def __init__(self, epoch: int):
        self.epoch_to_die = epoch

    def begin(self, *args): ...

    def step(self, *args): ...

    def epoch(self, record):
        if record["epoch"] + 1 == self.epoch_to_die:
            raise Kill


def kill_at(
    call: int,
    operations: Iterable[tuple[object, str]],
    patch: pytest.MonkeyPatch,
    kill: type[BaseException] = Kill,
) -> None:
    """Raise `kill` before the `call`-th of the file operations (owner, name), and ever after."""
    left = [call]

    def dying(plain):
        def act(*args, **more):
            left[0] -= 1
            if left[0] < 0:
                raise kill
            return plain(*args, **more)

        return act

    for owner, name in operations:
        patch.setattr(owner, name, dying(getattr(owner, name)))
