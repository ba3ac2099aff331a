"""Images per second of the training step under each augmentation, compared with crop and flip."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.common.data_folder import check_data
from benchmarks.common.result_files import check_device, write_json
from benchmarks.common.words import select_words
from benchmarks.speed.step import measure
from longtail.cli.output import print_lines
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.data.base import Data
from longtail.data.load import load
from longtail.training.launch import launch

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

PLAIN = "crop-flip"
WAYS: dict[str, Mapping[str, Any]] = {
    PLAIN: {},
    "resized crop": {"augment": "resized-crop"},
    "cutout": {"cutout": 0.5},
    "cutmix": {"cutmix": 0.5},
    "cutmix, class donors": {"cutmix": 0.5, "donors": "class"},
    "trivialaugment": {"augment": "trivialaugment"},
    "randaugment": {"augment": "randaugment"},
    "autoaugment": {"augment": "autoaugment"},
    "autoaugment, cutout, cutmix": {"augment": "autoaugment", "cutout": 0.5, "cutmix": 0.5},
    "ema": {"ema": 0.999},
    "three views": {"method": "deconfound-contrastive"},
    "frontier": {
        **{"method": "deconfound-contrastive", "augment": "autoaugment", "cutmix": 0.5},
        **{"cutmix_box": "clipped", "ema": 0.9995},
    },
}
"""Options of each way by its name."""
ROUNDS = 3
"""Measurements of each way, in turns; the fastest counts, as others may share the device."""


@dataclass(frozen=True)
class AugmentationSpeed:
    """Speed of one way to augment."""

    way: str
    batch_size: int
    replicas: int
    images_per_second: float
    """Images per second over all replicas; further views do not count."""
    relative: float
    """Compared with crop and flip alone, under the same conditions."""


def conditions(cuda: bool) -> Iterator[tuple[int, int]]:
    """Yield the (batch size, replicas) that are measured."""
    yield from ((128, 1), (256, 1), (256, 8)) if cuda else ((32, 1),)


def run_command(command: "BenchCommand") -> None:
    """Measure the step of cifar100-lt under each augmentation, and print it."""
    select_words(WAYS, command.only)  # before anything is read
    check_data(["cifar100-lt"], command.root)
    config = Config.preset("cifar100-lt:100").with_options(backbone="resnet32", method="deconfound")
    config = replace(config, machine=command.machine)
    data = load("cifar100-lt:100", root=command.root)
    out = None if command.only else command.results / "speed" / "augmentations.json"
    print_lines(*table(bench_augmentations(config, data, out, command.only)))
    print(f"written to {out}" if out else "not written: --only measures a part")


def bench_augmentations(
    config: Config, data: Data, out: Path | None, only: Sequence[str] = (), seconds: float = 0.5
) -> list[AugmentationSpeed]:
    """Measure every way, or those whose name contains a word of `only`; rewrite `out`, if given."""
    fabric = launch(config.machine)
    cuda = fabric.device.type == "cuda"
    ways = list(dict.fromkeys([PLAIN, *select_words(WAYS, only)]))
    about = {**environment(cuda=cuda), "backbone": config.backbone}
    if out:
        check_device(out, about["device"])
    found: list[AugmentationSpeed] = []
    for batch, replicas in conditions(cuda):
        best = dict.fromkeys(ways, 0.0)
        for _ in range(ROUNDS):
            for way in ways:
                options = {**WAYS[way], "batch_size": batch}
                if cuda:
                    torch.cuda.empty_cache()
                speed = measure(config.with_options(**options), data, fabric, replicas, seconds)
                best[way] = max(best[way], speed.images_per_second)
        found += [
            AugmentationSpeed(way, batch, replicas, rate, rate / best[PLAIN])
            for way, rate in best.items()
        ]
        if out:
            write_json(out, {**about, "speeds": [asdict(speed) for speed in found]})
    return found


def table(found: Sequence[AugmentationSpeed]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for a terminal."""
    rows = [
        [
            *(s.way, str(s.batch_size), str(s.replicas)),
            *(f"{s.images_per_second:,.0f}", f"{100 * (s.relative - 1):+.1f} %"),
        ]
        for s in found
    ]
    return ["augmentation", "batch", "replicas", "images/s", "against crop-flip"], rows
