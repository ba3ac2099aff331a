"""The benchmarks that are not a folder of recipes for classifiers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longtail.cli.output import is_first_process, print_lines
from longtail.core.config import Config
from longtail.core.errors import UserError

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


@dataclass(frozen=True)
class Benchmark:
    """A bench whose recipes are no classifiers', or that has none."""

    run: Callable[["BenchCommand"], None]
    takes: tuple[str, ...] = ()
    """Which of `OPTIONS` it reads."""


OPTIONS = ("seeds", "only", "images", "rows")
"""Those of `python -m benchmarks` that not every bench reads."""
OF_RECIPES = ("seeds", "only")
"""What a folder of recipes reads of them."""


def check_options(asked: "BenchCommand") -> None:
    """Refuse an option that the bench would ignore, and no seed at all."""
    takes = MEASURED[asked.name].takes if asked.name in MEASURED else OF_RECIPES
    for option in OPTIONS:
        if option not in takes and getattr(asked, option) != getattr(type(asked), option):
            raise UserError(f"bench {asked.name} has no --{option}: leave it out")
    if asked.seeds is not None and asked.seeds < 1:
        raise UserError(f"--seeds {asked.seeds}: at least one seed must be run")


def _speed(asked: "BenchCommand") -> None:
    _measures_at_once(asked)
    from benchmarks import speed
    from longtail.data.load import load

    config = Config.preset("cifar100-lt:100").with_options(
        method="deconfound", device=asked.machine.device
    )
    data = load("cifar100-lt:100", root=asked.root)
    found = speed.bench_speed(config, data, asked.results / "speed" / "speed.json")
    header, rows = speed.table(found)
    print_lines(header, rows)


def _prices(asked: "BenchCommand") -> None:
    _measures_at_once(asked)
    from benchmarks import prices
    from longtail.data.load import load

    config = replace(Config.preset("cifar100-lt:100"), machine=asked.machine)
    data = load("cifar100-lt:100", root=asked.root)
    found = prices.bench_prices(config, data, asked.results / "speed" / "prices.json")
    print_lines(*prices.table(found))


def _compactness(asked: "BenchCommand") -> None:
    from benchmarks import bench, compactness
    from longtail.cli.output import Console

    opened = bench.ClassifierBench.open(
        compactness.BENCH, recipes=asked.recipes, results=asked.results, runs=asked.runs
    )
    cells = compactness.cells(opened, asked.only or compactness.ONLY, asked.seeds or 1)
    for recipe, seed in cells:
        print(f"{recipe.cell}  {recipe.name}  seed {seed}")
    if asked.dry_run:
        return
    with Console() as console:
        measured = compactness.bench_compactness(
            opened, cells, root=asked.root, machine=asked.machine, progress=console
        )
    print_lines(*compactness.table(measured))
    print(f"written to {compactness.write_table(asked.results)}")


def _images(asked: "BenchCommand") -> None:
    if asked.dry_run:
        raise UserError("bench images measures at once, for about five minutes: no --dry-run")
    import torch

    from benchmarks import rates, throughput

    if asked.machine.device == "cpu" or not torch.cuda.is_available():
        raise UserError(
            "bench images measures a CUDA device, and none is asked for or there: steps of 512 "
            "images of 224 pixels are too large for a CPU. Run it where there is one"
        )
    config = Config.preset("imagenet-lt").with_options(method="deconfound")
    setting = throughput.Setting(
        config=replace(config, machine=asked.machine),
        folder=asked.runs / "images",
        images=asked.images,
        files=min(asked.images, 4096),
    )
    out = asked.results / "images" / "images.json"
    print_lines(*rates.table(throughput.bench_images(setting, out, asked.only)))


