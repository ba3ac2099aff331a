"""Photographs at full size: images per second from where they are to the new weights.

The same network is fed in several ways: from data already on the device and ready (the ceiling),
from resident images, from a stream of files, and from files by a plain torchvision DataLoader. Ours
are measured over an epoch with its start; the ceiling and the DataLoader once they have warmed up.
What a way does before its clock starts, such as decoding resident images and bringing them to the
device, is timed apart.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from benchmarks.generated import generate, generate_file
from benchmarks.memory import used, watch
from benchmarks.plain import plain_loader
from benchmarks.rates import WAYS, Throughput, in_order, keep, modes, put_aside, save
from benchmarks.speed import wait
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError, unknown
from longtail.data.base import Data, Split
from longtail.data.decoding.host import cores
from longtail.data.decoding.workers import receive
from longtail.runs.plan import resolve
from longtail.training.batches import ResidentBatches, count_workers, place
from longtail.training.cuda_graph import build_step
from longtail.training.launch import launch
from longtail.training.trainer import Trainer

WARM_UP = 5
"""Steps before the clock starts, where it does not run from the beginning."""
INTERVAL = 2.0
"""Seconds between two looks at the host's memory."""
NO_MATTER = ("replicas", "save_seconds", "workers")
"""Of the machine, what no figure depends on; and the workers, which are each figure's own."""


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    config: Config
    folder: Path
    """Where the generated images are."""
    images: int
    """Rows of the data set."""
    files: int
    """Different ones among them."""
    scale: float = 1.0
    """Sides of the images as parts of ImageNet's."""
    steps: int = 96
    """That the ceiling and the DataLoader are measured over; the latter a whole number of times
    its workers, for they bring their batches in bursts."""


def bench_images(setting: Setting, out: Path, only: Sequence[str] = ()) -> list[Throughput]:
    """Measure those ways of `only` (of all) that `out` has not, writing it anew after each.

    What `out` has of another setting, device, version, commit or number of workers is measured
    again, and its file is kept beside it as NAME-before-1.json, or with the next number that is
    free. A way that is not possible here keeps none of the others from being measured, and is told
    at the end.

    Returns:
        All that `out` has then.
    """
    config, batch = setting.config, setting.config.train.batch_size
    for name in only:
        if name not in WAYS:
            raise unknown("way", name, WAYS, f"they are {', '.join(WAYS)}")
    if setting.images < batch:
        raise UserError(f"--images {setting.images} are fewer than a batch: pass {batch} or more")
    paths = generate(setting.folder, setting.files, scale=setting.scale)
    fabric = launch(config.machine)
    asked = only or WAYS
    about = _about(setting, paths)
    found = keep(about, count_workers(config.machine), out)
    replaced = modes(out) - set(found)
    failed: list[str] = []
    for mode, way in _ways(setting, paths, fabric).items():
        if mode in found or mode not in asked:
            continue
        try:
            found[mode] = _apart(way, fabric)
        except UserError as error:
            failed.append(f"{mode}: {error}")  # its text alone: its frames hold device memory
        else:
            if replaced:
                put_aside(out)
                replaced.clear()
            save(in_order(found), about, out)
    if failed:
        others = [f"The other ways are in {out}."] if found else []
        raise UserError("\n".join([*failed, *others]))
    return in_order(found)


def _apart(way: Callable[[], Throughput], fabric: Fabric) -> Throughput:
    """What `way` measures, without what an earlier one left on the device, and all its seconds."""
    gc.collect()  # a dead cycle may hold a graph, and capturing does not collect it
    if fabric.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    measured = way()
    seconds = time.perf_counter() - began
    return replace(measured, preparing_seconds=seconds - measured.seconds)


def _ways(
    setting: Setting, paths: Sequence[Path], fabric: Fabric
) -> dict[str, Callable[[], Throughput]]:
    """How each of `WAYS` is measured."""
    config = setting.config

    def data(stream: bool) -> Data:
        files = replace(config.files, stream=stream)
        return generate_file(setting.folder, paths, setting.images, files)

    return {
        "ceiling": lambda: _ceiling(setting, data(True), fabric),
        "resident": lambda: _epoch("resident", config, data(False), fabric),
        "streaming": lambda: _epoch("streaming", config, data(True), fabric),
        "dataloader": lambda: _dataloader(setting, data(True), paths, fabric),
    }


def _epoch(mode: str, config: Config, data: Data, fabric: Fabric) -> Throughput:
    """A whole epoch as the engine runs it, from its first draw on."""
    replica = _replica(config, data, fabric)
    if mode == "resident" and not isinstance(replica.batches, ResidentBatches):
        raise UserError(
            f"{len(data.train):,} images do not fit the device, or neither memory nor disk, and "
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
    return _measured(mode, fed_by, config, sum(replica.step_sizes), seconds, fabric, host)


def _ceiling(setting: Setting, data: Data, fabric: Fabric) -> Throughput:
    """Images on the device that need nothing done to them."""
    config = setting.config.with_options(augment="none")
    side = setting.config.train.crop_size
    assert side is not None
    count = min(len(data.train), 4 * config.train.batch_size)
    images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8)
    data = replace(data, train=Split(images, data.train.labels[:count]))
    replica = _replica(config, data, fabric)
    advance = build_step([replica])

    def step() -> None:
        replica.cursor.zero_()
        advance((replica.full_batch,))

    seconds, host = _steady(step, WARM_UP, setting.steps, fabric)
    seen = setting.steps * replica.full_batch
    return _measured("ceiling", "ResidentBatches", config, seen, seconds, fabric, host)


def _dataloader(setting: Setting, data: Data, paths: Sequence[Path], fabric: Fabric) -> Throughput:
    """The pipeline that everybody writes."""
    config = setting.config
    size, batch = config.train.crop_size, config.train.batch_size
    assert size is not None
    workers, pin = count_workers(config.machine), fabric.device.type == "cuda"
    loader = plain_loader(paths, data.train.labels.tolist(), size, batch, workers, pin=pin)
    replica = _replica(config, data, fabric)
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
    seconds, host = _steady(step, 2 * turn, steps, fabric)  # what workers had ready is no rate
    return _measured("dataloader", "DataLoader", config, steps * batch, seconds, fabric, host)


def _replica(config: Config, data: Data, fabric: Fabric) -> Trainer:
    """A training at its first epoch."""
    resident = place(data, config.train, config.machine, fabric.device)
    config, method = resolve(config)
    replica = Trainer(config, method, data, resident, fabric)
    replica.enter(0, resumed=False)
    if resident.capturable:
        replica.begin_epoch(0)  # the graph is captured on what an epoch has drawn
    return replica


def _steady(
    step: Callable[[], None], warm_up: int, timed: int, fabric: Fabric
) -> tuple[float, list[int | None]]:
    """Seconds of `timed` steps after those of the warm-up, and the host's memory meanwhile."""
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


def _measured(
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


def _about(setting: Setting, paths: Sequence[Path]) -> dict[str, Any]:
    """All that the figures depend on, but for the workers."""
    config = setting.config
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    return {
        **environment(cuda=torch.cuda.is_available() and config.machine.device != "cpu"),
        "cores": cores(),
        "machine": {k: v for k, v in asdict(config.machine).items() if k not in NO_MATTER},
        "backbone": config.backbone,
        "batch_size": config.train.batch_size,
        "rows": setting.images,
        "files": setting.files,
        "mean_kilobytes": round(kilobytes, 1),
        "image_size": config.files.image_size,
        "crop_size": config.train.crop_size,
    }
