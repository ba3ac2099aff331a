"""Training throughput on full-size photographs, from their source to the updated weights.

The same network is fed in four ways: from prepared data on the device (the ceiling), from resident
images, from a stream of files, and from files through a plain torchvision DataLoader. Resident
images and the stream are timed over an epoch including its start; the ceiling and the DataLoader
after a warm-up. Preparation, such as decoding resident images and copying them to the device, is
timed separately.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common.jpegs import generate, make_data
from benchmarks.common.memory import used, watch
from benchmarks.common.words import select_words
from benchmarks.speed.dataloader import build_loader
from benchmarks.speed.rates import (
    IMAGES,
    WAYS,
    Throughput,
    read_modes,
    read_valid,
    save,
    set_aside,
    sort_ways,
    table,
    write_table,
)
from benchmarks.speed.step import wait
from longtail.cli.output import print_lines
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.data.base import Data, Split
from longtail.data.decoding.host import count_cores
from longtail.data.decoding.workers import receive
from longtail.runs.plan import resolve
from longtail.training.batches import ResidentBatches, count_workers, place
from longtail.training.cuda_graph import build_step
from longtail.training.launch import find_accelerator, launch
from longtail.training.trainer import Trainer

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

WARM_UP = 5
"""Warm-up steps of the ceiling."""
INTERVAL = 2.0
"""Seconds between two samples of the host memory."""
IGNORED = ("replicas", "save_seconds", "workers")
"""Machine options that the figures do not depend on, and `workers`, which each figure records."""


@dataclass(frozen=True)
class ThroughputSetting:
    """Configuration and images to measure."""

    config: Config
    folder: Path
    """Folder of the generated images."""
    images: int
    """Rows of the data set."""
    files: int
    """Number of different image files."""
    scale: float = 1.0
    """Factor of the sides of the images; 1 gives the sizes of ImageNet."""
    steps: int = 96
    """Timed steps of the ceiling and the DataLoader; for the latter rounded up to a multiple of its
    workers, because they deliver batches in bursts."""


def run_command(command: "BenchCommand") -> None:
    """Measure on a CUDA device, then write the table."""
    if find_accelerator(command.machine) != "cuda":
        raise UserError(
            "images needs a CUDA device: steps of 512 images of 224 pixels are too large for a "
            "CPU. Run it without --device cpu on a machine that has one"
        )
    config = Config.preset("imagenet-lt").with_options(method="deconfound")
    images = command.images or IMAGES
    setting = ThroughputSetting(
        config=replace(config, machine=command.machine),
        folder=command.runs / "images",
        images=images,
        files=min(images, 4096),
    )
    out = command.results / "images" / "images.json"
    print_lines(*table(bench_images(setting, out, command.only)))
    print(f"written to {write_table(command.results)}")


def bench_images(
    setting: ThroughputSetting, out: Path, only: Sequence[str] = ()
) -> list[Throughput]:
    """Measure the ways with a word of `only` that are not in `out`; rewrite it after each.

    Figures in `out` of another setting, device, version, commit or number of workers are measured
    again; the old file is renamed to NAME-before-N.json with the first free N. If a way fails, the
    others are still measured, and the error is raised at the end.

    Returns:
        All figures that are then in `out`.
    """
    config, batch = setting.config, setting.config.train.batch_size
    wanted = select_words(WAYS, only)
    if setting.images < batch:
        raise UserError(f"--images {setting.images}: must be at least a batch of {batch}")
    paths = generate(setting.folder, setting.files, scale=setting.scale)
    fabric = launch(config.machine)
    about = _about(setting, paths)
    found = read_valid(about, count_workers(config.machine), out)
    replaced = read_modes(out) - set(found)
    failed: list[str] = []
    for mode, way in _ways(setting, paths, fabric).items():
        if mode in found or mode not in wanted:
            continue
        try:
            found[mode] = _measure_alone(way, fabric)
        except UserError as error:
            failed.append(f"{mode}: {error}")  # only its text: its frames hold device memory
        else:
            if replaced:
                set_aside(out)
                replaced.clear()
            save(sort_ways(found), about, out)
    if failed:
        others = [f"The other ways are in {out}."] if found else []
        raise UserError("\n".join([*failed, *others]))
    return sort_ways(found)


def _measure_alone(way: Callable[[], Throughput], fabric: Fabric) -> Throughput:
    """Measure `way` after freeing the device, and add its preparation time."""
    gc.collect()  # a dead reference cycle may hold a graph, and capturing does not collect it
    if fabric.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    throughput = way()
    seconds = time.perf_counter() - began
    return replace(throughput, preparing_seconds=seconds - throughput.seconds)


def _ways(
    setting: ThroughputSetting, paths: Sequence[Path], fabric: Fabric
) -> dict[str, Callable[[], Throughput]]:
    """Map each of `WAYS` to the function that measures it."""
    config = setting.config

    def data(stream: bool) -> Data:
        files = replace(config.files, stream=stream)
        return make_data(setting.folder, paths, setting.images, files)

    return {
        "ceiling": lambda: _ceiling(setting, data(True), fabric),
        "resident": lambda: _epoch("resident", config, data(False), fabric),
        "streaming": lambda: _epoch("streaming", config, data(True), fabric),
        "dataloader": lambda: _dataloader(setting, data(True), paths, fabric),
    }


def _epoch(mode: str, config: Config, data: Data, fabric: Fabric) -> Throughput:
    """Measure a whole epoch of the engine, including its start."""
    replica = _build_trainer(config, data, fabric)
    if mode == "resident" and not isinstance(replica.batches, ResidentBatches):
        raise UserError(
            f"{len(data.train):,} images do not fit on the device, or in memory and on disk, and "
            "would be streamed: pass a smaller --images to measure resident ones"
        )
    advance = build_step([replica])
    wait(fabric)
    with watch(used, INTERVAL) as host:
        began = time.perf_counter()
        replica.begin_epoch(0)
        for size in replica.step_sizes:
            advance((size,))
        wait(fabric)
        seconds = time.perf_counter() - began
    fed_by = type(replica.batches).__name__
    return _make_throughput(mode, fed_by, config, sum(replica.step_sizes), seconds, fabric, host)


def _ceiling(setting: ThroughputSetting, data: Data, fabric: Fabric) -> Throughput:
    """Measure images that are on the device and need no preparation."""
    config = setting.config.with_options(augment="none")
    side = setting.config.train.crop_size
    assert side is not None
    count = min(len(data.train), 4 * config.train.batch_size)
    images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8)
    data = replace(data, train=Split(images, data.train.labels[:count]))
    replica = _build_trainer(config, data, fabric)
    advance = build_step([replica])

    def step() -> None:
        replica.cursor.zero_()
        advance((replica.full_batch,))

    seconds, host = _time_steps(step, WARM_UP, setting.steps, fabric)
    seen = setting.steps * replica.full_batch
    return _make_throughput("ceiling", "ResidentBatches", config, seen, seconds, fabric, host)


def _dataloader(
    setting: ThroughputSetting, data: Data, paths: Sequence[Path], fabric: Fabric
) -> Throughput:
    """Measure the common pipeline with a DataLoader."""
    config = setting.config
    size, batch = config.train.crop_size, config.train.batch_size
    assert size is not None
    workers, pin = count_workers(config.machine), fabric.device.type == "cuda"
    loader = build_loader(paths, data.train.labels.tolist(), size, batch, workers, pin=pin)
    replica = _build_trainer(config, data, fabric)
    optimizer = replica.optimizer
    assert optimizer is not None
    replica.state.lr.fill_(config.train.lr)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    arriving = batches()

    def step() -> None:
        images, target = (part.to(fabric.device, non_blocking=True) for part in receive(arriving))
        images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(replica.wrapped(images).logits, target)
        fabric.backward(loss)
        optimizer.step()

    replica.model.train()
    turn = max(1, workers)
    steps = math.ceil(setting.steps / turn) * turn
    # the warm-up uses up the batches that workers had ready
    seconds, host = _time_steps(step, 2 * turn, steps, fabric)
    return _make_throughput(
        "dataloader", "DataLoader", config, steps * batch, seconds, fabric, host
    )


def _build_trainer(config: Config, data: Data, fabric: Fabric) -> Trainer:
    """Build a trainer at its first epoch."""
    config, method = resolve(config)
    resident = place(data, config.train, config.machine, fabric.device, method.views)
    replica = Trainer(config, method, data, resident, fabric)
    replica.enter(0, resumed=False)
    if resident.capturable:
        replica.begin_epoch(0)  # capture needs the draws of an epoch
    return replica


def _time_steps(
    step: Callable[[], None], warm_up: int, timed: int, fabric: Fabric
) -> tuple[float, list[int | None]]:
    """Return the seconds of `timed` steps after the warm-up, and samples of the host memory."""
    for _ in range(warm_up):
        step()
    wait(fabric)
    with watch(used, INTERVAL) as host:
        began = time.perf_counter()
        for _ in range(timed):
            step()
        wait(fabric)
        seconds = time.perf_counter() - began
    return seconds, host


def _make_throughput(
    mode: str,
    fed_by: str,
    config: Config,
    images: int,
    seconds: float,
    fabric: Fabric,
    host: Sequence[int | None],
) -> Throughput:
    cuda = fabric.device.type == "cuda"
    return Throughput(
        mode=mode,
        fed_by=fed_by,
        images=images,
        workers=0 if fed_by == "ResidentBatches" else count_workers(config.machine),
        images_per_second=images / seconds,
        device_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        host_bytes=tuple(host),
    )


def _about(setting: ThroughputSetting, paths: Sequence[Path]) -> dict[str, Any]:
    """Return the conditions that all figures depend on, except the workers."""
    config = setting.config
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    return {
        **environment(cuda=find_accelerator(config.machine) == "cuda"),
        "cores": count_cores(),
        "machine": {k: v for k, v in asdict(config.machine).items() if k not in IGNORED},
        "backbone": config.backbone,
        "batch_size": config.train.batch_size,
        "rows": setting.images,
        "files": setting.files,
        "mean_kilobytes": round(kilobytes, 1),
        "image_size": config.files.image_size,
        "crop_size": config.train.crop_size,
    }
