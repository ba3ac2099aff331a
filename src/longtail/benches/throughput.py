"""Photographs at full size: images per second from the file to the new weights.

The same network is fed in several ways: from data already on the device and ready (the ceiling),
from resident images, from a stream, and by a plain torchvision DataLoader. Ours are measured over
an epoch with its start; the ceiling and the DataLoader once they have warmed up.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from longtail.benches import write_json
from longtail.benches.generated import generate, generated
from longtail.benches.memory import used, watched
from longtail.benches.plain import plain_loader
from longtail.benches.speed import wait
from longtail.config import Config
from longtail.data.base import Data, Split
from longtail.data.cores import cores
from longtail.data.listed import LISTED
from longtail.engine import launch
from longtail.errors import UserError
from longtail.graph import stepper
from longtail.jobs import settled
from longtail.provenance import environment
from longtail.replica import Replica
from longtail.resident import Resident
from longtail.streaming import can_decode, place, received, workers_of

WARM_UP = 5
"""Steps before the clock starts, where it does not run from the beginning."""
INTERVAL = 2.0
"""Seconds between two looks at the host's memory."""
EPOCHS = 90
IMAGES = LISTED["imagenet-lt"].lists["train"][1]


@dataclass(frozen=True)
class Throughput:
    """One way of feeding the network."""

    mode: str
    """ceiling, resident, streaming, streaming-device (decoding there), or dataloader."""
    fed_by: str
    """The class that did it."""
    images: int
    """That the clock ran for."""
    workers: int
    images_per_second: float
    device_bytes: int
    """Most that was allocated on the device; 0 on the CPU."""
    host_bytes: tuple[int, ...]
    """Memory of this process and its workers, without file cache, all along."""

    @property
    def hours(self) -> float:
        """That 90 epochs of ImageNet-LT take at this rate."""
        return EPOCHS * IMAGES / self.images_per_second / 3600


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


def bench_images(setting: Setting, out: Path) -> list[Throughput]:
    """Measure every way that `out` has not, writing it anew after each.

    What `out` has of another setting, device, version or commit is measured again. A way that is
    not possible here keeps none of the others from being measured, and is told at the end.
    """
    config, batch = setting.config, setting.config.train.batch_size
    if setting.images < batch:
        raise UserError(f"--images {setting.images} are fewer than a batch: pass {batch} or more")
    paths = generate(setting.folder, setting.files, scale=setting.scale)
    fabric = launch(config.machine)

    def data(stream: bool) -> Data:
        files = replace(config.files, stream=stream)
        return generated(setting.folder, paths, setting.images, files)

    on_device = config.with_options(decode="device")
    ways: dict[str, Callable[[], Throughput]] = {
        "ceiling": lambda: _ceiling(setting, data(True), fabric),
        "resident": lambda: _epoch("resident", config, data(False), fabric),
        "streaming": lambda: _epoch("streaming", config, data(True), fabric),
        "streaming-device": lambda: _epoch("streaming-device", on_device, data(True), fabric),
        "dataloader": lambda: _dataloader(setting, data(True), paths, fabric),
    }
    if not can_decode(fabric.device):
        del ways["streaming-device"]
    about = _about(setting, paths)
    kept = {way.mode: way for way in _kept(about, out)}
    found: list[Throughput] = []
    failed: list[str] = []
    for mode, way in ways.items():
        if fabric.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            found.append(kept.pop(mode) if mode in kept else way())
        except UserError as error:
            failed.append(f"{mode}: {error}")  # its text alone: its frames hold device memory
        _save([*found, *kept.values()], about, out)
    if failed:
        raise UserError("\n".join([*failed, f"The other ways are in {out}."]))
    return found


def _epoch(mode: str, config: Config, data: Data, fabric: Fabric) -> Throughput:
    """A whole epoch as the engine runs it, from its first draw on."""
    replica = _replica(config, data, fabric)
    if mode == "resident" and not isinstance(replica.resident, Resident):
        raise UserError(
            f"{len(data.train):,} images do not fit the device, or neither memory nor disk, and "
            "would be streamed: pass a smaller --images to measure resident ones"
        )
    advance = stepper([replica])
    wait(fabric)
    with watched(used, INTERVAL) as host:
        began = time.perf_counter()
        replica.begin_epoch(0)
        for size in replica.step_sizes:
            advance((size,))
        wait(fabric)
        seconds = time.perf_counter() - began
    fed_by = type(replica.resident).__name__
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
    advance = stepper([replica])

    def step() -> None:
        replica.cursor.zero_()
        advance((replica.batch,))

    seconds, host = _steady(step, WARM_UP, setting.steps, fabric)
    seen = setting.steps * replica.batch
    return _measured("ceiling", "Resident", config, seen, seconds, fabric, host)


