"""Write the features of a network, of a run or with published weights, to a file.

    longtail embed runs/x -o features.npz
    longtail embed --data photos/ --weights resnet18.safetensors -o features.npz

The file is a data set (`longtail train features.npz`), and holds arrays for the classifiers of
`longtail.estimators`.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from lightning.fabric import Fabric
from torch import Tensor

from longtail.core.config import Config, DataConfig, MachineConfig, TrainConfig
from longtail.core.errors import UserError
from longtail.core.files import check_own, encode_tensors, replace_atomically
from longtail.data import kinds
from longtail.data import load as data_sets
from longtail.data.base import Data, Split
from longtail.methods.base import Model
from longtail.nn import backbones
from longtail.nn.linear_heads import LinearHead
from longtail.nn.ops import to_float16
from longtail.nn.preprocess import Preprocess
from longtail.nn.published import describe_inputs, require_backbone
from longtail.nn.weights import identify, load_into
from longtail.runs.folder import Run
from longtail.runs.own_data import own_data
from longtail.runs.reopen import relaunch
from longtail.serving.part_files import PART, Parts, share_parts
from longtail.serving.read import read_run
from longtail.training.features import choose_batch_size, extract_batches, read_batches
from longtail.training.inputs import build_preprocess
from longtail.training.launch import launch
from longtail.training.model import Blueprint, use_inputs_of_weights

logger = logging.getLogger(__name__)

ORIGIN = "made_by"
"""Array of the file that says where the features come from."""


@dataclass(frozen=True)
class Embedder:
    """A network that computes features, and the images it computes them of."""

    build: Callable[[], Model]
    """Builds the network, which takes as long as decoding thousands of images."""
    preprocess: Preprocess
    images: Data
    fabric: Fabric
    machine: MachineConfig
    origin: Mapping[str, Any]
    """Where the features come from; its hashes identify the network."""

    @cached_property
    def model(self) -> Model:
        """The network on its device."""
        model = self.build().to(self.fabric.device)
        # channels last as in training, for bit-identical features
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    @property
    def splits(self) -> dict[str, Split]:
        """The parts of the data that exist, by name."""
        named = {name: getattr(self.images, name) for name in ("train", "val", "test")}
        return {name: split for name, split in named.items() if split is not None}

    def plan_parts(self) -> dict[str, list[tuple[Tensor, ...]]]:
        """Cut every split into parts; a part is batches of row numbers (B,).

        All but the last have whole batches, so that parts do not change the rounding.
        """
        plan = {}
        for name, split in self.splits.items():
            size = choose_batch_size(split.inputs, self.fabric.device)
            batches, each = torch.arange(len(split)).split(size), math.ceil(PART / size)
            plan[name] = [batches[i : i + each] for i in range(0, len(batches), each)]
        return plan

    @contextmanager
    def extract_parts(self, out: Path) -> Iterator[Parts]:
        """Write the features of this rank's share of the images to files beside `out`.

        No other command writes there while the block runs, in which they are joined.
        """
        plan = self.plan_parts()
        about = {
            "images": [self.images.subset_sha256, self.images.evaluated_sha256],
            "splits": {name: list(split.inputs.shape) for name, split in self.splits.items()},
            "parts": {name: len(planned) for name, planned in plan.items()},
            "batches": {name: len(planned[0][0]) for name, planned in plan.items()},
            "origin": dict(self.origin),
        }
        with share_parts(out, about, sum(map(len, plan.values())), self.fabric) as parts:
            first = 0
            for name, planned in plan.items():
                mine = [number for number in parts.mine if 0 <= number - first < len(planned)]
                self._extract(self.splits[name], {n: planned[n - first] for n in mine}, parts)
                first += len(planned)
            self.fabric.barrier()
            yield parts

    def _extract(self, split: Split, planned: Mapping[int, Sequence[Tensor]], parts: Parts) -> None:
        """Write parts of one split, each as soon as it is complete."""
        rows = [batch for batches in planned.values() for batch in batches]
        if not rows:
            return
        # the workers decode the first images while the network is built
        stream = read_batches(split.inputs, rows, self.machine, self.fabric.device)
        try:
            model = self.model
        except UserError:  # its weights do not fit: no rank has written a part
            if self.fabric.global_rank == 0:
                parts.remove_if_empty()
            raise
        found = extract_batches(model, stream, self.preprocess, self.fabric)
        for number, batches in planned.items():
            features = to_float16(torch.cat(list(islice(found, len(batches)))))
            parts.write(number, encode_tensors({"features": features}))

    def join(self, parts: Parts) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each split and its features (N, D), read from all parts.

        They are float32 if those of any part are, else float16; the other parts are rounded then.
        """
        stored = parts.read()
        for name, planned in self.plan_parts().items():
            features = torch.empty(0)
            for batches, content in zip(planned, stored, strict=False):
                first = batches[0][0] if len(batches[0]) else 0
                rows = safetensors.torch.load(content)["features"]
                if not len(features):
                    features = torch.empty(len(self.splits[name]), rows.shape[1], dtype=rows.dtype)
                features = features.to(torch.promote_types(features.dtype, rows.dtype))
                features[first : first + len(rows)] = rows
            yield name, features


