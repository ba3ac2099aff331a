"""TDE for a classifier that exists: measure the mean direction, choose alpha, train nothing.

Any linear classifier is a cosine classifier once features and weights are normalised. The mean
feature of its training images is one pass away, and with it Eq. 8. As the length of a feature does
not change which class is first, the folded weights fit into the network's own last layer.
Shapes: N images, C classes, D features.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from longtail.core.config import Config, MachineConfig, TrainConfig
from longtail.core.environment import environment, versions
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.data import load as data_sets
from longtail.data.base import Data, Split
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD
from longtail.data.prepare import hold_out
from longtail.estimators.rows import HELD_OUT
from longtail.evaluation.accuracy import Accuracy, accuracy, score, sweep
from longtail.evaluation.alpha import best, cosines, label_free_alpha
from longtail.methods import Model
from longtail.nn import weights as networks
from longtail.nn.backbones import Backbone, Identity
from longtail.nn.heads import AffineHead, CosineHead, Head
from longtail.serving import write as exports
from longtail.serving.model import About, ServedModel
from longtail.training.blueprint import Blueprint
from longtail.training.features import extract
from longtail.training.loop import launch
from longtail.training.resident import View

Pixels = Literal["imagenet", "data"]
AS_IT_IS = TrainConfig(augment="none")
"""How images are seen: whole."""


@dataclass(frozen=True)
class Retrofit:
    """A trained classifier in its TDE version, beside what it was."""

    head: CosineHead
    """Its own weights, the measured mean feature, and the chosen alpha."""
    rule: str
    """held-out, label-free, or no direction: as for the estimators."""
    chosen_on: str
    """The part of the data that alpha was chosen on."""
    evaluated_on: str
    mean_cos: float
    """Mean of cos(x, d) over the training images."""
    path: Mapping[float, Accuracy]
    """On the part that alpha was chosen on."""
    before: Accuracy
    """Of the original layer, on the part that is judged."""
    after: Accuracy
    state: networks.StateDict
    """The checkpoint with the folded weights in its last layer: the same network, used as ever."""

    @property
    def gain(self) -> float:
        """In class-balanced accuracy on the judged part."""
        return self.after.class_mean - self.before.class_mean

    @property
    def verdict(self) -> str:
        """Whether it helps, in words."""
        if self.rule == "no direction":
            return (
                f"It does not help: mean cos(x, d) is {self.mean_cos:.2f}, so the features have no "
                "common direction that could be taken away. Alpha is 0."
            )
        told = (
            f"class-balanced accuracy on the {self.evaluated_on} part goes from "
            f"{self.before.class_mean:.1f} to {self.after.class_mean:.1f}"
        )
        caution = ""
        if self.chosen_on == "train":
            caution = (
                " Alpha was chosen on training images, which the network has seen: images it has "
                "not seen, as a validation part, would choose better."
            )
        if self.chosen_on == self.evaluated_on and self.rule == "held-out":
            caution += (
                " Alpha was chosen and judged on the same images, so this is optimistic: only a "
                "test part can tell."
            )
        if self.head.alpha == 0:
            return (
                f"TDE does not help: alpha 0 is best on the {self.chosen_on} part, which only "
                f"normalises the weights; {told}.{caution}"
            )
        helps = "It helps" if self.gain > 0 else "It does not help; keep the original"
        return f"{helps}: at alpha {self.head.alpha:g} {told}.{caution}"

    def save(self, folder: Path, shipped: ServedModel, about: Mapping[str, Any]) -> None:
        """Write `shipped` as `load_model` reads it, checkpoint.safetensors and result.json."""
        exports.save_pretrained(shipped, folder)
        plain = {name: value.detach().cpu().contiguous() for name, value in self.state.items()}
        with replace_atomically(folder / exports.CHECKPOINT) as path:
            path.write_bytes(safetensors.torch.save(plain))
        with replace_atomically(folder / "result.json") as path:
            path.write_text(json.dumps({**about, **self.to_json()}, indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """All but the tensors."""
        return {
            "alpha": self.head.alpha,
            "alpha_rule": self.rule,
            "chosen_on": self.chosen_on,
            "evaluated_on": self.evaluated_on,
            "mean_cos": self.mean_cos,
            "before": _figures(self.before),
            "after": _figures(self.after),
            "sweep": {f"{alpha:g}": _figures(point) for alpha, point in self.path.items()},
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
    """The TDE version of a trained timm or torchvision classifier; trains nothing.

    Args:
        checkpoint: its weights: a state dict as .pt, .pth or .safetensors.
        data: what it was trained on, images or an `.npz` of the features its last layer takes.
            Alpha is chosen on the validation part, else on a fifth of each training class; the
            test part, if there is one, is only judged on.
        model: the network's name in timm or torchvision; not needed with features.
        out: a folder for the result, which `load_model` and `export` read; None writes nothing.
        pixels: how pixels were normalised in its training.
        options: fields of `DataConfig`.
    """
    folder = None if out is None else Path(out)
    if folder and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another --out")
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
    state = networks.read_state(Path(checkpoint))
    data = data if isinstance(data, Data) else data_sets.load(data, **options)
    if pixels == "imagenet" and len(data.mean) == 3:
        data = replace(data, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    backbone, layer = _network(state, data, model)
    made = _measured(_features(backbone, layer, data), layer, data, state)
    if folder:
        about = {
            "checkpoint": Path(checkpoint).name,
            "model": model or None,
            "data": Path(data.full_name).name,
            "subset_sha256": data.subset_sha256,
            "counts": data.counts.images,
            **environment(cuda=torch.cuda.is_available()),
        }
        made.save(folder, _shipped(made, backbone, data, Path(checkpoint).name), about)
    return made


def _network(
    state: networks.StateDict, data: Data, name: str
) -> tuple[Identity | networks.HeadlessNetwork, networks.LastLayer]:
    """What gives the features, and the layer that they go into."""
    classes, sample = len(data.classes), data.train.take(torch.arange(2)).pixels()
    if data.embeddings:
        dim = sample.shape[1]
        return Identity(dim), networks.find_last_layer(state, classes, dim)
    if not name:
        raise UserError("which network? Pass its name in timm or torchvision as --model")
    return networks.build(name, state, classes, sample / 255)


def _features(backbone: Backbone, layer: networks.LastLayer, data: Data) -> dict[str, Split]:
    """Features (N, D) of every part."""
    machine = MachineConfig()
    fabric = launch(machine)
    view = View.of(data, AS_IT_IS, fabric.device)
    network = Model(backbone, AffineHead.of(layer.weight, layer.bias)).to(fabric.device)
    parts = {}
    for part in ("train", "val", "test"):
        if (split := getattr(data, part)) is not None:
            found = extract(network, split, view, fabric, machine)
            parts[part] = Split(found.cpu(), split.labels)
    return parts


@torch.no_grad()
def _measured(
    parts: Mapping[str, Split], layer: networks.LastLayer, data: Data, state: networks.StateDict
) -> Retrofit:
    """Direction, alpha, and the two heads judged."""
    train, held, chosen_on = parts["train"], parts.get("val"), "val"
    if held is None:
        (train, held), chosen_on = hold_out(train, HELD_OUT), "train"
    head = CosineHead(layer.weight.shape[1], len(layer.weight), alpha=0.0)
    head.weight.copy_(layer.weight)
    head.mean_feature.copy_(train.in_memory.mean(0))
    mean_cos = float(cosines(head, train.in_memory).mean())
    path = sweep(score(head, held.in_memory, held.labels), data.counts) if len(held) else {}
    head.alpha, rule = label_free_alpha(mean_cos), "label-free"
    if head.alpha == 0:
        rule = "no direction"
    elif path:
        head.alpha, rule = best(path), "held-out"
    head.mean_feature.copy_(parts["train"].in_memory.mean(0))  # of what was held out too
    evaluated_on, judged = next((p, parts[p]) for p in ("test", "val", "train") if p in parts)
    if evaluated_on == "train" and len(held):
        judged = held
    folded = head.folded()
    usual = float(parts["train"].in_memory.norm(dim=1).mean().clamp(min=1e-12))
    return Retrofit(
        head=head.eval(),
        rule=rule,
        chosen_on=chosen_on,
        evaluated_on=evaluated_on,
        mean_cos=mean_cos,
        path=path,
        before=_judge(AffineHead.of(layer.weight, layer.bias), judged, data),
        after=_judge(folded, judged, data),
        # without the normalised feature, logits keep their size where features are of usual length
        state=layer.replace_in(state, folded.weight / usual),
    )


def _shipped(
    made: Retrofit, backbone: Identity | networks.HeadlessNetwork, data: Data, checkpoint: str
) -> ServedModel:
    """The network with the new head, its dial at the chosen alpha."""
    name = "identity" if isinstance(backbone, Identity) else backbone.name
    about = About(
        blueprint=Blueprint.of(Config(backbone=name, train=AS_IT_IS), made.head, data),
        classes=data.classes,
        counts=data.counts.images,
        alpha=made.head.alpha,
        dial=True,
        metrics={
            "evaluated_on": made.evaluated_on,
            "alpha": made.head.alpha,
            **_figures(made.after),
        },
        training={
            "method": "retrofit",
            "checkpoint": checkpoint,
            "data": Path(data.name).name,
            "ratio": data.ratio,
            "subset_sha256": data.subset_sha256,
            "verdict": made.verdict,
        },
        version=versions()["longtail"],
    )
    return ServedModel(Model(backbone, made.head), about).cpu()


def _judge(head: Head, split: Split, data: Data) -> Accuracy:
    return accuracy(_logits(head, split.in_memory), split.labels, data.counts)


def _logits(head: Head, features: Tensor) -> Tensor:
    return torch.cat([head(batch) for batch in features.split(4096)])


def _figures(judged: Accuracy) -> dict[str, float | None]:
    return {**judged.splits(), "class_mean": judged.class_mean}
