"""Trust: adapting to a class mix, calibration, answer sets, unknown images and new classes.

Every training holds a fifth of each class out for calibration, unless the data has a validation
part. A unit is one training with the post-hoc methods that share it, or a training without some
classes that are added afterwards. Every unit appends one line of JSON as soon as it has ended.
Several processes can share a device: each takes its share of the units, skips those that have a
line already, and resumes what was interrupted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.classifiers import pricing
from benchmarks.common.data_folder import check_data, list_missing
from benchmarks.common.result_files import append_line, read_lines
from benchmarks.common.shards import describe_trainings, take_shard
from benchmarks.common.words import select_words
from benchmarks.trust.figures import ScoredRun, measure
from benchmarks.trust.new_classes import measure_extension
from longtail.core.config import Config, DataConfig, MachineConfig
from longtail.core.console import Console
from longtail.core.environment import commit
from longtail.core.plain import read_text
from longtail.data.base import Data
from longtail.data.load import load
from longtail.evaluation.result import round_floats
from longtail.evaluation.scoring import Features, extract_parts
from longtail.evaluation.trust import Trust
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.runs.reopen import reopen
from longtail.runs.store import CLASS_MEANS
from longtail.serving.embeddings import embed
from longtail.training.loop import Progress

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "trust"
TRAININGS = {
    "baseline": ("baseline", "logit-adjustment", "decouple-tau-norm"),
    "deconfound": ("deconfound", "deconfound-tde", "deconfound-self-prior"),
    "balanced-softmax": ("balanced-softmax",),
}
"""Trainings, and the methods that share each of them."""
METHODS = tuple(method for methods in TRAININGS.values() for method in methods)
EXTEND = "extend"
"""The unit that leaves classes out and adds them again."""
HELD_OUT = 0.2
SAME = (
    *("alpha", "tau", "recipe_id", "training_id", "weights_sha256", "subset_sha256"),
    *("device", "versions"),
)
"""Fields that a measurement copies from the result of its run."""


@dataclass(frozen=True)
class TrustSet:
    """A data set, its recipe, and where images of other classes come from."""

    config: Config
    unknown: str = ""
    """Data set whose test images show no class of this one; empty for none."""
    adds_classes: bool = False
    """Whether classes are left out and added again."""

    @property
    def name(self) -> str:
        """Folder of its runs and file of its results."""
        return Path(self.config.data).stem.replace(":", "-")

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the data sets that it reads."""
        return (self.config.data, *filter(None, [self.unknown]))

    @cached_property
    def data(self) -> Data:
        """The data with a held-out part."""
        return load(self.config.data, self.config.files)


def embed_frozen(config: Config, folder: Path) -> Config:
    """Embed the images of a frozen network once, and return the recipe of a head on top.

    Every training of a frozen network would compute the same features again.
    """
    out = folder / f"{config.data}.npz"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        network: dict[str, Any] = {"weights": config.weights, "backbone": config.backbone}
        files: dict[str, Any] = {"root": config.files.root, "image_size": config.files.image_size}
        embed(out=out, data=config.data, **network, **files)
    train = replace(config.train, freeze=False)
    plain = replace(config, weights=None, train=train, files=DataConfig(), adaptive=())
    return replace(plain, data=str(out), backbone="identity")


@dataclass(frozen=True)
class TrustUnit:
    """One training."""

    set: TrustSet
    seed: int
    part: str
    """A key of `TRAININGS`, or `EXTEND`."""

    @property
    def key(self) -> dict[str, Any]:
        """Values that tell the line of this unit from others."""
        epochs = self.set.config.train.epochs
        return {"set": self.set.name, "seed": self.seed, "part": self.part, "epochs": epochs}


def list_sets(
    recipes: Path, root: Path | None, machine: MachineConfig, epochs: int | None = None
) -> list[TrustSet]:
    """Return CIFAR-100-LT with the paper's recipe, and PlantDoc-LT with frozen features.

    `epochs` replaces those of the recipes, to try the benchmark out.
    """
    folder = recipes / "plantdoc-lt" / "plantdoc-lt" / "tf_efficientnet_lite0"
    recipe = folder / "baseline+frozen.yaml"
    plants = Config.from_yaml(read_text(recipe), str(recipe))
    cifar = Config.preset("cifar100-lt:100").with_options(val_fraction=HELD_OUT)
    if root is not None:
        plants, cifar = (config.with_options(root=root) for config in (plants, cifar))
        if plants.weights and (root / plants.weights).is_file():
            plants = plants.with_options(weights=str(root / plants.weights))
    plants, cifar = (replace(config, machine=machine) for config in (plants, cifar))
    if epochs is not None:
        plants, cifar = (config.with_options(epochs=epochs) for config in (plants, cifar))
    return [TrustSet(cifar, "cifar10-lt:100", adds_classes=True), TrustSet(plants)]