def embed(
    run: Run | Path | str | None = None,
    out: Path | str = "features.npz",
    *,
    data: Path | str | Data | None = None,
    weights: Path | str | None = None,
    backbone: str | None = None,
    **options: Any,
) -> Path:
    """Write the penultimate features of a network to an `.npz` file; return its path.

    Args:
        run: a finished run; without, `weights` and `data` are needed.
        out: the file. It holds x_train, y_train, x_val, y_val, x_test and y_test for the parts
            that exist, the class names, and the origin of the features.
        data: images to embed, by default those of the run. Image files are prepared as for
            training unless `options` set it; arrays keep their size.
        weights: a file, or `pretrained` for the published weights of `backbone`, in place of a run.
        backbone: the network of `weights`; by default taken from the file name.
        options: fields of `DataConfig` for `data`; without `data`, only `root`, the folder of the
            run's own data.
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise UserError(f"{out} must end in .npz: that is how longtail recognises the format")
    check_own(out, ORIGIN.encode() + rb"\.npy", "longtail embed")
    if (run is None) == (weights is None):
        raise UserError("pass the folder of a run, or --weights FILE or --pretrained, and not both")
    if run is not None:
        made = _open_run(Run.open(run), data, backbone, options)
    else:
        made = _open_weights(os.fspath(cast(Path | str, weights)), data, backbone, options)
    with made.extract_parts(out) as parts:
        if made.fabric.global_rank == 0:
            _write(out, made, parts)
            parts.remove()
        made.fabric.barrier()
    return out


def _write(out: Path, made: Embedder, parts: Parts) -> None:
    """Join the parts to the .npz file."""
    arrays: dict[str, Any] = {}
    for name, features in made.join(parts):
        arrays[f"x_{name}"] = features.numpy()
        arrays[f"y_{name}"] = made.splits[name].labels.numpy()
    arrays["classes"] = np.array(made.images.classes, dtype=str)
    about = {
        "images": Path(made.images.full_name).name,
        "images_sha256": made.images.subset_sha256,
        **made.origin,
    }
    arrays[ORIGIN] = np.array(json.dumps(about))
    with replace_atomically(out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def _open_run(
    run: Run, data: Path | str | Data | None, backbone: str | None, options: dict[str, Any]
) -> Embedder:
    """Open the network of a run and load the images to embed."""
    if backbone:
        raise UserError(f"--backbone {backbone}: a run has its own network. Leave it out")
    served = read_run(run)
    images = _load_images(run, data, served.about.blueprint, options)
    own, other = served.about.blueprint.shape, tuple(images.train.inputs.shape[1:])
    if len(own) != len(other) or own[0] != other[0]:
        raise UserError(
            f"{run.folder} was trained on inputs of shape {own}, but {images.name} has {other}: "
            "only height and width may differ"
        )
    stored = run.result
    ratio = "" if stored["ratio"] is None else f":{stored['ratio']:g}"
    origin = {
        "network": run.config.backbone,
        "trained_on": Path(f"{stored['data']}{ratio}").name,
        "method": run.config.method,
        "seed": run.config.seed,
        "epochs": run.config.train.epochs,
        "recipe_id": stored["recipe_id"],
        "training_id": stored.get("training_id"),
        "weights_sha256": stored.get("weights_sha256"),
    }
    model = Model(served.backbone, served.head)
    fabric = relaunch(run)
    preprocess = served.preprocess.to(fabric.device)
    return Embedder(lambda: model, preprocess, images, fabric, run.config.machine, origin)


def _open_weights(
    weights: str, data: Path | str | Data | None, backbone: str | None, options: dict[str, Any]
) -> Embedder:
    """Load weights into their network, and the images to embed as these weights expect them."""
    if data is None:
        raise UserError("which images? Pass --data, a name or a folder, with --weights")
    content = identify(weights)  # before the images are read
    name = backbone or require_backbone(weights)
    inputs = describe_inputs(name)
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
        images = data
    else:
        wanted = DataConfig(
            image_size=inputs.size if inputs and kinds.is_path(str(data)) else None,
            interpolation=inputs.interpolation if inputs else None,
        )
        images = data_sets.load_for_network(data, wanted, options)
    config = Config(backbone=name, weights=weights, train=TrainConfig(augment="none"))
    images = use_inputs_of_weights(config, images)
    if images.embeddings:
        raise UserError(f"{images.name} holds embeddings already: pass images")
    channels, *size = images.train.inputs.shape[1:]

    def build() -> Model:
        network = backbones.build(name, channels, (size[0], size[1]))
        logger.info("%s", load_into(network, name, weights))
        return Model(network, LinearHead(network.dim, len(images.classes)))

    machine = MachineConfig()
    preprocess = build_preprocess(images, config.train)
    origin = {"network": name, "weights": Path(weights).name, "weights_sha256": content}
    fabric = launch(machine)
    return Embedder(build, preprocess.to(fabric.device), images, fabric, machine, origin)


def _load_images(
    run: Run, data: Path | str | Data | None, blueprint: Blueprint, options: dict[str, Any]
) -> Data:
    """Load `data` for the network of `blueprint`, or else the run's own data."""
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
        return data
    if data is not None:
        square = not blueprint.embeddings and blueprint.shape[1] == blueprint.shape[2]
        size = blueprint.shape[1] if square else None
        wanted = DataConfig(image_size=size, interpolation=blueprint.interpolation)
        return data_sets.load_for_network(data, wanted, options)
    if ignored := [name for name in options if name != "root"]:
        raise UserError(
            f"--{ignored[0].replace('_', '-')} applies to --data only: the run's own images are "
            "always prepared as in training"
        )
    return own_data(run, root=options.get("root"))


def read_origin(path: Path) -> dict[str, Any]:
    """Read the origin that `embed` wrote into `path`; empty if another program wrote the file."""
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file[ORIGIN])) if ORIGIN in file.files else {}
