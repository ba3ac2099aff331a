"""Every option of a detector's training, as frozen dataclasses that are also the command line.

No torch here, as in `longtail.core.config`. Defaults are the paper's LVIS recipe.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import tyro

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError, unknown
from longtail.core.options import ABOVE_ZERO, Settings

Tde = Literal["off", "plain", "background-exempt"]


class TrainingRow(NamedTuple):
    """How a row of the paper's table is trained."""

    head: Literal["linear", "cosine", "capsule", "deconfound"]
    loss: Literal["cross-entropy", "focal", "eql"] = "cross-entropy"


TRAININGS: dict[str, TrainingRow] = {
    "focal": TrainingRow("linear", "focal"),
    "eql": TrainingRow("linear", "eql"),
    "baseline": TrainingRow("linear"),
    "cosine": TrainingRow("cosine"),
    "capsule": TrainingRow("capsule"),
    "deconfound": TrainingRow("deconfound"),
}
METHODS = (*TRAININGS, "cosine-tde", "capsule-tde", "deconfound-tde")
"""As tab:3 lists them; X-tde is trained as X."""


@dataclass(frozen=True)
class FilesConfig:
    """Where the images come from."""

    root: Path | None = None
    """Folder of named data sets; else $LONGTAIL_DATA."""


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    pretrained: bool = False
    """Start from timm's ImageNet weights, fetched on first use; stem and first block stay fixed."""
    norm: Literal["frozen", "group"] = "group"
    """`frozen` batch statistics, for pretrained weights; `group` normalisation, from scratch."""
    width: int = 256
    """Channels of the pyramid and of the mask heads."""
    features: int = 1024
    """Length D of what the box classifiers see."""
    masks: Literal["class", "agnostic"] = "class"
    """One mask for each class, or one for all of them."""
    image_size: int = 800
    """Pixels of an image's shorter side."""
    max_size: int = 1333
    """The most pixels of its longer side."""
    anchor_scale: float = 4.0
    """Anchors of 8, 16, 32, 64, 128 times this many pixels; 4 are torchvision's."""
    proposals: int = 1000
    """Regions an image that the first stage sees."""
    rois: int = 512
    """Of these, how many an image are trained on, a quarter of them foreground at most; masks are
    trained on no more than that quarter in any stage."""


@dataclass(frozen=True)
class HeadConfig:
    """The box classifier of each stage, and its loss."""

    heads: int | None = None
    """K; by default 2 for deconfound and 1 for cosine and capsule, as in the paper's tables."""
    tau: float = 16.0
    """Scale of the logits."""
    gamma: float = 1 / 32
    """Added to each weight's norm by deconfound."""
    mean_momentum: float = 0.9
    """Decay of the mean foreground feature (LVIS v1.0: 0.9998)."""
    focal_gamma: float = 2.0
    """Exponent of focal."""
    eql_share: float = 1.76e-3
    """Classes in at most this part of the training images are rare to eql: 100 of LVIS v0.5."""


@dataclass(frozen=True)
class InferenceConfig:
    """From scores to detections; all of it may be changed without training."""

    alpha: float = 1.5
    """How much of the indirect effect a -tde method removes (Eq. 8)."""
    tde: Tde = "background-exempt"
    """How a -tde method does it: from all classes alike, or not from the background (Eq. 9)."""
    detections: int = 300
    """The most that are kept of an image."""
    score_threshold: float = 1e-4
    """Detections of a lower score are dropped."""


