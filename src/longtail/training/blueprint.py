"""A model as plain values, and the model again: all that a file must say besides its weights."""

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from longtail import methods
from longtail.core.config import Config
from longtail.core.errors import UserError, unknown
from longtail.data.base import Data
from longtail.methods import Model
from longtail.nn import backbones
from longtail.nn import weights as networks
from longtail.nn.heads import Head
from longtail.training.resident import View, input_size


@dataclass(frozen=True)
class Blueprint:
    """What a trained network is made of, and what it takes."""

    backbone: str
    """Its name; `timm/resnet50` is all of timm's network but its last layer."""
    head: Mapping[str, Any]
    """Its class as `kind`, and the numbers it was made with."""
    shape: tuple[int, ...]
    """Of one input: (C, H, W) of an image, (D,) of an embedding."""
    seen: tuple[int, ...]
    """(H, W) of the middle of an image that the network sees; empty for embeddings."""
    mean: tuple[float, ...]
    """Of each channel on the 0..1 scale; empty for embeddings."""
    std: tuple[float, ...]

    @staticmethod
    def of(config: Config, head: Head, data: Data) -> "Blueprint":
        """The blueprint of `head` after a training of `config` on `data`."""
        shape = tuple(data.train.inputs.shape[1:])
        seen = () if data.embeddings else input_size(data, config.train)
        return Blueprint(config.backbone, head_values(head), shape, seen, data.mean, data.std)

    @property
    def embeddings(self) -> bool:
        """Whether it takes feature vectors, not images."""
        return len(self.shape) == 1

    def build(self) -> Model:
        """The model, its weights still those of a fresh one."""
        values = dict(self.head)
        kind = find_head(str(values.pop("kind")))
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers are not ours to draw
            head, channels = kind(**values), self.shape[0]
            if self.backbone.startswith(networks.LIBRARY_PREFIXES):
                return Model(networks.rebuild(self.backbone, head.classes, channels), head)
            return Model(backbones.build(self.backbone, channels), head)

    def view(self, device: torch.device) -> View:
        """How it sees its inputs."""
        size = None if self.embeddings else (self.seen[0], self.seen[1])
        return View.on(device, self.mean, self.std, size)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON that `from_json` reads back."""
        return asdict(self)

    @staticmethod
    def from_json(tree: Mapping[str, Any], source: str) -> "Blueprint":
        """Read what `to_json` gave; `source` is the file that an error names."""
        try:
            lists = {name: tuple(tree[name]) for name in ("shape", "seen", "mean", "std")}
            blueprint = Blueprint(str(tree["backbone"]), dict(tree["head"]), **lists)
            channels = 0 if blueprint.embeddings else blueprint.shape[0]
            sound = len(blueprint.shape) in (1, 3) and "kind" in blueprint.head
            sound &= len(blueprint.seen) == len(blueprint.shape[1:])
            sound &= all(type(n) is int and n > 0 for n in blueprint.shape + blueprint.seen)
            sound &= len(blueprint.mean) == len(blueprint.std) == channels
            sound &= all(type(value) is float for value in blueprint.mean + blueprint.std)
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise UserError(f"{source} does not say which model its weights belong to")
        return blueprint


def head_values(head: Head) -> dict[str, Any]:
    """The class of `head`, and those of its arguments that are numbers."""
    arguments = {
        name: getattr(head, name, None) for name in inspect.signature(type(head)).parameters
    }
    numbers = {name: value for name, value in arguments.items() if isinstance(value, (int, float))}
    return {"kind": type(head).__name__, **numbers}


def find_head(name: str) -> type[Head]:
    """Find the head class called `name`; import the files of the methods only if none is known."""
    if name not in _head_classes():
        methods.registry()
    if name not in (known := _head_classes()):
        raise unknown("kind of head", name, known, "is its method's file installed?")
    return known[name]


def _head_classes() -> dict[str, type[Head]]:
    """Return every concrete head class defined so far, by its name."""
    found: dict[str, type[Head]] = {}
    pending: list[type[Head]] = [Head]
    while pending:
        kind = pending.pop()
        below = kind.__subclasses__()
        pending += below
        if not below:
            found[kind.__name__] = kind
    return found
