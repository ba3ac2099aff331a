"""Photographs at full size: images per second from the file to the new weights.

The same network is fed in several ways: from data already on the device and ready (the ceiling),
from resident images, from a stream, and by a plain torchvision DataLoader. Ours are measured over
an epoch with its start; the ceiling and the DataLoader once they have warmed up.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from longtail import methods
from longtail.config import Config
from longtail.data import memory
from longtail.data.base import Data, Split
from longtail.data.generated import generate, generated
from longtail.data.listed import LISTED
from longtail.engine import launch
from longtail.graph import stepper
from longtail.replica import Replica
from longtail.runs import environment, replacing
from longtail.streaming import can_decode, place, workers_of

WARM_UP = 5
"""Steps before the clock starts, where it does not run from the beginning."""
EPOCHS = 90
IMAGES = LISTED["imagenet-lt"].lists["train"][1]


@dataclass(frozen=True)
class Throughput:
    """One way of feeding the network."""

    mode: str
    """ceiling, resident, streaming, streaming-device (decoding there), or dataloader."""
    backbone: str
    batch_size: int
    images: int
    """That the clock ran for."""
    workers: int
    images_per_second: float
    device_bytes: int
    """Most that was allocated on the device; 0 on the CPU."""
    host_bytes: tuple[int, ...]
    """Memory of this process and its workers, without file cache, all along the epoch."""

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
    steps: int = 60
    """That the ceiling and the DataLoader are measured over."""


def bench_images(setting: Setting, out: Path) -> list[Throughput]:
    """Measure every way, writing `out` anew after each."""
    config, paths = setting.config, generate(setting.folder, setting.files, scale=setting.scale)
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
    found: list[Throughput] = []
    for way in ways.values():
        if fabric.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        found.append(way())
        _save(found, setting, paths, out)
    return found


def _epoch(mode: str, config: Config, data: Data, fabric: Fabric) -> Throughput:
    """A whole epoch as the engine runs it, from its first draw on."""
    replica = _replica(config, data, fabric)
    advance = stepper([replica])
    _wait(fabric)
    began, host = time.perf_counter(), [memory.used()]
    replica.begin_epoch(0)
    sizes = replica.step_sizes
    for done, size in enumerate(sizes, start=1):
        advance((size,))
        if done % max(1, len(sizes) // 8) == 0:
            host.append(memory.used())
    _wait(fabric)
    seconds = time.perf_counter() - began
    return _measured(mode, config, sum(sizes), seconds, fabric, host)


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

    return _steady("ceiling", config, replica.batch, setting.steps, step, fabric)


def _dataloader(setting: Setting, data: Data, paths: Sequence[Path], fabric: Fabric) -> Throughput:
    """The pipeline that everybody writes: PIL images, torchvision's transforms, a DataLoader."""
    config = setting.config
    size, batch = config.train.crop_size, config.train.batch_size
    assert size is not None
    replica = _replica(config, data, fabric)
    optimizer = replica.optimizer
    assert optimizer is not None
    replica.state.lr.fill_(config.train.lr)
    loader = DataLoader(
        _PlainImages(paths, data.train.labels.tolist(), size, data),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers_of(config.machine),
        pin_memory=fabric.device.type == "cuda",
    )

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    arriving = batches()

    def step() -> None:
        images, target = (part.to(fabric.device, non_blocking=True) for part in next(arriving))
        images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(replica.wrapped(images).logits, target)
        fabric.backward(loss)
        optimizer.step()

    replica.model.train()
    for _ in range(2 * workers_of(config.machine)):  # what workers had ready is no rate
        step()
    return _steady("dataloader", config, batch, setting.steps, step, fabric)


class _PlainImages(Dataset[tuple[Tensor, int]]):
    """One image at a time through torchvision."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], size: int, data: Data):
        from torchvision import transforms

        self.paths, self.labels = paths, labels
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.4, 0.4, 0.4),
                transforms.ToTensor(),
                transforms.Normalize(data.mean, data.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self.paths[index % len(self.paths)]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


def _replica(config: Config, data: Data, fabric: Fabric) -> Replica:
    """A training at its first epoch."""
    resident = place(data, config.train, config.machine, fabric.device)
    method = methods.build(config.method, config.options)
    replica = Replica(config, method, data, resident, fabric)
    replica.enter(0, resumed=False)
    if resident.captured:
        replica.begin_epoch(0)  # the graph is captured on what an epoch has drawn
    return replica


def _steady(
    mode: str, config: Config, batch: int, steps: int, step: Callable[[], None], fabric: Fabric
) -> Throughput:
    """`steps` steps after the warm-up."""
    for _ in range(WARM_UP):
        step()
    _wait(fabric)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(fabric)
    seconds = time.perf_counter() - began
    return _measured(mode, config, steps * batch, seconds, fabric, [memory.used()])


def _measured(
    mode: str, config: Config, images: int, seconds: float, fabric: Fabric, host: Sequence[int]
) -> Throughput:
    cuda = fabric.device.type == "cuda"
    return Throughput(
        mode=mode,
        backbone=config.backbone,
        batch_size=config.train.batch_size,
        images=images,
        workers=workers_of(config.machine) if mode not in ("ceiling", "resident") else 0,
        images_per_second=images / seconds,
        device_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        host_bytes=tuple(host),
    )


def _save(found: Sequence[Throughput], setting: Setting, paths: Sequence[Path], out: Path) -> None:
    """Write the figures with all that they depend on."""
    config = setting.config
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    content = {
        **environment(cuda=torch.cuda.is_available() and config.machine.device != "cpu"),
        "cores": os.cpu_count(),
        "rows": setting.images,
        "files": setting.files,
        "mean_kilobytes": round(kilobytes, 1),
        "image_size": config.files.image_size,
        "crop_size": config.train.crop_size,
        "throughputs": [{**asdict(way), "hours_of_90_epochs": way.hours} for way in found],
        "extrapolated": {
            f"{way.mode}: hours of 90 epochs on 8 such devices, if they did not wait": way.hours / 8
            for way in found
        },
    }
    with replacing(out) as path:
        path.write_text(json.dumps(content, indent=1) + "\n")


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


def _wait(fabric: Fabric) -> None:
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()
