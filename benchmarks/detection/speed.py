"""Speed of our detector against torchvision's Mask R-CNN, the price of TDE, and times of the parts.

Both detectors use the same backbone, heads, sizes, batch, precision and optimiser, and random
images that are already on the device. Neither learns while the clock runs, so the foreground of
both consists of the true boxes only: both train on fewer masks than late in a real training.
Variants take turns, round by round, and the median counts.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.common.result_files import check_device, read_all, write_json, write_page
from benchmarks.common.words import select_words
from benchmarks.detection.parts import ALL, time_parts
from benchmarks.detection.rival import build_mask_rcnn, split_batch
from benchmarks.speed.step import wait
from longtail.cli.output import print_lines
from longtail.core.config import MachineConfig
from longtail.core.environment import environment
from longtail.detection.config import DetectionConfig, Tde
from longtail.detection.data.batches import DetectionBatch, number_masks
from longtail.detection.data.dataset import Categories
from longtail.detection.network.detector import Detector, build_detector
from longtail.detection.train import LONGEST_GRADIENT
from longtail.evaluation import tables
from longtail.training.launch import launch

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "detection-speed"
NOTE = (
    "Images per second of our cascade of three stages and of torchvision's Mask R-CNN of one. "
    "Both have the same backbone and pyramid, heads of the same widths, and the same sizes, batch "
    "and precision. Ours predicts one box for all classes, torchvision's one for each class. "
    "Torchvision's computes the masks of all classes; ours has one mask for all classes in "
    "shapes-lvis and shapes-lvis-1203, and otherwise computes that of the predicted class only. "
    "Inference uses random weights: nearly every score is above the threshold, so suppression has "
    "more to do than after training. Ratios are ratios of seconds: inference with TDE to inference "
    "without, and, as a measure of noise, training and inference without TDE to themselves."
)
OBJECTS = 8
"""Objects in each random image."""
TDE: tuple[Tde, ...] = ("off", "plain", "background-exempt")
AGAIN, OURS_AGAIN = "off, again", "ours, again"
"""Second measurements of `off` and `ours`, which show the noise."""


@dataclass(frozen=True)
class Workload:
    """A configuration to measure."""

    name: str
    config: DetectionConfig
    classes: int
    batch: int


@dataclass(frozen=True)
class DetectionSpeed:
    """Figures of one workload."""

    workload: str
    backbone: str
    classes: int
    image_size: int
    batch: int
    training: Mapping[str, float]
    """Images per second of ours, measured twice, and of torchvision's Mask R-CNN."""
    inference: Mapping[str, float]
    """The same, ours with TDE off, plain and background-exempt."""
    tde_over_off: Mapping[str, float]
    """Ratios of seconds with TDE to seconds without, and of these to themselves: medians over
    rounds."""
    milliseconds: Mapping[str, Mapping[str, float]]
    """Milliseconds of the parts of training and inference on one batch."""


def run_command(command: "BenchCommand") -> None:
    """Measure the workloads, then write the table."""
    wanted = workloads(command.only)
    print_lines(*table(bench_detection_speed(command.results, wanted, command.machine.device)))
    print(f"written to {write_table(command.results)}")


def workloads(only: Sequence[str] = ()) -> list[Workload]:
    """Return workloads with small images, as in shapes-lvis, and with the sizes of LVIS.

    `only` limits them to those whose names contain one of its words.
    """
    small = DetectionConfig.preset("shapes-lvis")
    large = DetectionConfig.preset("lvis-v1").with_options(backbone="resnet50", pretrained=False)
    every = [
        Workload("shapes-lvis", small, classes=80, batch=small.train.batch_size),
        Workload("shapes-lvis-1203", small, classes=1203, batch=small.train.batch_size),
        Workload(
            "shapes-lvis-1203-masks",
            small.with_options(masks="class"),
            classes=1203,
            batch=small.train.batch_size,
        ),
        Workload("lvis-v1", large, classes=1203, batch=4),
    ]
    chosen = select_words((each.name for each in every), only)
    return [each for each in every if each.name in chosen]


