"""All options of a detector's training, as frozen dataclasses that define the command line.

Like `longtail.core.config`, it does not import torch. Defaults are the paper's LVIS recipe.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import tyro

from longtail.core.config import PRETRAINED, MachineConfig
from longtail.core.errors import UserError, unknown_error
from longtail.core.options import ABOVE_ZERO, Settings

Tde = Literal["off", "plain", "background-exempt"]
StageAverage = Literal["probabilities", "logits"]


class TrainingRow(NamedTuple):
    """Head and loss of one row of the paper's table."""

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
"""Methods of the paper's table of LVIS; X-tde shares the training of X."""


@dataclass(frozen=True)
class FilesConfig:
    """Location of the images."""

    root: Path | None = None
    """Folder of named data sets; $LONGTAIL_DATA by default."""


@dataclass(frozen=True)
class ModelConfig:
    """Options of the network."""

    pretrained: bool = False
    """Start from timm's ImageNet weights, downloaded on first use; freeze stem and first block."""
    weights: str | None = None
    """Start from the weights of a file instead, in the same way."""
    norm: Literal["frozen", "group"] = "group"
    """`frozen` batch statistics for pretrained weights, `group` normalisation from scratch."""
    width: int = 256
    """Channels of the pyramid and of the mask heads."""
    features: int = 1024
    """Length D of the features that the box classifiers take."""
    masks: Literal["class", "agnostic"] = "class"
    """One mask for each class, or one for all classes."""
    image_size: int = 800
    """Pixels of an image's shorter side."""
    max_size: int = 1333
    """Most pixels of an image's longer side."""
    anchor_scale: float = 4.0
    """Anchors have sides of 8, 16, 32, 64 and 128 times this many pixels; torchvision uses 4."""
    proposals: int = 1000
    """Proposals per image that the first stage takes."""
    rois: int = 512
    """Regions per image in training, at most a quarter of them foreground; each stage trains masks
    on at most that quarter."""


@dataclass(frozen=True)
class HeadConfig:
    """Options of each stage's box classifier and its loss."""

    heads: int | None = None
    """Number K of heads; by default 2 for deconfound and 1 for cosine and capsule, as in the
    paper."""
    tau: float = 16.0
    """Scale of the logits."""
    gamma: float = 1 / 32
    """Constant that deconfound adds to each weight's norm."""
    mean_momentum: float = 0.9
    """Decay of the mean foreground feature (LVIS v1.0: 0.9998)."""
    focal_gamma: float = 2.0
    """Exponent of the focal loss."""
    eql_share: float = 1.77e-3
    """eql treats classes in at most this part of the training images as rare: the 915 classes of
    LVIS v0.5 with at most 100 of its 56,740 annotated images."""


@dataclass(frozen=True)
class InferenceConfig:
    """Options of scoring and selecting detections, which may change without training."""

    alpha: float = 1.5
    """How much of the indirect effect a -tde method removes (Eq. 8)."""
    tde: Tde = "background-exempt"
    """How a -tde method removes it: `plain` from all classes, `background-exempt` from all but the
    background (Eq. 9)."""
    average: StageAverage = "probabilities"
    """Average of the three stages: of their probabilities, or of their logits before one softmax or
    sigmoid."""
    detections: int = 300
    """Most detections per image."""
    score_threshold: float = 1e-4
    """Drop detections with a lower score."""


