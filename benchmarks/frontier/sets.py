"""Sets of variants of a recipe: what is trained, what is done already, and what the rest costs.

A set is a YAML file: a recipe, a data set, a number of seeds, options that all variants share, and
the options of each variant by its name.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.common.shards import estimate_trainings, take_shard
from benchmarks.common.words import select_words
from longtail.core.config import Config, MachineConfig
from longtail.core.errors import UserError, unknown_error
from longtail.core.plain import check_fields, parse_yaml, read_text
from longtail.evaluation.result import round_floats
from longtail.runs.plan import resolve
from longtail.training.recipes import read_recipe

FOLDER = Path(__file__).parent / "variants"
DEFAULTS = {"data": "cifar100-lt:100", "recipe": "frontier", "seeds": 1, "options": {}}
HELD_OUT = 0.2
"""Part of each training class that the search evaluates on, instead of the test part."""
OWN = ("seed", "val_fraction", "evaluate_on", "root", *(f.name for f in fields(MachineConfig)))
"""Options that the benchmark sets, so that no variant can."""
KEYS = ("variant", "seed", "data", "evaluated_on", "options")
"""What tells one line of results from another."""
PRICED = ("backbone", "method", "train", "seconds", "device")
"""What the price of a training is made of, beside its data."""
WAY_OUT = "See benchmarks/frontier/variants for examples"


@dataclass(frozen=True)
class VariantUnit:
    """One training: a variant and a seed."""

    variant: str
    seed: int
    config: Config
    options: Mapping[str, Any] = field(hash=False)
    """What the set adds to its recipe."""

    @property
    def evaluated_on(self) -> str:
        return self.config.files.evaluate_on

    @property
    def key(self) -> str:
        """Text that tells the unit from others, and its line of results too."""
        own = {"data": self.config.data, "evaluated_on": self.evaluated_on}
        return _make_key({**vars(self), **own})

    @property
    def place(self) -> Path:
        """Folder of its run in that of all; a change of options or recipe gives another one."""
        part = Path(self.evaluated_on) / self.config.data.replace(":", "-")
        made_by = [self.key, self.config.method, self.config.backbone, self.train]
        own = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:8]
        return part / f"{self.variant}-s{self.seed}-{own}"

    @property
    def train(self) -> dict[str, Any]:
        """How it is trained, as its line of results has it."""
        found: dict[str, Any] = round_floats(asdict(self.config.train))
        return found

    def made(self, line: Mapping[str, Any]) -> bool:
        """Return whether it made a line, which lacks what was not yet an option."""
        known = self.train.items()
        alike = all(line["train"].get(name, value) == value for name, value in known)
        model = (line["method"], line["backbone"]) == (self.config.method, self.config.backbone)
        return self.key == _make_key(line) and model and alike


def _make_key(line: Mapping[str, Any]) -> str:
    facts = {key: line[key] for key in KEYS} | {"variant": str(line["variant"])}
    return json.dumps(round_floats(facts), sort_keys=True)


def read_units(
    name: str, *, seeds: int | None, held_out: bool, only: Sequence[str]
) -> list[VariantUnit]:
    """Read the set of variants called `name`, or the YAML file `name`, seed by seed.

    With `held_out`, four fifths of each training class are trained on and the rest is evaluated,
    unless the data has a validation part.
    """
    path = find_set(name)
    tree = read_set(path)
    units = []
    for seed in range(seeds or tree["seeds"]):
        for variant in select_words(tree["variants"], only):
            options = tree["options"] | (tree["variants"][variant] or {})
            try:
                config = _configure(tree, options, seed, held_out=held_out)
            except UserError as error:
                raise UserError(f"{path}: {variant}: {error}") from None
            units.append(VariantUnit(variant, seed, config, options))
    return units


def find_set(name: str) -> Path:
    """Return the YAML file `name`, or that of the set called so."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UserError(f"--variants {name}: there is no such file")
        return Path(name)
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = [file.stem for file in FOLDER.glob("*.yaml")]
        raise unknown_error("set of variants", name, known, f"they are {', '.join(sorted(known))}")
    return path


def read_set(path: Path) -> dict[str, Any]:
    """Read a set of variants, with a value for everything that it leaves out."""
    tree = parse_yaml(read_text(path), str(path))
    check_fields(tree, {}, str(path), WAY_OUT)
    for key in tree:
        if key not in (*DEFAULTS, "variants"):
            raise unknown_error(f"key of {path}", str(key), [*DEFAULTS, "variants"], WAY_OUT)
    tree = DEFAULTS | tree
    kinds: dict[str, Any] = {"data": str, "recipe": str, "seeds": int, "options": dict[str, Any]}
    check_fields(tree, kinds, str(path), WAY_OUT)
    variants = tree.get("variants")
    if not (isinstance(variants, dict) and variants and tree["seeds"] > 0):
        raise UserError(f"{path} needs at least one seed, and variants by their names. {WAY_OUT}")
    for name, options in variants.items():
        named = isinstance(name, str | int) and not isinstance(name, bool)
        if not (named and re.fullmatch(r"\w[\w.+-]*", str(name))):
            raise UserError(f"{path}: {name!r} cannot be the name of a variant, nor of its folder")
        if not isinstance(options, dict | None):
            raise UserError(f"{path}: {name} is {options!r}: give options, as in {{epochs: 200}}")
    return {**tree, "variants": {str(name): variants[name] for name in variants}}


def _configure(
    tree: Mapping[str, Any], options: Mapping[str, Any], seed: int, *, held_out: bool
) -> Config:
    """Return the configuration of a variant."""
    for name in OWN:
        if name in options:
            raise UserError(f"{name} is not an option of a variant: the command sets it")
    config = read_recipe(tree["recipe"], options.get("data", tree["data"]))
    config = config.with_options(**options, seed=seed)
    if held_out:
        config = config.with_options(val_fraction=HELD_OUT, evaluate_on="val")
    config, _ = resolve(replace(config, adaptive=()))
    return config


def select_missing(
    units: Sequence[VariantUnit], shard: str, done: Sequence[Mapping[str, Any]]
) -> list[VariantUnit]:
    """Select the units of a shard, as 0/6 is the first of six, that have no line in `done`."""
    for line in done:
        if lacking := [key for key in (*KEYS, *PRICED) if key not in line]:
            raise UserError(f"a line of results has no {lacking[0]}: {json.dumps(line)[:80]}")
    return [unit for unit in take_shard(units, shard) if not any(map(unit.made, done))]


def estimate_units(
    units: Sequence[VariantUnit], lines: Iterable[Mapping[str, Any]]
) -> float | None:
    """Estimate the seconds of `units` from lines of the same data, network and method."""
    wanted = [
        ((config.data, config.backbone, config.method), config.train.epochs)
        for config in (unit.config for unit in units)
    ]
    done = [
        ((line["data"], line["backbone"], line["method"]), line["train"]["epochs"], line["seconds"])
        for line in lines
    ]
    return estimate_trainings(wanted, done)
