"""Benchmarks other than recipes of classifiers, by the name that users type."""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.versions import ROOMS
from longtail.cli.output import is_first_process, print_lines, show
from longtail.core.config import Config
from longtail.core.errors import UserError

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that has no recipes, or recipes of detectors."""

    run: Callable[["BenchCommand"], None]
    takes: tuple[str, ...] = ()
    """The `OPTIONS` that it reads."""
    room: str = ROOMS[-1]
    """Room of the package that makes its results, with the rooms above it."""


RESULTS = Path("results")
"""The committed results, seen from the root of a checkout."""
OPTIONS = (
    *("seeds", "only", "tries", "images", "rows", "variants", "shard", "processes", "minutes"),
    *("out", "held_out", "epochs", "again"),
)
"""Options of `python -m benchmarks` that only some benchmarks read."""
RECIPE_OPTIONS = ("seeds", "only")
"""The `OPTIONS` that all folders of recipes read."""
CLASSIFIER_OPTIONS = (*RECIPE_OPTIONS, "processes", "minutes", "again")
"""The `OPTIONS` that a folder of recipes of classifiers reads."""
DETECTION_OPTIONS = (*RECIPE_OPTIONS, "shard", "again")
"""The `OPTIONS` that a folder of recipes of detectors reads."""


def find_room(name: str) -> str:
    """Return the room that makes the results of a benchmark; `runs` makes those of classifiers."""
    return BENCHMARKS[name].room if name in BENCHMARKS else "runs"


def check_options(command: "BenchCommand") -> None:
    """Raise if the benchmark would ignore an option, or if there are no seeds or no time."""
    takes = BENCHMARKS[command.name].takes if command.name in BENCHMARKS else CLASSIFIER_OPTIONS
    for option in OPTIONS:
        if option not in takes and getattr(command, option) != getattr(type(command), option):
            flag = option.replace("_", "-")
            raise UserError(f"{command.name} has no --{flag}: leave it out")
    if command.seeds is not None and command.seeds < 1:
        raise UserError(f"--seeds {command.seeds}: must be at least 1")
    if command.processes < 1:
        raise UserError(f"--processes {command.processes}: must be at least 1")
    if command.processes > 1 and command.machine.devices * command.machine.nodes > 1:
        raise UserError("--processes is for one device: leave --devices and --nodes out")
    if command.minutes is not None and not command.minutes > 0:  # nan is not, either
        raise UserError(f"--minutes {command.minutes:g}: must be above 0")


def _speed(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import speed
    from longtail.data.load import load

    config = Config.preset("cifar100-lt:100").with_options(
        method="deconfound", device=command.machine.device
    )
    data = load("cifar100-lt:100", root=command.root)
    found = speed.bench_speed(config, data, command.results / "speed" / "speed.json")
    header, rows = speed.table(found)
    print_lines(header, rows)


def _sharing(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import sharing
    from longtail.training.launch import find_accelerator

    config = Config.preset("cifar100-lt:100").with_options(method="deconfound", root=command.root)
    config = replace(config, machine=command.machine)
    cuda = find_accelerator(command.machine) == "cuda"
    out = command.results / "speed" / "sharing.json" if cuda else None
    print_lines(*sharing.table(sharing.bench_sharing(config, out)))
    print(f"written to {out}" if out else "not written: a CPU only shows that the benchmark runs")


def _augmentations(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import augmentations
    from longtail.data.load import load

    config = Config.preset("cifar100-lt:100").with_options(backbone="resnet32", method="deconfound")
    config = replace(config, machine=command.machine)
    data = load("cifar100-lt:100", root=command.root)
    out = command.results / "speed" / "augmentations.json"
    found = augmentations.bench_augmentations(config, data, out, command.only)
    print_lines(*augmentations.table(found))


def _prices(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import prices
    from longtail.data.load import load

    config = replace(Config.preset("cifar100-lt:100"), machine=command.machine)
    data = load("cifar100-lt:100", root=command.root)
    found = prices.bench_prices(config, data, command.results / "speed" / "prices.json")
    print_lines(*prices.table(found))


def _compactness(command: "BenchCommand") -> None:
    from benchmarks import bench, compactness
    from longtail.core.console import Console

    recipe_bench = bench.ClassifierBench.open(
        compactness.BENCH, recipes=command.recipes, results=command.results, runs=command.runs
    )
    recipe_bench = recipe_bench.again("runs") if command.again else recipe_bench
    cells = compactness.cells(recipe_bench, command.only or compactness.ONLY, command.seeds or 1)
    for recipe, seed in compactness.select_missing(recipe_bench, cells):
        print(f"{recipe.cell}  {recipe.name}  seed {seed}")
    print(compactness.describe_work(recipe_bench, cells))
    if command.dry_run:
        return
    with Console() as console:
        measured = compactness.bench_compactness(
            recipe_bench, cells, root=command.root, machine=command.machine, progress=console
        )
    print_lines(*compactness.table(measured))
    print(f"written to {compactness.write_table(command.results)}")


def _images(command: "BenchCommand") -> None:
    if command.dry_run:
        raise UserError(
            "images runs for about five minutes and has nothing to list: leave --dry-run out"
        )
    import torch

    from benchmarks import rates, throughput

    if command.machine.device == "cpu" or not torch.cuda.is_available():
        raise UserError(
            "images needs a CUDA device: steps of 512 images of 224 pixels are too large for a "
            "CPU. Run it without --device cpu on a machine that has one"
        )
    config = Config.preset("imagenet-lt").with_options(method="deconfound")
    setting = throughput.ThroughputSetting(
        config=replace(config, machine=command.machine),
        folder=command.runs / "images",
        images=command.images,
        files=min(command.images, 4096),
    )
    out = command.results / "images" / "images.json"
    print_lines(*rates.table(throughput.bench_images(setting, out, command.only)))
    print(f"written to {rates.write_table(command.results)}")


def _embeddings(command: "BenchCommand") -> None:
    from benchmarks import embeddings

    if command.root is None:
        raise UserError("bench embeddings needs --root, a folder of .npz files of longtail embed")
    cells = embeddings.missing(command.root, command.results, command.seeds or 3, command.only)
    if not embeddings.has_imbalanced_learn():
        print("imbalanced-learn is not installed: skipping oversampling")
    print(f"{len(cells)} fits to do")
    if command.dry_run:
        return
    device = "cuda" if command.machine.device == "cuda" else "cpu"  # comparable times by default
    for cell in embeddings.bench_embeddings(cells, command.results, device):
        print(f"{cell.file.stem}  {cell.classifier}  seed {cell.seed}")
    print(f"written to {embeddings.write_table(command.results)}")


def _stream(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import embeddings, stream

    files = embeddings.list_files(command.root) if command.root else []
    pools = [stream.Pool.read(file) for file in files] or [stream.Pool.digits()]
    for path in stream.bench_stream(pools, command.seeds or 3, command.results):
        print(path)
    print(f"written to {stream.write_table(command.results)}")


def _trust(command: "BenchCommand") -> None:
    from benchmarks import trust, trust_page
    from benchmarks.frontier import read_lines
    from longtail.core.console import Console

    sets = trust.list_sets(command.recipes, command.root, command.machine, command.epochs)
    chosen = [s for s in sets if not command.only or any(word in s.name for word in command.only)]
    units = trust.list_units(chosen, command.seeds or 3, command.shard)
    done = read_lines(sorted((command.results / trust.NAME).glob("*.jsonl")))
    wanted = trust.select_missing(units, done)
    for unit in wanted:
        print(f"{unit.set.name}  {unit.part}  seed {unit.seed}")
    if command.dry_run:
        return
    with Console() as console:
        places = {"runs": command.runs, "results": command.results}
        for _ in trust.bench_trust(wanted, **places, progress=console):
            pass
    print(f"written to {trust_page.write_table(command.results)}")


def _cost(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import cost
    from longtail.training.launch import launch

    device = launch(command.machine).device.type
    print(f"written to {cost.bench_cost(command.results, device)}")


def _scale(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import scale

    if command.rows < 1000:
        raise UserError(f"--rows {command.rows}: must be at least 1,000")
    print(f"written to {scale.bench_scale(command.results, command.rows)}")


def _audit(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import audit_copies, audit_speed

    parts = ("copies", "speed")
    for word in command.only:
        if word not in parts:
            raise UserError(f"--only {word}: the parts are {', '.join(parts)}")
    if not command.only or "copies" in command.only:
        for path in audit_copies.bench_copies(command.root, command.seeds or 3, command.results):
            print(path)
        print(f"written to {audit_copies.write_table(command.results)}")
    if not command.only or "speed" in command.only:
        default = type(command).images  # that of ImageNet-LT takes 13 GB of disk
        images = 20_000 if command.images == default else command.images
        print(json.dumps(audit_speed.bench_audit(command.runs / "audit", images)))


def _serving(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import serving

    default = type(command).images
    page = serving.bench_serving(
        command.runs / "serving",
        command.results,
        images=20_000 if command.images == default else command.images,
        rounds=command.seeds or 1,
        backbone="timm/resnet50",
        machine=command.machine,
        only=command.only,
    )
    print(f"written to {page}")


def _frontier(command: "BenchCommand") -> None:
    from benchmarks import frontier, frontier_page
    from longtail.core.console import Console

    units = frontier.read_units(
        command.variants, seeds=command.seeds, held_out=command.held_out, only=command.only
    )
    out = command.out or command.results / "frontier" / f"{Path(command.variants).stem}.jsonl"
    files = [*sorted((command.results / "frontier").glob("*.jsonl")), out]
    wanted = frontier.select_missing(units, command.shard, frontier.read_lines(files))
    for unit in wanted:
        print(f"{unit.variant}  seed {unit.seed}")
    if command.dry_run:
        return
    with Console() as console:
        lines = list(
            frontier.bench_frontier(
                wanted,
                out,
                runs=command.runs / "frontier",
                root=command.root,
                machine=command.machine,
                progress=console,
            )
        )
    if lines:
        print_lines(*frontier.table(lines))
        print(f"written to {out}")
    print(f"written to {frontier_page.write_frontier_page(command.results)}")


def _integrations(command: "BenchCommand") -> None:
    from benchmarks import frontier, integrations

    folder = command.results / integrations.NAME
    out = command.out or folder / f"{integrations.NAME}.jsonl"

    def read_done() -> list[dict[str, Any]]:
        return frontier.read_lines(sorted({*folder.glob("*.jsonl"), out}))

    units = integrations.select_units(command.seeds or 3, command.only, command.shard, read_done())
    for unit in units:
        print(f"{unit.trainer}  seed {unit.seed}")
    if command.dry_run:
        return
    for line in integrations.bench_integrations(
        units,
        out,
        recipes=command.recipes,
        runs=command.runs,
        root=command.root,
        machine=command.machine,
    ):
        print(f"{line['trainer']}  seed {line['seed']}  class mean {line['class_mean']:.1f}")
    # read again: other shards have written meanwhile
    page = integrations.write_integrations_page(command.results, read_done())
    print(f"written to {out} and {page}")


def _sampler(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import sampler

    # the docs show committed figures only
    page = Path("docs/tail.md") if command.results == type(command).results else None
    print(f"written to {sampler.bench_sampler(command.results, page)}")


def _check(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks.check import KNOWN, check_checkout, check_evidence
    from benchmarks.versions import is_shallow
    from longtail.core.names import count_noun

    check_checkout(command.results)
    known = check_evidence(command.results.parent, command.recipes, command.results)
    faults = f"but for {count_noun(known, 'known fault')}, listed in {command.results / KNOWN}"
    if is_shallow(command.results):
        print(
            f"each figure has a file, {faults}. Not checked, because this clone is shallow: "
            "commits and versions (git fetch --unshallow)"
        )
        return
    print(
        "each result file has a clean commit, each table one version, and each figure a file, "
        f"{faults}"
    )


def _refuse_dry_run(command: "BenchCommand") -> None:
    if command.dry_run:
        raise UserError(f"{command.name} has nothing to list before it runs: leave --dry-run out")


def _detection(command: "BenchCommand") -> None:
    from benchmarks.detection import DetectionBench
    from longtail.core.console import Console
    from longtail.detection.config import DetectionMachineConfig

    recipe_bench = DetectionBench.open(
        command.name, recipes=command.recipes, results=command.results, runs=command.runs
    )
    recipe_bench = recipe_bench.again(find_room(command.name)) if command.again else recipe_bench
    wanted = recipe_bench.missing(command.seeds, command.only)
    wanted = recipe_bench.take_shard(wanted, command.seeds, command.shard)
    for recipe, seed in wanted:
        print(f"{recipe.place}  seed {seed}")
    trainings = len(recipe_bench.trainings(wanted))
    work = f"{len(wanted)} results to make, from {trainings} trainings"
    print(recipe_bench.describe_work(work, wanted))
    if command.dry_run:
        return
    if wanted:
        recipe_bench.prepare_runs()
    try:
        with Console() as console:
            machine = DetectionMachineConfig.from_machine(command.machine)
            recipe_bench.run(wanted, root=command.root, machine=machine, progress=console)
    finally:
        if is_first_process() and recipe_bench.started:
            print(f"written to {recipe_bench.write_page()}")


def _refuse_test_server(command: "BenchCommand") -> None:
    raise UserError(
        "lvis-test is evaluated by the LVIS server, which has the annotations: train with "
        f"longtail detect train --recipe {command.recipes}/lvis-test/..., then write the file for "
        "the server with longtail detect predict RUN --lvis-json FILE --annotations "
        "lvis_v0.5_image_info_test.json"
    )


def _detection_speed(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import detection_speed

    found = detection_speed.bench_detection_speed(
        command.results, detection_speed.workloads(command.only), command.machine.device
    )
    print_lines(*detection_speed.table(found))
    print(f"written to {detection_speed.write_table(command.results)}")


def _lvis_step(command: "BenchCommand") -> None:
    from benchmarks import lvis_step
    from longtail.training.launch import find_accelerator

    cuda = find_accelerator(command.machine) == "cuda"
    if command.dry_run:
        settings = lvis_step.list_settings(command.only, cuda=cuda)
        for line in lvis_step.describe_work(settings, command.results, command.machine):
            print(line)
        return
    found = lvis_step.bench_lvis_step(command.results, command.runs, command.only, command.machine)
    print_lines(*lvis_step.make_table(found))
    if cuda:
        print(f"written to {lvis_step.write_table(command.results)}")
    else:
        print("not written: the tiny network of a CPU only shows that the benchmark runs")


def _attack(command: "BenchCommand") -> None:
    _refuse_dry_run(command)
    from benchmarks import attack, attack_cost, attack_long

    tallies = []
    for tally in attack.run_attacks(command.tries, command.results / "attack", command.only):
        tallies.append(tally)
        print(f"{tally.name}: {tally.outcomes.total():,} tries, {tally.failed:,} failures")
        for failure in tally.failures:
            show(f"  seed {failure['seed']}: {failure['outcome']}, {failure['detail']}")
    print_lines(*attack.table(tallies))
    out = command.results / "attack"
    if not command.only or "long" in command.only:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(attack_long.measure_long_runs(out, Path(folder)), indent=1))
    if not command.only or "cost" in command.only:
        measured = attack_cost.measure_cost(out, command.root, command.machine)
        print(json.dumps(measured, indent=1))
    if any(tally.failed for tally in tallies):
        sys.exit(1)


BENCHMARKS: dict[str, Benchmark] = {
    "attack": Benchmark(_attack, takes=("only", "tries")),
    "check": Benchmark(_check),
    "speed": Benchmark(_speed),
    "sharing": Benchmark(_sharing),
    "prices": Benchmark(_prices),
    "augmentations": Benchmark(_augmentations, takes=("only",)),
    "images": Benchmark(_images, takes=("images", "only")),
    "compactness": Benchmark(_compactness, takes=(*RECIPE_OPTIONS, "again"), room="reporting"),
    "embeddings": Benchmark(_embeddings, takes=("seeds", "only")),
    "stream": Benchmark(_stream, takes=("seeds",)),
    "cost": Benchmark(_cost),
    "trust": Benchmark(_trust, takes=("seeds", "only", "shard", "epochs")),
    "scale": Benchmark(_scale, takes=("rows",)),
    "audit": Benchmark(_audit, takes=("seeds", "only", "images")),
    "serving": Benchmark(_serving, takes=("seeds", "only", "images")),
    "frontier": Benchmark(
        _frontier, takes=("seeds", "only", "variants", "shard", "out", "held_out")
    ),
    "integrations": Benchmark(_integrations, takes=("seeds", "only", "shard", "out")),
    "sampler": Benchmark(_sampler),
    "shapes-lvis": Benchmark(_detection, takes=DETECTION_OPTIONS, room="detection"),
    "shapes-lvis-1k": Benchmark(_detection, takes=DETECTION_OPTIONS, room="detection"),
    "lvis": Benchmark(_detection, takes=DETECTION_OPTIONS, room="detection"),
    "lvis-test": Benchmark(_refuse_test_server),
    "detection-speed": Benchmark(_detection_speed, takes=("only",)),
    "lvis-step": Benchmark(_lvis_step, takes=("only",)),
}
"""Benchmarks by name."""