@dataclass(frozen=True)
class DetectionTrainConfig:
    """Options of the optimiser and its schedule."""

    epochs: int = 20
    """Passes over the training set."""
    batch_size: int = 16
    """Images per step, over all ranks."""
    lr: float = 0.02
    """Peak learning rate at `batch_size`; it is not rescaled for other batch sizes."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-4
    """Weight decay of every parameter."""
    schedule: Literal["steps", "cosine"] = "steps"
    """Schedule of the learning rate after the warm-up."""
    warmup: int = 500
    """Steps of linear warm-up."""
    milestones: tuple[float, ...] = (0.8, 0.95)
    """Parts of the training at which the schedule `steps` multiplies the rate by `decay`."""
    decay: float = 0.1
    """Factor of the schedule `steps`."""
    flip: bool = True
    """Mirror a random half of the images."""
    repeat_threshold: float = 0.0
    """Repeat-factor sampling: repeat images of classes that are in less than this part of the
    images (0.001 is usual); 0 shows each image once."""


@dataclass(frozen=True)
class DetectionMachineConfig:
    """Options of the machine, which change results only by rounding.

    There is one exception: with `--norm frozen` and images of several sizes, each process pads its
    images to the largest one in its part of the batch.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto` takes CUDA if available."""
    devices: int = 1
    """Processes on this host; torchrun and SLURM set the number themselves."""
    nodes: int = 1
    """Number of hosts."""
    precision: Literal["auto", "32", "bf16"] = "auto"
    """`auto` is bf16 on CUDA and float32 elsewhere; boxes and heads always use float32."""
    workers: int = 8
    """Threads or processes that decode images; 0 decodes between the steps."""
    save_seconds: float = 60.0
    """Least seconds between two checkpoints, which are saved after an epoch; 0 saves every
    epoch."""

    @staticmethod
    def from_machine(machine: MachineConfig) -> "DetectionMachineConfig":
        """Take the options that a classifier's machine has in common with a detector's."""
        shared = {item.name: getattr(machine, item.name) for item in fields(DetectionMachineConfig)}
        if machine.workers is None:
            del shared["workers"]
        return DetectionMachineConfig(**shared)

    def to_machine(self) -> MachineConfig:
        """Return the options that launch the engine."""
        return MachineConfig(
            device=self.device, devices=self.devices, nodes=self.nodes, precision=self.precision
        )


@dataclass(frozen=True)
class DetectionConfig(Settings):
    """Options of one training run of a detector."""

    parts: ClassVar[tuple[str, ...]] = ("files", "model", "head", "inference", "train", "machine")
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        **dict.fromkeys(("epochs", "batch_size", "devices", "nodes"), (1, math.inf)),
        **dict.fromkeys(("image_size", "max_size", "proposals"), (1, math.inf)),
        "rois": (4, math.inf),  # a quarter of fewer leaves no foreground
        "anchor_scale": (0.25, math.inf),  # smaller anchors would round to an empty box
        **dict.fromkeys(("width", "features", "heads", "detections"), (1, math.inf)),
        **dict.fromkeys(("weight_decay", "warmup", "decay"), (0, math.inf)),
        **dict.fromkeys(("workers", "save_seconds"), (0, math.inf)),
        **dict.fromkeys(("gamma", "focal_gamma", "alpha"), (0, math.inf)),
        **dict.fromkeys(("lr", "tau"), (ABOVE_ZERO, math.inf)),
        **dict.fromkeys(("momentum", "mean_momentum", "score_threshold"), (0, 1)),
        **dict.fromkeys(("repeat_threshold", "eql_share", "milestones"), (0, 1)),
    }
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """shapes-lvis, shapes-lvis-1k, coco-small, lvis-v0.5, lvis-v1, or a folder with
    instances_train.json, instances_val.json and images/."""
    method: str = "deconfound-tde"
    """focal, eql, baseline, cosine, capsule, deconfound; the last three also with -tde."""
    backbone: str = "resnet50"
    """Any timm network with feature maps, such as resnet101.tv_in1k or
    resnext101_64x4d.tv_in1k."""
    seed: int = 0
    """Seed of the training; data sets do not depend on it."""
    files: FilesConfig = field(default_factory=FilesConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    train: DetectionTrainConfig = field(default_factory=DetectionTrainConfig)
    machine: DetectionMachineConfig = field(default_factory=DetectionMachineConfig)

    @classmethod
    def preset(cls, data: str) -> "DetectionConfig":
        """Return the default options for the data set called `data`."""
        config = DetectionConfig(data=data)
        if data.startswith("lvis-"):
            # the authors average over a longer window on v1.0
            decay = 0.9998 if data == "lvis-v1" else 0.9
            return config.with_options(
                backbone="resnet101.tv_in1k", pretrained=True, norm="frozen", mean_momentum=decay
            )
        if data in ("shapes-lvis", "shapes-lvis-1k"):
            thousand = data == "shapes-lvis-1k"
            return config.with_options(
                **dict(backbone="resnet18", width=128, features=512, masks="agnostic"),
                **dict(image_size=160, max_size=160, anchor_scale=1.5, proposals=200, rois=64),
                **dict(epochs=12 if thousand else 24, batch_size=32, lr=0.04, warmup=200),
                # rare and common classes, like EQL's own threshold on LVIS
                eql_share=0.0084 if thousand else 0.05,
            )
        if data == "coco-small":
            return config.with_options(
                **dict(backbone="resnet18", width=128, image_size=320, max_size=480),
                **dict(anchor_scale=2.0, proposals=300, rois=128, epochs=30, warmup=100),
            )
        return config

    @property
    def start(self) -> str | None:
        """The weights that the backbone starts from: a file, `pretrained`, or None."""
        return self.model.weights or (PRETRAINED if self.model.pretrained else None)

    @property
    def row(self) -> TrainingRow:
        """Head and loss of the method."""
        return TRAININGS[self.training]

    @property
    def training(self) -> str:
        """The method without -tde, which methods with the same training share."""
        return self.method.removesuffix("-tde")

    @property
    def tde(self) -> Tde:
        """How TDE scores this method's detections."""
        return self.inference.tde if self.method.endswith("-tde") else "off"

    def check(self) -> None:
        """Refuse values and combinations that cannot be trained.

        Raises:
            UserError: with the option and a way out.
        """
        super().check()
        if self.method not in METHODS:
            raise unknown_error("detection method", self.method, METHODS, ", ".join(METHODS))
        with_tde = f"{self.training}-tde"
        if self.tde == "off" and self.inference.tde == "plain":  # background-exempt is the default
            way = f"pass --method {with_tde}" if with_tde in METHODS else "leave --tde out"
            raise UserError(f"--method {self.method} is scored without TDE, not --tde plain: {way}")
        if with_tde not in METHODS and self.inference.alpha != InferenceConfig.alpha:
            raise UserError(
                f"--method {self.method} has no TDE, so --alpha {self.inference.alpha:g} would "
                "change nothing: leave it out"
            )
        if bool(self.start) != (self.model.norm == "frozen"):
            flag = "--weights FILE" if self.model.weights else "--pretrained"
            flag = flag if self.start else "--pretrained (or --weights FILE)"
            raise UserError(
                f"{flag} and --norm frozen belong together: --norm frozen keeps the batch "
                "statistics of pretrained weights. Pass both, or neither"
            )
        if self.model.image_size > self.model.max_size:
            raise UserError(
                f"--image-size {self.model.image_size} is an image's shorter side and --max-size "
                f"{self.model.max_size} its longer one: pass a --max-size that is not smaller"
            )