def run_command(command: "BenchCommand") -> None:
    """Train and measure the missing units of a shard, then write the page."""
    from benchmarks.trust import page

    sets = list_sets(command.recipes, command.root, command.machine, command.epochs)
    chosen = select_words((one.name for one in sets), command.only)
    sets = [one for one in sets if one.name in chosen]
    units = list_units(sets, command.seeds or 3, command.shard)
    wanted = select_missing(units, read_lines(command.results / NAME))
    for unit in wanted:
        print(f"{unit.set.name}  {unit.part}  seed {unit.seed}")
    seconds = estimate_units(wanted, pricing.read_gpu_results(command.results))
    print(describe_trainings(len(wanted), command.results / NAME, seconds))
    names = [name for unit in wanted for name in unit.set.sources]
    if command.dry_run:
        for line in list_missing(names, command.root):
            print(line)
        return
    check_data(names, command.root)
    with Console() as console:
        for _ in bench_trust(wanted, runs=command.runs, results=command.results, progress=console):
            pass
    print(f"written to {page.write_table(command.results)}")


def estimate_units(
    units: Sequence[TrustUnit], results: Sequence[Mapping[str, Any]]
) -> float | None:
    """Estimate the seconds of `units` from results of classifiers: each is one training."""
    prices = [pricing.estimate_seconds([(unit.set, unit.seed)], (), results) for unit in units]
    return None if None in prices else sum(filter(None, prices))


def open_set(one: TrustSet, runs: Path) -> TrustSet:
    """Return the set to train on: of a frozen network, its features in a file below `runs`."""
    frozen = one.config.train.freeze
    return replace(one, config=embed_frozen(one.config, runs / NAME)) if frozen else one


def list_units(sets: Sequence[TrustSet], seeds: int, shard: str) -> list[TrustUnit]:
    """List the units of a shard, as 0/6 is the first of six, seed by seed."""
    units = [
        TrustUnit(one, seed, part)
        for one in sets
        for seed in range(seeds)
        for part in (*TRAININGS, *([EXTEND] if one.adds_classes else []))
    ]
    return take_shard(units, shard)


def select_missing(
    units: Sequence[TrustUnit], done: Sequence[Mapping[str, Any]]
) -> list[TrustUnit]:
    """Select the units that have no line in `done`."""
    return [u for u in units if not any(u.key == {k: line[k] for k in u.key} for line in done)]


def bench_trust(
    units: Sequence[TrustUnit], *, runs: Path, results: Path, progress: Progress | None = None
) -> Iterator[dict[str, Any]]:
    """Train and measure `units` one by one; append the line of each to a file and yield it."""
    opened: dict[str, TrustSet] = {}
    for unit in units:
        if unit.set.name not in opened:
            opened[unit.set.name] = open_set(unit.set, runs)
        unit = replace(unit, set=opened[unit.set.name])
        folder = runs / NAME / unit.set.name
        measured = _extend if unit.part == EXTEND else _train
        facts = {**unit.key, "git": commit(), **measured(unit, folder, progress)}
        line: dict[str, Any] = round_floats(facts)
        append_line(results / NAME / f"{unit.set.name}.jsonl", line)
        yield line


def _train(unit: TrustUnit, folder: Path, progress: Progress | None) -> dict[str, Any]:
    """Train the methods of a unit, and measure each."""
    one, names = unit.set, TRAININGS[unit.part]
    out = folder / f"{unit.part}-s{unit.seed}"
    runs = fit_all(
        one.config, names, [unit.seed], out=out, data=one.data, resume=True, progress=progress
    )
    first = reopen(runs[0], one.data)
    features = extract_parts(first.data, first.features)  # those of every method of the training
    other = None
    if one.unknown:
        files = replace(one.config.files, val_fraction=0.0)
        other = first.features(load(one.unknown, files).evaluated)
    return {
        "methods": {
            run.result["method"]: {
                **{key: run.result[key] for key in SAME},
                **measure(score_run(run, one.data, features, other)),
            }
            for run in runs
        }
    }


@torch.no_grad()
def score_run(run: Run, data: Data, features: Features, unknown: torch.Tensor | None) -> ScoredRun:
    """Score the held-out part, the test part, and `unknown` features (N, D) with one run."""
    opened, alpha = reopen(run, data), run.result["alpha"] or 0.0
    evaluation = opened.score(features)
    held = evaluation.held_out
    assert held is not None
    strange = None if unknown is None else (evaluation.shipped(unknown).cpu(), unknown.cpu())
    return ScoredRun(
        counts=data.counts,
        class_means=run.load_model(CLASS_MEANS)["class_means"],
        held_out=(held.at(alpha).cpu(), held.labels.cpu()),
        test=(
            evaluation.scores.at(alpha).cpu(),
            features.evaluated.cpu(),
            evaluation.scores.labels.cpu(),
        ),
        unknown=strange,
        trust=Trust.from_json(run.result["trust"]),
    )


def _extend(unit: TrustUnit, folder: Path, progress: Progress | None) -> dict[str, Any]:
    """Train without some classes, and measure how they are added."""
    one = unit.set
    files = replace(one.config.files, val_fraction=0.0)
    pool = load(f"{one.config.data.split(':')[0]}:10", files)
    return measure_extension(one.config, one.data, pool, unit.seed, folder / "left-out", progress)