def _embeddings(asked: "BenchCommand") -> None:
    from benchmarks import embedded

    if asked.root is None:
        raise UserError("bench embeddings needs --root, a folder of .npz files of longtail embed")
    cells = embedded.missing(asked.root, asked.results, asked.seeds or 3, asked.only)
    if not embedded.has_imbalanced_learn():
        print("imbalanced-learn is not installed: oversampling is left out")
    print(f"{len(cells)} fits to do")
    if asked.dry_run:
        return
    device = "cuda" if asked.machine.device == "cuda" else "cpu"  # times of one kind by default
    for cell in embedded.bench_embeddings(cells, asked.results, device):
        print(f"{cell.file.stem}  {cell.classifier}  seed {cell.seed}")
    print(f"written to {embedded.write_table(asked.results)}")


def _stream(asked: "BenchCommand") -> None:
    _measures_at_once(asked)
    from benchmarks import stream

    files = sorted(asked.root.glob("*.npz")) if asked.root else []
    pools = [stream.Pool.of(file) for file in files] or [stream.Pool.digits()]
    for path in stream.bench_stream(pools, asked.seeds or 3, asked.results):
        print(path)
    print(f"written to {stream.write_table(asked.results)}")


def _cost(asked: "BenchCommand") -> None:
    _measures_at_once(asked)
    from benchmarks import cost
    from longtail.training.launch import launch

    device = launch(asked.machine).device.type
    print(f"written to {cost.bench_cost(asked.results, device)}")


def _scale(asked: "BenchCommand") -> None:
    _measures_at_once(asked)
    from benchmarks import scale

    if asked.rows < 1000:
        raise UserError(f"--rows {asked.rows}: scale begins at 1,000 rows")
    print(f"written to {scale.bench_scale(asked.results, asked.rows)}")


def _measures_at_once(asked: "BenchCommand") -> None:
    if asked.dry_run:
        raise UserError(f"bench {asked.name} measures at once, for some minutes: no --dry-run")


def _detection(asked: "BenchCommand") -> None:
    from benchmarks.detection import DetectionBench
    from longtail.cli.output import Console
    from longtail.detection.config import DetectionMachineConfig

    opened = DetectionBench.open(
        asked.name, recipes=asked.recipes, results=asked.results, runs=asked.runs
    )
    wanted = opened.missing(asked.seeds, asked.only)
    for recipe, seed in wanted:
        print(f"{recipe.place}  seed {seed}")
    trainings = len(opened.trainings(wanted))
    print(opened.ahead(f"{len(wanted)} results to make, from {trainings} trainings", wanted))
    if asked.dry_run:
        return
    try:
        with Console() as console:
            machine = DetectionMachineConfig.from_machine(asked.machine)
            opened.run(wanted, root=asked.root, machine=machine, progress=console)
    finally:
        if is_first_process() and opened.begun:
            print(f"written to {opened.write_page()}")


def _test_server(asked: "BenchCommand") -> None:
    raise UserError(
        "the figures of lvis-test are those of LVIS's server, which has the annotations: train "
        f"with longtail detect train --recipe {asked.recipes}/lvis-test/..., then write what it "
        "judges with longtail detect predict RUN --lvis-json FILE --annotations "
        "lvis_v0.5_image_info_test.json"
    )


def _detection_speed(asked: "BenchCommand") -> None:
    _measures_at_once(asked)
    from benchmarks import detection_speed

    found = detection_speed.bench_speed(
        asked.results, detection_speed.workloads(asked.only), asked.machine.device
    )
    print_lines(*detection_speed.table(found))
    print(f"written to {detection_speed.write_table(asked.results)}")


MEASURED: dict[str, Benchmark] = {
    "speed": Benchmark(_speed),
    "prices": Benchmark(_prices),
    "images": Benchmark(_images, takes=("images", "only")),
    "compactness": Benchmark(_compactness, takes=OF_RECIPES),
    "embeddings": Benchmark(_embeddings, takes=("seeds", "only")),
    "stream": Benchmark(_stream, takes=("seeds",)),
    "cost": Benchmark(_cost),
    "scale": Benchmark(_scale, takes=("rows",)),
    "shapes-lvis": Benchmark(_detection, takes=OF_RECIPES),
    "lvis": Benchmark(_detection, takes=OF_RECIPES),
    "lvis-test": Benchmark(_test_server),
    "detection-speed": Benchmark(_detection_speed, takes=("only",)),
}
"""By what the user types."""
