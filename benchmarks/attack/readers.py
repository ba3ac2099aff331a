"""Every reader of longtail, with files that it reads, to be fuzzed by mutation and by grammar."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import safetensors.torch
import torch

from benchmarks.attack import grammar, labels
from benchmarks.attack.grammar import IMAGES, Grammar, encode_image
from benchmarks.attack.mutations import mutate_bytes, mutate_json, mutate_yaml
from benchmarks.attack.tries import Attack, Attempt, classify
from longtail.core.config import Config, DataConfig
from longtail.core.errors import UserError
from longtail.core.options import Settings
from longtail.data.base import Data
from longtail.data.load import load
from longtail.detection.config import DetectionConfig
from longtail.detection.data import annotations
from longtail.nn import backbones
from longtail.nn.weights import load_into
from longtail.training.recipes import read_recipe

Mutation = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Reader:
    """A kind of file, and the function that reads it."""

    name: str
    file: str
    """Path of the file in a folder of its own."""
    read: Callable[[Path], Any]
    seeds: Callable[[], Sequence[bytes]]
    """Sound files, to be mutated."""
    mutations: tuple[Mutation, ...] = (mutate_bytes,)
    grammar: Grammar | None = None
    images: tuple[str, ...] = ()
    """Image files beside it."""
    named: bool = True
    """Whether an error must name the file."""

    def attack(self) -> Attack:
        """Return the attack on this reader."""
        return Attack(self.name, self._begin)

    def _begin(self, folder: Path) -> Callable[[Random], Attempt]:
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(self.images):
            (folder / image).parent.mkdir(exist_ok=True)
            (folder / image).write_bytes(encode_image(number, "png", 16))
        seeds = [content for content in self.seeds() if self._is_sound(path, content)]

        def make(random: Random) -> Attempt:
            rows = None
            if self.grammar and random.random() < 0.5:
                content, rows = self.grammar(random)
            else:
                content = random.choice(self.mutations)(random.choice(seeds), random)
            path.write_bytes(content)
            return Attempt(lambda: self.read(path), path.name if self.named else "", rows)

        return make

    def _is_sound(self, path: Path, content: bytes) -> bool:
        """Return whether the reader takes a file before it is mutated."""
        path.write_bytes(content)
        return classify(Attempt(lambda: self.read(path)))[0] == "ok"


def count_rows(data: Data) -> int:
    """Count the rows of all parts."""
    return sum(len(part) for part in (data.train, data.val, data.test) if part is not None)


def _read_recipe(path: Path) -> None:
    _check_ranges(read_recipe(path, "letters-lt"), path)


def _read_detection_recipe(path: Path) -> None:
    _check_ranges(DetectionConfig.from_yaml(path.read_text(encoding="utf-8"), str(path)), path)


def _check_ranges(config: Settings, path: Path) -> None:
    try:
        config.check()
    except UserError as error:  # it names the option, which may come from the command line too
        raise UserError(f"{path}: {error}") from None


def _read_list(path: Path) -> int:
    return count_rows(load("", DataConfig(list=path, root=path.parent, image_size=8)))


def _read_data(path: Path) -> int:
    return count_rows(load(path, image_size=8))


def _read_arrays(path: Path) -> int:
    return count_rows(load(path))


def _read_crops(path: Path) -> int:
    return count_rows(load(path.parent, image_size=8))


def _read_annotations(path: Path) -> None:
    annotations.parse(path, path.parent / "images")


def _read_folder(path: Path) -> int:
    return count_rows(load(path.parent.parent, image_size=8))


def _read_weights(path: Path) -> None:
    load_into(backbones.build("conv4", 3, (8, 8)), "conv4", str(path))


def _seeds_of(*grammars: Grammar) -> Callable[[], list[bytes]]:
    """Use what a grammar writes as seeds."""
    return lambda: [write(Random(number)).content for write in grammars for number in range(12)]


def _recipes() -> list[bytes]:
    short = (
        b"data: letters-lt\nmethod: cosine\ntrain:\n  epochs: 2\n  lr: 1e-1\noptions: {tau: 8}\n"
    )
    return [short, Config.preset("cifar100-lt:100").to_yaml().encode()]


def _pictures() -> list[bytes]:
    return [encode_image(n, kind, 24) for n, kind in enumerate(("png", "jpeg", "gif", "bmp"))] + [
        encode_image(9, kind, 24) for kind in ("tiff", "webp", "ppm")
    ]


def _annotation_files() -> list[bytes]:
    return [json.dumps(grammar.make_annotations()).encode()]


def _state() -> dict[str, torch.Tensor]:
    return backbones.build("conv4", 3, (8, 8)).inner.state_dict()


def _pickled() -> list[bytes]:
    found = []
    for content in (_state(), {"state_dict": _state(), "epoch": 3}):
        file = io.BytesIO()
        torch.save(content, file)
        found.append(file.getvalue())
    file = io.BytesIO()
    torch.save(_state(), file, _use_new_zipfile_serialization=False)
    return [*found, file.getvalue()]


def _tensors() -> list[bytes]:
    return [safetensors.torch.save({name: value.clone() for name, value in _state().items()})]


TEXT = (mutate_bytes, mutate_yaml)
JSON = (mutate_bytes, mutate_json, mutate_json)
READERS = (
    Reader("recipe", "recipe.yaml", _read_recipe, _recipes, TEXT, grammar.write_recipe),
    Reader(
        *("detection recipe", "detector.yaml", _read_detection_recipe),
        lambda: [DetectionConfig.preset("shapes-lvis").to_yaml().encode()],
        (mutate_yaml,),
    ),
    Reader(
        "list",
        "list.txt",
        _read_list,
        _seeds_of(grammar.write_list),
        (mutate_bytes,),
        grammar.write_list,
        IMAGES,
        False,
    ),
    Reader(
        "table",
        "table.csv",
        _read_data,
        _seeds_of(grammar.write_csv),
        (mutate_bytes,),
        grammar.write_csv,
        IMAGES,
        False,
    ),
    Reader(
        "npz",
        "data.npz",
        _read_arrays,
        _seeds_of(grammar.write_npz),
        (mutate_bytes,),
        grammar.write_npz,
    ),
    Reader(
        "parquet",
        "data.parquet",
        _read_data,
        _seeds_of(grammar.write_parquet),
        (mutate_bytes,),
        grammar.write_parquet,
    ),
    Reader("image", "ant/odd.png", _read_folder, _pictures, images=IMAGES),
    Reader(
        "annotations",
        "a.json",
        _read_annotations,
        _annotation_files,
        JSON,
        grammar.write_coco,
        named=False,
    ),
    Reader(
        *("boxes", "instances_train.json", _read_crops, _annotation_files, JSON),
        *(grammar.write_coco, tuple(f"images/{number}.png" for number in range(4)), False),
    ),
    Reader(
        *("list of labels", "list.txt", _read_list, _seeds_of(labels.write_list)),
        *((mutate_bytes,), labels.write_list, IMAGES, False),
    ),
    Reader(
        *("table of labels", "table.csv", _read_data, _seeds_of(labels.write_csv)),
        *((mutate_bytes,), labels.write_csv, IMAGES, False),
    ),
    Reader(
        *("npz of labels", "data.npz", _read_arrays, _seeds_of(labels.write_npz)),
        *((mutate_bytes,), labels.write_npz),
    ),
    Reader(
        *("parquet of labels", "data.parquet", _read_data),
        *(_seeds_of(labels.write_parquet), (mutate_bytes,), labels.write_parquet),
    ),
    Reader(
        *("labels of photographs", "photographs.json", _read_data, _annotation_files, JSON),
        *(grammar.write_coco, tuple(f"images/{number}.png" for number in range(4)), False),
    ),
    Reader("weights .pth", "weights.pth", _read_weights, _pickled),
    Reader("weights .safetensors", "weights.safetensors", _read_weights, _tensors),
)
"""Readers of what users bring; `attack/runs.py` has those of what longtail wrote."""