@dataclass(frozen=True)
class DetectionTrainConfig:
    """How the weights move."""

    epochs: int = 20
    """Passes over the training set."""
    batch_size: int = 16
    """Images a step, over all ranks."""
    lr: float = 0.02
    """Peak learning rate at `batch_size`; not rescaled for you."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """On every parameter."""
    schedule: Literal["steps", "cosine"] = "steps"
    """Of the learning rate, after the warm-up."""
    warmup: int = 500
    """Steps of linear warm-up."""
    milestones: tuple[float, ...] = (0.8, 0.95)
    """Parts of the steps at which `steps` multiplies the rate by `decay`."""
    decay: float = 0.1
    """The factor of `steps`."""
    flip: bool = True
    """Mirror a random half of the images."""
    repeat_threshold: float = 0.0
    """Repeat-factor sampling: images of classes rarer than this part of the images come more often
    (0.001 is usual); 0 shows each image once."""


@dataclass(frozen=True)
class DetectionMachineConfig:
    """Where it runs. None of this changes what is computed, up to rounding.

    But for `--norm frozen` on images of several sizes: each is padded to the largest of its batch,
    as far as one process sees it.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one."""
    devices: int = 1
    """Processes on this host; under torchrun or SLURM they are counted for you."""
    nodes: int = 1
    """Hosts."""
    precision: Literal["auto", "32", "bf16"] = "auto"
    """bf16 on CUDA, float32 elsewhere. Boxes and heads are float32 always."""
    workers: int = 8
    """Threads or processes that decode images; with 0 it is done in between."""
    save_seconds: float = 60.0
    """A checkpoint after the first epoch, and then at the end of one after this long; 0 saves every
    epoch."""

    @staticmethod
    def of(machine: MachineConfig) -> "DetectionMachineConfig":
        """What of a classifier's machine says something to a detector's."""
        shared = {item.name: getattr(machine, item.name) for item in fields(DetectionMachineConfig)}
        if machine.workers is None:
            del shared["workers"]
        return DetectionMachineConfig(**shared)

    def general(self) -> MachineConfig:
        """What the engine is launched with."""
        return MachineConfig(
            device=self.device, devices=self.devices, nodes=self.nodes, precision=self.precision
        )


@dataclass(frozen=True)
class DetectionConfig(Settings):
    """One training of a detector, wholly."""

    parts: ClassVar[tuple[str, ...]] = ("files", "model", "head", "inference", "train", "machine")
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        **dict.fromkeys(("epochs", "batch_size", "devices", "nodes"), (1, math.inf)),
        **dict.fromkeys(("image_size", "max_size", "proposals"), (1, math.inf)),
        "rois": (4, math.inf),  # a quarter of fewer is no foreground
        "anchor_scale": (0.25, math.inf),  # below, the finest anchors are rounded to nothing
        **dict.fromkeys(("width", "features", "heads", "detections"), (1, math.inf)),
        **dict.fromkeys(("weight_decay", "warmup", "decay"), (0, math.inf)),
        **dict.fromkeys(("workers", "save_seconds"), (0, math.inf)),
        **dict.fromkeys(("gamma", "focal_gamma", "alpha"), (0, math.inf)),
        **dict.fromkeys(("lr", "tau"), (ABOVE_ZERO, math.inf)),
        **dict.fromkeys(("momentum", "mean_momentum", "score_threshold"), (0, 1)),
        **dict.fromkeys(("repeat_threshold", "eql_share", "milestones"), (0, 1)),
    }
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """shapes-lvis, coco-small, lvis-v0.5, lvis-v1, or a folder with instances_train.json,
    instances_val.json and images/."""
    method: str = "deconfound-tde"
    """focal, eql, baseline, cosine, capsule, deconfound, and the last three with -tde."""
    backbone: str = "resnet50"
    """Any network of timm with feature maps, as resnet101.tv_in1k or resnext101_64x4d.tv_in1k."""
    seed: int = 0
    """Of everything random in training; never of the data."""
    files: FilesConfig = field(default_factory=FilesConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    train: DetectionTrainConfig = field(default_factory=DetectionTrainConfig)
    machine: DetectionMachineConfig = field(default_factory=DetectionMachineConfig)

    @classmethod
    def preset(cls, data: str) -> "DetectionConfig":
        """The defaults for the data set called `data`."""
        config = DetectionConfig(data=data)
        if data.startswith("lvis-"):
            # the authors lengthened the window of the mean for v1.0
            decay = 0.9998 if data == "lvis-v1" else 0.9
            return config.with_options(
                backbone="resnet101.tv_in1k", pretrained=True, norm="frozen", mean_momentum=decay
            )
        if data == "shapes-lvis":
            return config.with_options(
                **dict(backbone="resnet18", width=128, features=512, masks="agnostic"),
                **dict(image_size=160, max_size=160, anchor_scale=1.5, proposals=200, rois=64),
                **dict(epochs=24, batch_size=32, lr=0.04, warmup=200),
                eql_share=0.05,  # the rare and the common, as EQL's own threshold on LVIS
            )
        if data == "coco-small":
            return config.with_options(
                **dict(backbone="resnet18", width=128, image_size=320, max_size=480),
                **dict(anchor_scale=2.0, proposals=300, rois=128, epochs=30, warmup=100),
            )
        return config

    @property
    def row(self) -> TrainingRow:
        """How the method is trained."""
        return TRAININGS[self.training]

    @property
    def training(self) -> str:
        """The method without -tde: methods of one training share it."""
        return self.method.removesuffix("-tde")

    @property
    def tde(self) -> Tde:
        """How detections of this method are scored."""
        return self.inference.tde if self.method.endswith("-tde") else "off"

    def check(self) -> None:
        """Refuse values that no training could have, whoever set them."""
        super().check()
        if self.method not in METHODS:
            raise unknown("detection method", self.method, METHODS, ", ".join(METHODS))
        if self.tde == "off" and self.inference.tde == "plain":  # the other one is the default
            with_tde = f"{self.training}-tde"
            way = f"pass --method {with_tde}" if with_tde in METHODS else "leave --tde out"
            raise UserError(f"--method {self.method} is scored without TDE, not --tde plain: {way}")
        if self.model.pretrained != (self.model.norm == "frozen"):
            raise UserError(
                "--pretrained weights come with the statistics that --norm frozen keeps, and "
                "training from scratch has none to keep: pass both, or neither"
            )
        if self.model.image_size > self.model.max_size:
            raise UserError(
                f"--image-size {self.model.image_size} is of an image's shorter side, and "
                f"--max-size {self.model.max_size} of its longer one: pass a --max-size that is "
                "not smaller"
            )
