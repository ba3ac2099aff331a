"""Speed of predict and embed over JPEG files, beside the bare network and a plain DataLoader.

The bare network computes on images that are on the device already. Every way also records the CPU
seconds of its processes, which other work on the machine changes less than the clock. Ways are
measured in turn, several times; the best of each counts. No pipeline can be faster than `limit`:
where network and decoding share the cores, the rate of both one after the other; on a GPU, the rate
of decoding, if it is below that of the network.
"""

import itertools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.common.jpegs import generate, make_data
from benchmarks.common.result_files import read_all, write_json, write_page
from benchmarks.common.words import select_words
from benchmarks.speed import ray_speed
from longtail.cli.prediction_file import write_predictions
from longtail.cli.prediction_lines import Lines, format_csv
from longtail.core.config import DataConfig, MachineConfig
from longtail.core.environment import environment, versions
from longtail.core.files import write_tensors
from longtail.data.decoding.host import count_cores
from longtail.data.decoding.workers import CHUNK, read_chunks
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD
from longtail.evaluation import tables
from longtail.nn.linear_heads import LinearHead
from longtail.nn.preprocess import to_channels_last
from longtail.serving.embeddings import embed
from longtail.serving.model import ModelDescription, ServedModel
from longtail.serving.predictor import Predictor, load_model
from longtail.serving.user_inputs import open_files, read_batches
from longtail.serving.write import save_pretrained
from longtail.training.features import choose_batch_size
from longtail.training.head_kinds import describe_head
from longtail.training.launch import launch
from longtail.training.model import Blueprint

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "serving"
SIZE = 224
FILES = 4096
"""Different files, at most; the images cycle through them and stay in the page cache."""
CLASSES = 1000
IMAGES = 20_000
"""Images by default."""
WAYS = ("decode", "bare", "predict", "bare features", "embed", "dataloader")
AGAINST = {"predict": "bare", "dataloader": "bare", "embed": "bare features"}
"""Ways, and the bare network that each is compared with."""


def run_command(command: "BenchCommand") -> None:
    """Measure a ResNet-50, then write the table."""
    page = bench_serving(
        command.runs / "serving",
        command.results,
        images=command.images or IMAGES,
        rounds=command.seeds or 1,
        backbone="timm/resnet50",
        machine=command.machine,
        only=command.only,
    )
    print(f"written to {page}")


