"""Every option of a training, as frozen dataclasses that are also the command line.

No torch here: `longtail --help` must answer at once. Nothing changes after construction; what
depends on the data set is a preset chosen by its name (`Config.preset`). A method's own options
follow the same command line, as in `--heads 4`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from longtail.core.options import ABOVE_ZERO, Settings


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from."""

    root: Path | None = None
    """Folder of named data sets or of a list's images; else $LONGTAIL_DATA."""
    list: Path | None = None
    """Training list in the style of ImageNet-LT: 'path label' on each line."""
    val_list: Path | None = None
    """Validation list of the same form."""
    test_list: Path | None = None
    """Test list of the same form."""
    val_fraction: float = 0.0
    """Part of each training class that is held out when the data has no validation set."""
    image_size: int | None = None
    """Pixels to which folders, lists and parquet images are resized and centre-cropped."""
    stream: bool = False
    """Keep the images of folders and lists encoded on disk and decode them for each batch, as
    happens by itself when they do not fit into memory; needs `image_size`."""
    evaluate_on: Literal["test", "val"] = "test"
    """Part that results are reported on; `val` leaves the test part unread, to choose a recipe."""
    corrupt: Literal["stop", "skip"] = "stop"
    """What to do with an unreadable image: stop and name it, or name it and go on."""
    min_count: int = 0
    """Drop classes with fewer training images than this."""
    download: bool = False
    """Fetch CIFAR from its authors when it is not under `root`."""


@dataclass(frozen=True)
class TrainConfig:
    """How the weights move. Defaults are the paper's CIFAR recipe."""

    epochs: int = 200
    """Passes over the training set of a stage whose share is 1."""
    batch_size: int = 256
    """Images a step, over all ranks."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD is the paper's. For Adam and AdamW `momentum` is beta1, which the paper names as the
    same confounder; the running mean feature then decays with beta1."""
    lr: float = 0.2
    """Peak learning rate at `batch_size`; not rescaled for you."""
    momentum: float = 0.9
    """mu of Eq. 1, and the decay of the running mean feature (Assumption 1)."""
    mean_decay: Literal["momentum", "rate"] = "momentum"
    """Decay of the mean feature: `momentum`, or 1 - (1 - momentum) * min(50 lr, 1), which lengthens
    its window as the rate falls (ImageNet-LT)."""
    weight_decay: float = 5e-4
    """On every parameter, as the authors have it."""
    schedule: Literal["steps", "cosine"] = "steps"
    """Of the learning rate, once an epoch, after the warm-up."""
    warmup: int = 5
    """Epochs of linear warm-up: lr * (epoch + 1) / warmup."""
    milestones: tuple[float, ...] = (0.6, 0.8)
    """Parts of the epochs at which `steps` multiplies the rate by `decay`."""
    decay: float = 0.01
    """The factor of `steps`."""
    augment: Literal["none", "crop", "crop-flip", "resized-crop"] = "crop-flip"
    """Random crop out of the padded image, and mirror; or, for photographs, a random part of the
    image resized, mirror and colour jitter."""
    pad: int = 4
    """Pixels of zeros around an image before the crop of `crop` and `crop-flip`."""
    crop_size: int | None = None
    """Pixels of what the network sees; all of the image if not given. Judged is its middle, or all
    of it, enlarged, if it is smaller."""
    jitter: float = 0.4
    """Brightness, contrast and saturation change by up to this part with `resized-crop`."""
    keep_short_batch: bool = False
    """Also train on the short last batch of an epoch, which is dropped by default."""


@dataclass(frozen=True)
class MachineConfig:
    """Where it runs. None of this changes what is computed, up to rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one."""
    devices: int = 1
    """Processes on this host; under torchrun or SLURM they are counted for you."""
    nodes: int = 1
    """Hosts."""
    precision: Literal["auto", "32", "bf16"] = "auto"
    """Of the backbone: bf16 on CUDA, float32 elsewhere. Heads normalise in float32 always."""
    graph: bool = True
    """On one CUDA device, capture the whole step as a CUDA graph; --no-graph runs it eagerly."""
    compile: bool = False
    """Fuse the backbone's layers with torch.compile: half a minute once, then faster steps."""
    accumulate: int = 1
    """Parts of a step's batch, on each device, whose gradients are added up: less memory, the same
    step. Only batch statistics and what a loss looks up within a batch are those of each part."""
    sync_batchnorm: bool = False
    """On several CUDA devices, batch statistics of the whole batch instead of each device's own."""
    workers: int | None = None
    """Processes that read streamed images; the cores of this host, shared out, by default."""
    replicas: int = 8
    """Trainings (seeds, methods, data sets) side by side on one CUDA device; elsewhere they
    follow each other."""
    save_seconds: float = 30.0
    """A checkpoint after the first epoch, and then at the end of one after this long; 0 saves every
    epoch."""


RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("epochs", "batch_size", "devices", "nodes", "replicas", "accumulate"), (1, math.inf)
    ),
    **dict.fromkeys(("image_size", "crop_size"), (1, math.inf)),
    **dict.fromkeys(("min_count", "workers"), (0, math.inf)),
    **dict.fromkeys(
        ("weight_decay", "warmup", "pad", "save_seconds", "decay", "jitter"), (0, math.inf)
    ),
    "lr": (ABOVE_ZERO, math.inf),
    "momentum": (0, 1),
    "milestones": (0, 1),
    "val_fraction": (0, 1),
}


@dataclass(frozen=True)
class Config(Settings):
    """One training, wholly."""

    parts: ClassVar[tuple[str, ...]] = ("files", "train", "machine")
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = RANGES
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """Name, folder or file of the data set; see `longtail data`."""
    method: str = "deconfound-tde"
    """A name of `longtail methods`, several with commas, or `all`."""
    options: Annotated[Mapping[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """The method's own options, as in `--heads 4`."""
    backbone: str = "resnet32-dual"
    """resnet32 (64-d), resnet32-dual (128-d), conv4, identity, or any timm name."""
    seed: int = 0
    """Of everything random in training; never of the data subset."""
    files: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    @classmethod
    def preset(cls, data: str) -> "Config":
        """The defaults for the data set called `data`."""
        name = data.split(":")[0]
        if name in ("letters-lt", "digits-lt"):
            # a letter may be shifted, never mirrored: b is not d
            small = TrainConfig(epochs=30, batch_size=128, lr=0.1, augment="crop", pad=1)
            return Config(data=data, backbone="conv4", train=small)
        if name.endswith(".npz"):
            vectors = TrainConfig(epochs=100, lr=0.1, augment="none")
            return Config(data=data, backbone="identity", train=vectors)
        if name in ("cifar10-lt", "cifar100-lt"):
            return Config(data=data)
        if name == "tiny-imagenet-lt":
            small = photographs(batch_size=128, lr=0.1, epochs=60)
            return Config(data=data, backbone="resnext50_32x4d", train=small)
        if name in ("imagenet-lt", "places-lt", "inaturalist18"):
            backbone = "resnet50" if name == "inaturalist18" else "resnext50_32x4d"
            large = photographs(batch_size=512, lr=0.2, epochs=90, crop_size=224)
            return Config(data, backbone=backbone, files=DataConfig(image_size=256), train=large)
        return Config(data=data, backbone="resnet18", train=TrainConfig(pad=8))


def photographs(**options: Any) -> TrainConfig:
    """The paper's recipe for ImageNet-LT but for what `options` say."""
    cosine = TrainConfig(mean_decay="rate", schedule="cosine", warmup=0, augment="resized-crop")
    return replace(cosine, **options)
