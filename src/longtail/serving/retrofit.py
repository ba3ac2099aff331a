"""Add TDE to a trained classifier: measure the mean direction and choose alpha, without training.

A linear classifier becomes a cosine classifier when features and weights are normalised. One pass
over its training images gives their mean feature, and with it Eq. 8. The length of a feature does
not change which class wins, so the folded weights fit into the network's own last layer.
Shapes: N images, C classes, D features.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from longtail.core.config import Config, MachineConfig, TrainConfig
from longtail.core.environment import environment, versions
from longtail.core.errors import UserError
from longtail.core.files import encode_tensors, write_bytes
from longtail.core.seals import BLANK, KEY, seal
from longtail.data import load as data_sets
from longtail.data.base import Data, Split
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD
from longtail.data.prepare import hold_out
from longtail.estimators.rows import HELD_OUT
from longtail.evaluation.accuracy import Accuracy, accuracy, score, sweep
from longtail.evaluation.alpha import choose_alpha, cosines, label_free_alpha
from longtail.evaluation.stored_features import StoredFeatures
from longtail.evaluation.trust import can_describe, describe_trust
from longtail.methods.base import HeldOut, Model, compute_centroids
from longtail.nn import split as networks
from longtail.nn.backbones import Identity
from longtail.nn.checkpoints import StateDict, read_state
from longtail.nn.heads import AffineHead, CosineHead, Head
from longtail.nn.libraries import Backbone, HeadlessNetwork
from longtail.serving import write as exports
from longtail.serving.model import ModelDescription, ServedModel
from longtail.training.features import extract
from longtail.training.inputs import build_preprocess
from longtail.training.launch import launch
from longtail.training.model import Blueprint

Pixels = Literal["imagenet", "data"]
NO_AUGMENTATION = TrainConfig(augment="none")
"""Images are used whole."""


@dataclass(frozen=True)
class Retrofit:
    """A trained classifier with TDE, compared with the original."""

    head: CosineHead
    """The classifier's weights, the measured mean feature, and the chosen alpha."""
    rule: str
    """How alpha was chosen: held-out likelihood, label-free, or no direction."""
    chosen_on: str
    """Part of the data that alpha was chosen on."""
    evaluated_on: str
    """Part of the data that `before` and `after` were measured on."""
    mean_cos: float
    """Mean of cos(x, d) over the training images, without those that chose alpha."""
    path: Mapping[float, Accuracy]
    """Accuracy at each alpha, on the part that alpha was chosen on."""
    before: Accuracy
    """Accuracy of the original layer."""
    after: Accuracy
    """Accuracy with TDE."""
    state: StateDict
    """The checkpoint with the folded weights in its last layer, for the same network."""

    @property
    def gain(self) -> float:
        """Gain in class-balanced accuracy on the evaluated part."""
        return self.after.class_mean - self.before.class_mean

    @property
    def verdict(self) -> str:
        """Whether TDE helps, in words."""
        if self.rule == "no direction":
            return (
                f"It does not help: mean cos(x, d) is {self.mean_cos:.2f}, so the features have no "
                "common direction to remove. Alpha is 0."
            )
        change = (
            f"class-balanced accuracy on the {self.evaluated_on} part goes from "
            f"{self.before.class_mean:.1f} to {self.after.class_mean:.1f}"
        )
        caution = ""
        if self.chosen_on == "train":
            caution = (
                " Alpha was chosen on training images, which the network has seen: a validation "
                "part, which it has not seen, would choose better."
            )
        if self.chosen_on == self.evaluated_on and self.rule == "held-out likelihood":
            caution += (
                " Alpha was chosen and evaluated on the same images, so this is optimistic: only a "
                "test part gives a fair estimate."
            )
        alpha = float(self.head.alpha)
        if alpha == 0:
            return (
                f"TDE does not help: alpha 0 is best on the {self.chosen_on} part, which only "
                f"normalises the weights; {change}.{caution}"
            )
        helps = "It helps" if self.gain > 0 else "It does not help; keep the original"
        return f"{helps}: at alpha {alpha:g} {change}.{caution}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the tensors as plain JSON values."""
        return {
            "alpha": float(self.head.alpha),
            "alpha_rule": self.rule,
            "chosen_on": self.chosen_on,
            "evaluated_on": self.evaluated_on,
            "mean_cos": self.mean_cos,
            "before": _flatten(self.before),
            "after": _flatten(self.after),
            "sweep": {f"{alpha:g}": _flatten(point) for alpha, point in self.path.items()},
            "verdict": self.verdict,
        }