def bench_serving(
    folder: Path,
    results: Path,
    *,
    images: int,
    rounds: int,
    backbone: str,
    machine: MachineConfig,
    only: Sequence[str] = (),
) -> Path:
    """Measure the ways that contain a word of `only`, by default all, in turn; return the page."""
    ways = select_words([*WAYS, *ray_speed.WAYS], only)
    if not only and not ray_speed.is_installed():
        ways = list(WAYS)
    paths = list(itertools.islice(itertools.cycle(generate(folder, min(images, FILES))), images))
    fabric = launch(machine)
    measure = _prepare(folder, paths, backbone, fabric)
    for number in range(rounds):
        for way in ways:
            out = results / NAME / f"{fabric.device.type}-{way.replace(' ', '-')}-{number}.json"
            if out.exists():
                continue
            began = time.perf_counter(), _cpu_seconds()
            rate = measure[way]()
            content = {
                **environment(cuda=fabric.device.type == "cuda"),
                **{"cores": count_cores(), "threads": torch.get_num_threads()},
                **{"way": way, "round": number, "images": images, "backbone": backbone},
                "seconds": time.perf_counter() - began[0],
                "cpu_seconds": _cpu_seconds() - began[1],
                "images_per_second": rate,
            }
            write_json(out, content)
    return write_table(results)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of those that it has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _prepare(
    folder: Path, paths: Sequence[Path], backbone: str, fabric: Fabric
) -> dict[str, Callable[[], float]]:
    """Build the network, and map each way to a function that returns its images a second."""
    saved, out = _save_model(folder, backbone), folder / "out"
    device = "cuda" if fabric.device.type == "cuda" else "cpu"
    model = load_model(saved, device=device)
    weights = folder / f"{backbone}.safetensors"
    write_tensors(weights, model.model.backbone.state_dict())
    config = DataConfig(image_size=SIZE, stream=True, min_count=1)
    data = make_data(folder, paths[:FILES], len(paths), config)
    names = list(map(str, paths))

    def timed(work: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            return len(paths) / (time.perf_counter() - began)

        return run

    def predict() -> None:
        lines = Lines(format_csv, "image,rank,class,probability\n")
        write_predictions(out.with_suffix(".csv"), model, saved, names, lines, {}, fabric)

    def write_features() -> None:
        embed(None, out.with_suffix(".npz"), data=data, weights=weights, backbone=backbone)

    def decode() -> None:
        read = _decode_in_processes if device == "cuda" else _decode_in_threads
        for _ in read(names, model):
            pass

    return {
        "decode": timed(decode),
        "bare": timed(lambda: _run_bare(model, len(paths), fabric)),
        "predict": timed(predict),
        "bare features": timed(lambda: _run_bare_features(model, len(paths), fabric)),
        "embed": timed(write_features),
        "dataloader": timed(lambda: _run_dataloader(model, paths, fabric)),
        **ray_speed.prepare(saved, names),
    }


def _decode_in_threads(names: Sequence[str], model: Predictor) -> Iterator[object]:
    return read_batches(names, model.about.blueprint, size=model.batch_size)


def _decode_in_processes(names: Sequence[str], model: Predictor) -> Iterator[object]:
    """Decode the files as for a GPU, without copying them there."""
    files, workers = open_files(names, model.about.blueprint)
    if not workers:
        return _decode_in_threads(names, model)
    places = [chunk.tolist() for chunk in files.rows.split(CHUNK)]
    size = CHUNK * files.store.row_bytes()
    return read_chunks(files.decode, places, workers=workers, chunk_bytes=size)


def _save_model(folder: Path, backbone: str) -> Path:
    """Save an untrained model of 1,000 classes."""
    from longtail.nn import backbones

    head = LinearHead(backbones.build(backbone, 3, (SIZE, SIZE)).dim, CLASSES)
    shape, seen = (3, SIZE, SIZE), (SIZE, SIZE)
    blueprint = Blueprint(backbone, describe_head(head), shape, seen, IMAGENET_MEAN, IMAGENET_STD)
    about = ModelDescription(
        blueprint=blueprint,
        classes=tuple(f"class {number}" for number in range(CLASSES)),
        counts=(1,) * CLASSES,
        alpha=None,
        dial=False,
        metrics={},
        training={},
        version=versions()["longtail"],
    )
    return save_pretrained(ServedModel(blueprint.build(), about), folder / "model")


@torch.no_grad()
def _run_bare(model: Predictor, images: int, fabric: Fabric) -> None:
    """Compute logits of images on the device, in the batches of predict."""
    size = model.batch_size
    batch = torch.randint(256, (size, 3, SIZE, SIZE), dtype=torch.uint8, device=fabric.device)
    for first in range(0, images, size):
        logits: Tensor = model.model(batch[: images - first])
    logits.cpu()


@torch.no_grad()
def _run_bare_features(model: Predictor, images: int, fabric: Fabric) -> None:
    """Compute features of images on the device, in the batches and precision of embed."""
    one = torch.empty(1, 3, SIZE, SIZE)
    size = choose_batch_size(one, fabric.device)
    batch = torch.rand(size, 3, SIZE, SIZE, device=fabric.device)
    network = model.model.backbone  # its weights are laid out channels last already
    for first in range(0, images, size):
        with fabric.autocast():
            features: Tensor = network(to_channels_last(batch[: images - first]))
    features.cpu()


class ResizedImages(Dataset[Tensor]):
    """Files through Pillow and torchvision's transforms."""

    def __init__(self, paths: Sequence[Path]):
        from torchvision import transforms

        steps = [transforms.Resize(SIZE), transforms.CenterCrop(SIZE), transforms.PILToTensor()]
        self.paths, self.transform = paths, transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            pixels: Tensor = self.transform(image.convert("RGB"))
            return pixels


@torch.no_grad()
def _run_dataloader(model: Predictor, paths: Sequence[Path], fabric: Fabric) -> None:
    """Classify the files as a plain script does."""
    cuda, size = fabric.device.type == "cuda", model.batch_size
    loader = DataLoader(ResizedImages(paths), size, num_workers=count_cores(), pin_memory=cuda)
    for batch in loader:
        model.model(batch.to(fabric.device, non_blocking=cuda)).argmax(1).cpu()


def write_table(results: Path) -> Path:
    """Write the page from all files."""
    found = read_all(results / NAME)
    parts = [(__doc__ or "").split("\n\n", 1)[1]]
    for device in dict.fromkeys(one["device"] for one in found):
        mine = [one for one in found if one["device"] == device]
        first = mine[0]
        parts += [
            f"## {device}",
            f"{first['backbone']} at {SIZE} pixels, {first['cores']} cores, {first['threads']} "
            "threads of torch.",
            tables.markdown(*_table(mine)),
        ]
    return write_page(results, NAME, parts)


def _table(found: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    rate = {o["way"]: 0.0 for o in found}
    cost = dict.fromkeys(rate, float("inf"))
    for one in found:
        way = one["way"]
        rate[way] = max(rate[way], one["images_per_second"])
        cost[way] = min(cost[way], one["cpu_seconds"] / one["images"])
    on_cpu = found[0]["device"].startswith("CPU")
    lines = []
    for way in (way for way in (*WAYS, *ray_speed.WAYS) if way in rate):
        bare = AGAINST.get(way, ray_speed.AGAINST.get(way, ""))
        known, limit = bare in rate, "-"
        if known and "decode" in rate and way in AGAINST:
            after = cost[bare] / (cost[bare] + cost["decode"])
            limit = f"{after if on_cpu else min(1.0, rate['decode'] / rate[bare]):.2f}"
        in_ray = way in ray_speed.WAYS  # its actors are processes of Ray
        lines.append(
            [
                way,
                *(f"{max(o['images'] for o in found if o['way'] == way):,}", f"{rate[way]:,.1f}"),
                "-" if in_ray else f"{1000 * cost[way]:.1f}",
                *(bare or "-", f"{rate[way] / rate[bare]:.2f}" if known else "-"),
                f"{cost[bare] / cost[way]:.2f}" if known and on_cpu and not in_ray else "-",
                limit,
            ]
        )
    header = ["way", "images", "images/s", "CPU ms an image", "against", "rate", "CPU time"]
    return [*header, "limit"], lines