def bench_detection_speed(
    results: Path,
    wanted: Sequence[Workload],
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> list[dict[str, Any]]:
    """Measure each workload into its own file, RESULTS/detection-speed/NAME.json."""
    fabric = launch(MachineConfig(device=device))
    about = environment(cuda=fabric.device.type == "cuda")
    files = [results / NAME / f"{workload.name}.json" for workload in wanted]
    for file in files:
        check_device(file, about["device"])
    found = []
    for workload, file in zip(wanted, files, strict=True):
        found.append({**about, **asdict(measure_speed(workload, fabric))})
        write_json(file, found[-1])
    return found


def write_table(results: Path) -> Path:
    """Write RESULTS/detection-speed.md from the result files."""
    found = sorted(read_all(results / NAME), key=lambda s: (s["image_size"], s["classes"]))
    parts = [NOTE, tables.markdown(*table(found))]
    for speed in found:
        parts.append(
            f"Milliseconds of the parts of a batch of {speed['workload']}, waiting for each to end:"
        )
        parts.append(tables.markdown(*parts_table(speed["milliseconds"])))
    return write_page(results, NAME, parts)


def measure_speed(
    workload: Workload, fabric: Fabric, rounds: int = 15, calls: int = 4
) -> DetectionSpeed:
    """Time our detector and torchvision's in turns: `rounds` rounds of `calls` batches each."""
    config = workload.config.with_options(method="deconfound-tde")
    ours = build_detector(config, _categories(workload.classes), fresh=False).to(fabric.device)
    theirs = build_mask_rcnn(config, workload.classes).to(fabric.device)
    theirs = theirs.to(memory_format=torch.channels_last)
    batch = random_batch(config, workload.classes, workload.batch, fabric.device)
    images, targets = split_batch(batch)
    ready = partial(wait, fabric)
    works = {
        "ours": _trainer(ours, lambda: ours(batch), config, fabric),
        "torchvision": _trainer(theirs, lambda: theirs(images, targets), config, fabric),
    }
    training = _time_rounds(works | {OURS_AGAIN: works["ours"]}, ready, rounds, calls)
    ours.eval()
    theirs.eval()
    with torch.no_grad(), fabric.autocast():
        ways = {tde: _scorer(ours, batch, tde) for tde in TDE}
        again = {AGAIN: _scorer(ours, batch, "off")}
        scored = _time_rounds(ways | again, ready, 2 * rounds, calls)
        # slow: its suppression loops over images and classes
        other = _time_rounds({"torchvision": lambda: theirs(images)}, ready, min(rounds, 3), 1)
        named = {f"inference, TDE {tde}": way for tde, way in ways.items()}
        parts = time_parts(ours, named, ready, rounds)
    parts = time_parts(ours, {"training": works["ours"]}, ready, rounds) | parts
    size = workload.batch
    return DetectionSpeed(
        workload=workload.name,
        backbone=config.backbone,
        classes=workload.classes,
        image_size=config.model.image_size,
        batch=size,
        training=_per_second(training, calls * size),
        inference=_per_second(scored, calls * size) | _per_second(other, size),
        tde_over_off={way: _ratio(scored[way], scored["off"]) for way in (*TDE[1:], AGAIN)},
        milliseconds=parts,
    )


def random_batch(
    config: DetectionConfig, classes: int, images: int, device: torch.device
) -> DetectionBatch:
    """Make a batch of noise images with boxes of all sizes; masks are the filled boxes."""
    side = config.model.image_size
    generator = torch.Generator().manual_seed(0)
    shape = (images, OBJECTS)
    corner = 0.6 * side * torch.rand(*shape, 2, generator=generator)
    extent = side * (0.1 + 0.3 * torch.rand(*shape, 2, generator=generator))
    boxes = torch.cat([corner, corner + extent], dim=-1).round()
    x = torch.arange(side)
    across = (x >= boxes[..., 0, None]) & (x < boxes[..., 2, None])  # (B, G, side)
    down = (x >= boxes[..., 1, None]) & (x < boxes[..., 3, None])
    batch = DetectionBatch(
        images=torch.randint(256, (images, 3, side, side), generator=generator, dtype=torch.uint8),
        sizes=torch.full((images, 2), side),
        boxes=boxes,
        labels=torch.randint(1, classes + 1, shape, generator=generator),
        masks=(down[..., :, None] & across[..., None, :]).flatten(0, 1).byte(),
        rows=number_masks([OBJECTS] * images),
        keys=torch.arange(images),
    )
    return DetectionBatch(*(part.to(device) for part in batch))


def table(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: images per second, and the price of TDE."""
    header = ["workload", "classes", "batch", "training", "torchvision", "training / training"]
    header += ["inference", "torchvision", "plain / off", "exempt / off", "off / off"]
    header += ["device", "commit"]
    rows = [
        [
            *(s["workload"], f"{s['classes']:,}", str(s["batch"])),
            *(f"{s['training'][whose]:,.0f}" for whose in ("ours", "torchvision")),
            f"{s['training']['ours'] / s['training'][OURS_AGAIN]:.3f}",
            *(f"{s['inference'][whose]:,.0f}" for whose in ("off", "torchvision")),
            *(f"{s['tde_over_off'][way]:.3f}" for way in (*TDE[1:], AGAIN)),
            *(s["device"], s["git"]),
        ]
        for s in found
    ]
    return header, rows


def parts_table(
    milliseconds: Mapping[str, Mapping[str, float]],
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: a row for each part of the step, a column for each work."""
    parts = dict.fromkeys(part for spent in milliseconds.values() for part in spent if part != ALL)
    rows = [
        [part, *(f"{spent[part]:.1f}" if part in spent else "-" for spent in milliseconds.values())]
        for part in (*parts, ALL)
    ]
    return ["part", *milliseconds], rows


def _categories(classes: int) -> Categories:
    ids = tuple(range(1, classes + 1))
    return Categories(ids, tuple(map(str, ids)), (1,) * classes, (1,) * classes)


def _trainer(
    model: nn.Module, losses: Callable[[], Any], config: DetectionConfig, fabric: Fabric
) -> Callable[[], None]:
    # learning rate 0: random targets must not change the weights while the clock runs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=config.train.momentum)

    def step() -> None:
        model.train()
        with fabric.autocast():
            named = losses()
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(named.values())).sum().backward()
        moving = [p for p in model.parameters() if p.grad is not None]
        clip_grad_norm_(moving, LONGEST_GRADIENT)
        optimizer.step()

    return step


def _scorer(detector: Detector, batch: DetectionBatch, tde: Tde) -> Callable[[], Any]:
    def detect() -> Any:
        detector.cascade.tde, detector.cascade.alpha = tde, 1.5
        return detector(batch)

    return detect


def _time_rounds(
    works: Mapping[str, Callable[[], Any]], wait: Callable[[], None], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Measure the seconds of each round of each work, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            wait()
            began = time.perf_counter()
            for _ in range(calls):
                work()
            wait()
            seconds[name].append(time.perf_counter() - began)
    return {name: each[1:] for name, each in seconds.items()}


def _per_second(seconds: Mapping[str, list[float]], images: int) -> dict[str, float]:
    return {name: images / statistics.median(each) for name, each in seconds.items()}


def _ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))