def retrofit(
    checkpoint: Path | str,
    data: Path | str | Data,
    *,
    model: str = "",
    out: Path | str | None = None,
    pixels: Pixels = "imagenet",
    **options: Any,
) -> Retrofit:
    """Add TDE to a trained timm or torchvision classifier, without training.

    Args:
        checkpoint: weights of the classifier: a state dict as .pt, .pth or .safetensors.
        data: its training data, images or an `.npz` file of the inputs of its last layer. Alpha
            is chosen on the validation part, else on a fifth of each training class; the test
            part, if there is one, is only used for evaluation.
        model: name of the network in timm or torchvision; not needed if `data` holds features.
        out: folder for the result, which `load_model` and `export` read; None writes no files.
        pixels: mean and deviation that normalised the pixels in training: ImageNet's, or the
            data's own.
        options: fields of `DataConfig`.
    """
    folder = None if out is None else Path(out)
    if folder and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another --out")
    if folder:
        exports.check_folder(folder)
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
    state = read_state(Path(checkpoint))
    data = data if isinstance(data, Data) else data_sets.load(data, **options)
    if data.multi_label:
        raise UserError(
            f"retrofit makes a head for one label per image, and {data.name} has several: train "
            "one with longtail train --freeze"
        )
    if pixels == "imagenet" and len(data.mean) == 3:
        data = replace(data, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    backbone, layer = _split_network(state, data, model)
    parts = _extract_features(backbone, layer, data)
    result = _retrofit_layer(parts, layer, data, state)
    if folder:
        facts = {
            "checkpoint": Path(checkpoint).name,
            "model": model or None,
            "data": Path(data.full_name).name,
            "subset_sha256": data.subset_sha256,
            "counts": data.counts.images,
            **environment(cuda=torch.cuda.is_available()),
            **result.to_json(),
        }
        served = _make_model(result, backbone, parts, data, Path(checkpoint).name)
        exports.save_pretrained(served, folder)
        content = encode_tensors(result.state, {KEY: BLANK})
        write_bytes(folder / exports.CHECKPOINT, seal(content))
        write_bytes(folder / "result.json", (json.dumps(facts, indent=1) + "\n").encode())
    return result


def _split_network(
    state: StateDict, data: Data, name: str
) -> tuple[Identity | HeadlessNetwork, networks.LastLayer]:
    """Return the part of the network that computes the features, and its last layer."""
    classes, sample = len(data.classes), data.train.take(torch.arange(2)).load_inputs()
    if data.embeddings:
        dim = sample.shape[1]
        return Identity(dim), networks.find_last_layer(state, classes, dim)
    if not name:
        raise UserError("which network? Pass its name in timm or torchvision as --model")
    return networks.build(name, state, classes, sample / 255)


def _extract_features(
    backbone: Backbone, layer: networks.LastLayer, data: Data
) -> dict[str, Split]:
    """Compute the features (N, D) of every part."""
    machine = MachineConfig()
    fabric = launch(machine)
    preprocess = build_preprocess(data, NO_AUGMENTATION).to(fabric.device)
    network = Model(backbone, AffineHead.of(layer.weight, layer.bias)).to(fabric.device)
    splits = {part: getattr(data, part) for part in ("train", "val", "test")}
    return {
        part: Split(
            extract(network, split, preprocess, fabric, machine).cpu(),
            split.labels,
            copies=split.copies,
        )
        for part, split in splits.items()
        if split is not None
    }


@torch.no_grad()
def _retrofit_layer(
    parts: Mapping[str, Split], layer: networks.LastLayer, data: Data, state: StateDict
) -> Retrofit:
    """Measure the direction, choose alpha, and evaluate both heads."""
    train, held, chosen_on = parts["train"], parts.get("val"), "val"
    if held is None:
        (train, held), chosen_on = hold_out(train, HELD_OUT), "train"
    head = CosineHead(layer.weight.shape[1], len(layer.weight), alpha=0.0)
    head.weight.copy_(layer.weight)
    head.mean_feature.copy_(train.input_tensor.mean(0))
    mean_cos = float(cosines(head, train.input_tensor).mean())
    path = sweep(score(head, held.input_tensor, held.labels), data.counts) if len(held) else {}
    head.alpha, rule = label_free_alpha(mean_cos), "label-free"
    if head.alpha == 0:
        rule = "no direction"
    elif len(held):
        head.alpha = choose_alpha(head, held.input_tensor, held.labels)
        rule = "held-out likelihood"
    head.mean_feature.copy_(parts["train"].input_tensor.mean(0))  # with the held-out images
    evaluated_on, split = next((p, parts[p]) for p in ("test", "val", "train") if p in parts)
    if evaluated_on == "train" and len(held):
        split = held
    folded = head.folded()
    mean_length = float(parts["train"].input_tensor.norm(dim=1).mean().clamp(min=1e-12))
    return Retrofit(
        head=head.eval(),
        rule=rule,
        chosen_on=chosen_on,
        evaluated_on=evaluated_on,
        mean_cos=mean_cos,
        path=path,
        before=_evaluate(AffineHead.of(layer.weight, layer.bias), split, data),
        after=_evaluate(folded, split, data),
        # the layer does not normalise features: dividing by their mean length keeps logits in scale
        state=layer.replace_in(state, folded.weight / mean_length),
    )


@torch.no_grad()
def _make_model(
    result: Retrofit,
    backbone: Identity | HeadlessNetwork,
    parts: Mapping[str, Split],
    data: Data,
    checkpoint: str,
) -> ServedModel:
    """Build the network with the new head, its adjustable alpha set to the chosen one."""
    name = "identity" if isinstance(backbone, Identity) else backbone.name
    alpha, train, held = float(result.head.alpha), parts["train"], parts.get("val")
    means, trust = compute_centroids(train.input_tensor, train.labels, len(data.classes)), None
    # the network has seen the other images: on them it is too certain
    known = None if held is None else HeldOut(held.input_tensor, held.labels)
    if known is not None and can_describe(known.labels):
        logits = result.head(known.features)
        trust = describe_trust(logits, *known, data.counts, class_means=means)
    about = ModelDescription(
        blueprint=Blueprint.of(Config(backbone=name, train=NO_AUGMENTATION), result.head, data),
        classes=data.classes,
        counts=data.counts.images,
        alpha=alpha,
        dial=True,
        metrics={"evaluated_on": result.evaluated_on, "alpha": alpha, **_flatten(result.after)},
        training={
            "method": "retrofit",
            "checkpoint": checkpoint,
            "data": Path(data.name).name,
            "ratio": data.ratio,
            "subset_sha256": data.subset_sha256,
            "verdict": result.verdict,
        },
        version=versions()["longtail"],
        trust=trust,
    )
    stored = StoredFeatures.of(means, known)
    return ServedModel(Model(backbone, result.head), about, stored).cpu()


def _evaluate(head: Head, split: Split, data: Data) -> Accuracy:
    logits = torch.cat([head(batch) for batch in split.input_tensor.split(4096)])
    return accuracy(logits, split.labels, data.counts)


def _flatten(point: Accuracy) -> dict[str, float | None]:
    return {**point.splits(), "class_mean": point.class_mean}
