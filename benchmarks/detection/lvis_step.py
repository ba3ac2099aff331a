"""Steps of a detector at the full size of LVIS v1: seconds, memory, and hours of its schedules.

The training loop reads generated photographs with masks, as it would read LVIS. The batch is the
paper's if it fits the device, else half of it, and so on. Nothing is learnt, so that the foreground
consists of the true boxes: late in a real training more masks are trained on.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric

from benchmarks.common.result_files import read_all, read_result, write_json, write_page
from benchmarks.common.words import select_words
from benchmarks.detection.lvis_photographs import make_photographs
from benchmarks.speed.step import wait
from longtail.cli.output import print_lines
from longtail.core.config import MachineConfig
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.detection.config import DetectionConfig, DetectionMachineConfig
from longtail.detection.data.batches import DetectionBatch
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.data.feeds import AHEAD
from longtail.detection.network.detector import build_detector
from longtail.detection.train import Loop, draw_batches
from longtail.evaluation import tables
from longtail.training.launch import find_accelerator, launch

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "lvis-step"
NOTE = (
    "Steps of De-confound's Cascade Mask R-CNN with 1,203 classes, from generated photographs and "
    "masks in the sizes and numbers of LVIS v1. The batch is the paper's 16, or what fits the "
    "device. The columns have the seconds of a step on a batch that is on the device, and with "
    "reading, resizing and packing the photographs; the most memory that was allocated; and the "
    "hours of 20 epochs, the paper's, and of 24, the 2x schedule, of 100,170 images with reading. "
    "The batch on the device is always the same and those that are read differ, so a step with "
    "reading can come out faster. Hours and memory are lower bounds: there is no evaluation, and "
    "the weights do not change while the clock runs, so that masks are trained on the objects "
    "themselves, 13 an image, where late in a real training up to 128 proposals overlap objects."
)
IMAGES = 100_170
"""Training images of LVIS v1."""
EPOCHS = (20, 24)
"""The paper's schedule, and the 2x schedule of the framework it used."""
WARM_UP = 3
"""Steps before the clock starts."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepSetting:
    """A network to measure."""

    name: str
    config: DetectionConfig
    photographs: int = 128
    """Photographs to generate."""
    scale: float = 1.0
    """Factor of their sides."""
    steps: int = 12
    """Steps that are timed."""


@dataclass(frozen=True)
class StepSpeed:
    """Figures of one network."""

    name: str
    backbone: str
    image_size: int
    classes: int
    batch: int
    """Images per step: those of the setting if they fit, else fewer."""
    too_large: tuple[int, ...]
    """Batches that did not fit the device."""
    seconds: float
    """Of a step on a batch that is on the device."""
    fed_seconds: float
    """Of a step with reading its photographs."""
    workers: int
    gigabytes: float | None
    """Most memory allocated on the device, in GiB; None on a CPU."""
    hours: Mapping[str, float]
    """By number of epochs of LVIS v1, with reading; empty on a CPU, where the network is tiny."""


def run_command(command: "BenchCommand") -> None:
    """Measure the networks, or describe the work; write the table of a GPU."""
    cuda = find_accelerator(command.machine) == "cuda"
    if command.dry_run:
        settings = list_settings(command.only, cuda=cuda)
        for line in describe_work(settings, command.results, command.machine):
            print(line)
        return
    found = bench_lvis_step(command.results, command.runs, command.only, command.machine)
    print_lines(*make_table(found))
    if cuda:
        print(f"written to {write_table(command.results)}")
    else:
        print("not written: the tiny network of a CPU only shows that the benchmark runs")


def list_settings(only: Sequence[str], *, cuda: bool) -> list[StepSetting]:
    """Return R101 and X101 at 800 pixels; on a CPU a tiny network that only shows that it runs."""
    config = DetectionConfig.preset("lvis-v1").with_options(method="deconfound")
    if not cuda:
        if only:
            raise UserError(
                f"--only {only[0]}: a CPU measures a tiny network only. Leave it out, or use a GPU"
            )
        tiny = config.with_options(
            **dict(backbone="resnet10t", image_size=64, max_size=107, batch_size=2, width=16),
            **dict(features=32, proposals=20, rois=16, anchor_scale=1.0),
        )
        return [StepSetting("tiny", tiny, photographs=4, scale=0.1, steps=1)]
    every = [
        StepSetting("r101", config),
        StepSetting("x101", config.with_options(backbone="resnext101_64x4d.tv_in1k")),
    ]
    chosen = select_words((each.name for each in every), only)
    return [each for each in every if each.name in chosen]


def describe_work(
    settings: Sequence[StepSetting], results: Path, machine: MachineConfig
) -> list[str]:
    """Return a line for each network, then how long its steps take if they were measured before."""
    lines, price, unknown, devices = [], 0.0, [], dict[str, None]()
    workers = DetectionMachineConfig.from_machine(machine).workers
    for setting in settings:
        config = setting.config
        untimed, fed = count_read_steps(workers, setting.steps)
        held = WARM_UP + setting.steps
        lines.append(
            f"{setting.name}  {config.backbone}  {config.model.image_size} pixels  "
            f"{config.train.batch_size} images a step, or as many as fit  {held + untimed + fed} "
            f"steps  {setting.photographs} generated photographs"
        )
        file = results / NAME / f"{setting.name}.json"
        if file.is_file():
            before = read_result(file)
            price += held * before["seconds"] + (untimed + fed) * before["fed_seconds"]
            devices[before["device"]] = None
        else:
            unknown.append(setting.name)
    work = count_noun(len(settings), "network to measure", "networks to measure")
    if unknown:
        why = f"{results / NAME} has no step of {', '.join(unknown)}"
        return [*lines, f"{work}, no price: {why}"]
    price_of_steps = f"about {price:.0f} s of steps, as measured on {', '.join(devices)}"
    return [*lines, f"{work}, {price_of_steps}, and making photographs and networks"]


def bench_lvis_step(
    results: Path, runs: Path, only: Sequence[str], machine: MachineConfig
) -> list[dict[str, Any]]:
    """Measure each network into its own file, RESULTS/lvis-step/NAME.json; on a CPU into none."""
    fabric = launch(machine)
    cuda = fabric.device.type == "cuda"
    if not cuda and machine.workers is None:
        machine = replace(machine, workers=0)  # four small photographs
    found = []
    for setting in list_settings(only, cuda=cuda):
        folder = runs / NAME / f"{setting.photographs}-{setting.scale:g}"
        data = make_photographs(folder, setting.photographs, scale=setting.scale)
        speed = measure_step(setting, data, fabric, DetectionMachineConfig.from_machine(machine))
        found.append({**environment(cuda=cuda), **asdict(speed)})
        if cuda:
            write_json(results / NAME / f"{setting.name}.json", found[-1])
    return found


def measure_step(
    setting: StepSetting, data: DetectionSet, fabric: Fabric, machine: DetectionMachineConfig
) -> StepSpeed:
    """Measure steps with the largest batch that fits the device.

    Raises:
        UserError: if not even one image fits.
    """
    batch, too_large = setting.config.train.batch_size, []
    epochs = EPOCHS if fabric.device.type == "cuda" else ()
    while batch:
        config = setting.config.with_options(batch_size=batch, workers=machine.workers)
        try:
            seconds, fed, gigabytes = _time_steps(config, data, fabric, setting.steps)
        except torch.OutOfMemoryError:
            log.warning("%s: a batch of %d images does not fit the device", setting.name, batch)
            too_large.append(batch)
            batch //= 2
        else:
            return StepSpeed(
                name=setting.name,
                backbone=config.backbone,
                image_size=config.model.image_size,
                classes=len(data.categories.ids),
                batch=batch,
                too_large=tuple(too_large),
                seconds=seconds,
                fed_seconds=fed,
                workers=machine.workers,
                gigabytes=gigabytes,
                hours={str(n): n * IMAGES / batch * fed / 3600 for n in epochs},
            )
        gc.collect()  # the failed step is in a cycle with its error
        torch.cuda.empty_cache()
    raise UserError(
        f"{setting.name}: not even one image fits the device. Free its memory, or use a larger one"
    )


def _time_steps(
    config: DetectionConfig, data: DetectionSet, fabric: Fabric, steps: int
) -> tuple[float, float, float | None]:
    """Return the seconds of a step, those with reading, and the most memory in GiB."""
    cuda = fabric.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    # not fresh: downloads no weights, but freezes what training would freeze
    detector = build_detector(config, data.categories, fresh=False, images=len(data))
    loop = Loop(config, detector.to(fabric.device), data, fabric)
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.0  # random weights must not diverge while the clock runs
    loop.detector.train()
    skipped, fed_steps = count_read_steps(config.machine.workers, steps)
    epochs = (draw_batches(config, data, epoch, 0, 1) for epoch in count())
    order = list(islice(chain.from_iterable(epochs), skipped + fed_steps))
    (held,) = loop.feed.read(order[:1])
    _run(loop, [held] * WARM_UP)
    seconds = _time(lambda: _run(loop, [held] * steps), fabric) / steps
    batches = iter(loop.feed.read(order))
    _run(loop, islice(batches, skipped))
    fed = _time(lambda: _run(loop, batches), fabric) / fed_steps
    return seconds, fed, torch.cuda.max_memory_allocated() / 2**30 if cuda else None


def count_read_steps(workers: int, steps: int) -> tuple[int, int]:
    """Return the number of steps with reading before the clock starts, and while it runs."""
    # each worker prepares some batches ahead, which the clock must not count as read for nothing
    return max(WARM_UP, AHEAD * workers), max(steps, 2 * workers)


def _run(loop: Loop, batches: Iterable[DetectionBatch]) -> None:
    for batch in batches:
        loop.step(batch)


def _time(work: Callable[[], None], fabric: Fabric) -> float:
    """Return the seconds of `work`, until the device is idle."""
    wait(fabric)
    began = time.perf_counter()
    work()
    wait(fabric)
    return time.perf_counter() - began


def write_table(results: Path) -> Path:
    """Write RESULTS/lvis-step.md from the result files."""
    found = read_all(results / NAME)
    return write_page(results, NAME, [NOTE, tables.markdown(*make_table(found))])


def make_table(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows."""
    header = ["network", "image size", "classes", "batch", "did not fit", "seconds a step"]
    header += ["with reading", "images per second", "GiB"]
    header += [*(f"hours of {epochs} epochs" for epochs in EPOCHS), "device", "commit"]
    rows = [
        [
            *(s["backbone"], str(s["image_size"]), f"{s['classes']:,}", str(s["batch"])),
            ", ".join(map(str, s["too_large"])) or "-",
            *(f"{s['seconds']:.3f}", f"{s['fed_seconds']:.3f}"),
            f"{s['batch'] / s['fed_seconds']:.1f}",
            "-" if s["gigabytes"] is None else f"{s['gigabytes']:.1f}",
            *(f"{s['hours'][n]:.1f}" if n in s["hours"] else "-" for n in map(str, EPOCHS)),
            *(s["device"], str(s["git"])),
        ]
        for s in found
    ]
    return header, rows
