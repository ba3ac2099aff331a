"""Images per second of the training step, compared with the memory roofline.

The roofline counts the fewest bytes a step must move. Every convolution's output is written and
read once in the forward pass, its gradient is written and read once in the backward pass, and it
is read once more there: five passes. Bytes over the measured copy bandwidth give the floor.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.fabric import Fabric
from torch import nn

from benchmarks.common.data_folder import check_data
from benchmarks.common.result_files import check_device, write_json
from longtail.cli.output import print_lines
from longtail.core.config import Config, MachineConfig
from longtail.core.environment import environment
from longtail.data.base import Data
from longtail.data.load import load
from longtail.runs.plan import resolve
from longtail.training.batches import ResidentBatches
from longtail.training.cuda_graph import Sizes, build_step
from longtail.training.inputs import sample_input
from longtail.training.launch import find_accelerator, launch
from longtail.training.trainer import Trainer

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

PASSES = 5


@dataclass(frozen=True)
class Speed:
    """Speed of one way to run the step."""

    mode: str
    """eager, graph, or compiled (and captured as a graph)."""
    precision: str
    backbone: str
    batch_size: int
    replicas: int
    images_per_second: float
    """Images per second over all replicas."""
    capture_seconds: float
    """Seconds from the first call to the first replay; `images_per_second` excludes them."""
    roofline: float
    """Images per second at which the counted bytes fill the measured bandwidth."""


def measure(config: Config, data: Data, fabric: Fabric, replicas: int, seconds: float) -> Speed:
    """Measure the images per second of the engine's step over about `seconds`."""
    trained = build_trainers(config, data, fabric, replicas)
    config = trained[0].config
    captured, step = time_step(trained, seconds)
    size = trained[0].full_batch
    bytes_per_image = (
        PASSES
        * _count_activations(trained[0].model, sample_input(data, config.train))
        * (2 if fabric.device.type == "cuda" and config.machine.precision != "32" else 4)
    )
    return Speed(
        mode=_mode(config.machine),
        precision=config.machine.precision,
        backbone=config.backbone,
        batch_size=size,
        replicas=replicas,
        images_per_second=size * replicas / step,
        capture_seconds=captured,
        roofline=measure_bandwidth(fabric) / bytes_per_image,
    )


def build_trainers(config: Config, data: Data, fabric: Fabric, replicas: int) -> list[Trainer]:
    """Build trainings that differ in their seed, at their first epoch, as a capture needs."""
    config, method = resolve(config)
    resident = ResidentBatches(data, config.train, fabric.device, method.views)
    trained = [
        Trainer(replace(config, seed=seed), method, data, resident, fabric)
        for seed in range(replicas)
    ]
    for replica in trained:
        replica.enter(0, resumed=False)
        replica.begin_epoch(0)
    return trained


def time_step(trained: Sequence[Trainer], seconds: float) -> tuple[float, float]:
    """Return the seconds until the first replay and of a later step, over about `seconds`."""
    began = time.perf_counter()
    advance = build_step(trained)
    wait(trained[0].fabric)
    captured = time.perf_counter() - began

    def run(steps: int) -> float:
        start = time.perf_counter()
        run_steps(trained, advance, steps)
        return time.perf_counter() - start

    run(3)
    steps = max(10, min(2000, int(seconds / (run(10) / 10))))
    return captured, run(steps) / steps


def run_steps(trained: Sequence[Trainer], advance: Callable[[Sizes], None], steps: int) -> None:
    """Take `steps` steps of every training, and wait until the device is idle."""
    sizes = tuple(replica.full_batch for replica in trained)
    for step in range(steps):
        if step % trained[0].division.steps == 0:  # the cursor must stay inside the epoch
            for replica in trained:
                replica.cursor.zero_()
        advance(sizes)
    wait(trained[0].fabric)


def _mode(machine: MachineConfig) -> str:
    if machine.compile:
        return "compiled"
    return "graph" if machine.graph else "eager"


def measure_bandwidth(fabric: Fabric) -> float:
    """Measure the bytes per second, read plus written, of a large copy on the device."""
    megabytes = 1024 if fabric.device.type == "cuda" else 64
    source = torch.randint(255, (megabytes << 20,), dtype=torch.uint8, device=fabric.device)
    target = torch.empty_like(source)
    target.copy_(source)
    wait(fabric)
    start = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    wait(fabric)
    return 10 * 2 * source.numel() / (time.perf_counter() - start)


def variants(config: Config, cuda: bool) -> Iterator[tuple[Config, int]]:
    """Yield the (configuration, replicas) that `python -m benchmarks speed` measures."""
    for backbone in ("resnet32", "resnet32-dual"):
        for precision in ("32", "bf16") if cuda else ("32",):
            base = replace(config, backbone=backbone).with_options(precision=precision)
            yield base.with_options(graph=False), 1
            for replicas in (1, 8) if cuda else ():
                yield base, replicas
    if cuda:
        dual = replace(config, backbone="resnet32-dual").with_options(precision="bf16")
        yield dual, 16
        for replicas in (1, 8):
            yield dual.with_options(compile=True), replicas


def run_command(command: "BenchCommand") -> None:
    """Measure the steps of cifar100-lt, and print them."""
    check_data(["cifar100-lt"], command.root)
    config = Config.preset("cifar100-lt:100").with_options(
        method="deconfound", device=command.machine.device
    )
    data = load("cifar100-lt:100", root=command.root)
    print_lines(*table(bench_speed(config, data, command.results / "speed" / "speed.json")))


def bench_speed(config: Config, data: Data, out: Path, seconds: float = 1.0) -> list[Speed]:
    """Measure every variant, rewriting `out` after each."""
    cuda = find_accelerator(config.machine) == "cuda"
    about = environment(cuda=cuda)
    check_device(out, about["device"])
    found: list[Speed] = []
    for variant, replicas in variants(config, cuda):
        found.append(measure(variant, data, launch(variant.machine), replicas, seconds))
        figures = [asdict(speed) for speed in found]
        write_json(out, {**about, "speeds": figures})
    return found


def table(found: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for a terminal."""
    header = ["mode", "precision", "backbone", "replicas", "images/s", "of roofline", "capture s"]
    rows = [
        [
            *(s.mode, s.precision, s.backbone, str(s.replicas), f"{s.images_per_second:,.0f}"),
            *(f"{100 * s.images_per_second / s.roofline:.0f} %", f"{s.capture_seconds:.1f}"),
        ]
        for s in found
    ]
    return header, rows


def _count_activations(model: nn.Module, image: torch.Tensor) -> int:
    """Count the elements of all convolution outputs for one image."""
    elements = 0

    def count(module: nn.Module, args: object, output: torch.Tensor) -> None:
        nonlocal elements
        elements += output[0].numel()

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    image = image.to(next(model.parameters()).device)
    training = model.training
    with torch.no_grad():
        model.eval()(image)
    model.train(training)
    for hook in hooks:
        hook.remove()
    return elements


def wait(fabric: Fabric) -> None:
    """Block until the device is idle."""
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()