def _dataloader(setting: Setting, data: Data, paths: Sequence[Path], fabric: Fabric) -> Throughput:
    """The pipeline that everybody writes."""
    config = setting.config
    size, batch = config.train.crop_size, config.train.batch_size
    assert size is not None
    workers, pin = workers_of(config.machine), fabric.device.type == "cuda"
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
        images, target = (part.to(fabric.device, non_blocking=True) for part in received(arriving))
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


def _replica(config: Config, data: Data, fabric: Fabric) -> Replica:
    """A training at its first epoch."""
    resident = place(data, config.train, config.machine, fabric.device)
    config, method = settled(config)
    replica = Replica(config, method, data, resident, fabric)
    replica.enter(0, resumed=False)
    if resident.captured:
        replica.begin_epoch(0)  # the graph is captured on what an epoch has drawn
    return replica


def _steady(
    step: Callable[[], None], warm_up: int, timed: int, fabric: Fabric
) -> tuple[float, list[int]]:
    """Seconds of `timed` steps after those of the warm-up, and the host's memory all along."""
    with watched(used, INTERVAL) as host:
        for _ in range(warm_up):
            step()
        wait(fabric)
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
    host: Sequence[int],
) -> Throughput:
    cuda = fabric.device.type == "cuda"
    return Throughput(
        mode=mode,
        fed_by=fed_by,
        images=images,
        workers=0 if fed_by == "Resident" else workers_of(config.machine),
        images_per_second=images / seconds,
        device_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        host_bytes=tuple(host),
    )


def _about(setting: Setting, paths: Sequence[Path]) -> dict[str, Any]:
    """All that the figures depend on."""
    config = setting.config
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    return {
        **environment(cuda=torch.cuda.is_available() and config.machine.device != "cpu"),
        "cores": cores(),
        "machine": asdict(config.machine),
        "backbone": config.backbone,
        "batch_size": config.train.batch_size,
        "rows": setting.images,
        "files": setting.files,
        "mean_kilobytes": round(kilobytes, 1),
        "image_size": config.files.image_size,
        "crop_size": config.train.crop_size,
    }


def _kept(about: Mapping[str, Any], out: Path) -> list[Throughput]:
    """What `out` has, if all that it depends on is as it is now."""
    if not out.exists():
        return []
    stored = json.loads(out.read_text())
    if any(stored.get(name) != value for name, value in about.items() if name != "git"):
        return []
    if _commit(stored.get("git")) != _commit(about["git"]):
        return []
    names = [field.name for field in fields(Throughput)]
    ways = [{name: way[name] for name in names} for way in stored["throughputs"]]
    return [Throughput(**{**way, "host_bytes": tuple(way["host_bytes"])}) for way in ways]


def _commit(state: str | None) -> str:
    """`out` itself may be what has changed since the commit."""
    return (state or "").removesuffix("-dirty")


def _save(found: Sequence[Throughput], about: Mapping[str, Any], out: Path) -> None:
    """Write the figures with all that they depend on."""
    content = {
        **about,
        "throughputs": [{**asdict(way), "hours_of_90_epochs": way.hours} for way in found],
        "extrapolated": {
            f"{way.mode}: hours of 90 epochs on 8 such devices, if they did not wait": way.hours / 8
            for way in found
        },
    }
    write_json(out, content)


def table(found: Sequence[Throughput]) -> tuple[list[str], list[list[str]]]:
    """Header and rows, for a terminal."""
    ceiling = found[0].images_per_second
    header = ["mode", "images/s", "of ceiling", "device GiB", "host GiB", "hours of 90 epochs"]
    rows = [
        [
            *(way.mode, f"{way.images_per_second:,.0f}"),
            f"{100 * way.images_per_second / ceiling:.0f} %",
            *(f"{way.device_bytes / 2**30:.1f}", f"{max(way.host_bytes) / 2**30:.1f}"),
            f"{way.hours:.1f}",
        ]
        for way in found
    ]
    return header, rows
