"""Every option of a training run, as frozen dataclasses that are also the command line.

This module does not import torch, so that `longtail --help` answers at once. Options never change
after construction; defaults that depend on the data set come from its name (`Config.preset`). A
method's own options share the command line, as in `--heads 4`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from longtail.core.options import ABOVE_ZERO, TO_ONE, Settings

PRETRAINED = "pretrained"
"""The word for a network's published weights, where a file could be named."""


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from."""

    root: Path | None = None
    """Folder of named data sets, or of the images of a list or table; $LONGTAIL_DATA by default."""
    labels: Path | None = None
    """Labels of the images in the folder DATA: a .csv or .tsv table, or a COCO .json file."""
    list: Path | None = None
    """Training list in the style of ImageNet-LT: one 'path label' per line, numbers or text."""
    val_list: Path | None = None
    """Validation list in the same format."""
    test_list: Path | None = None
    """Test list in the same format."""
    val_fraction: float = 0.0
    """Fraction of each training class to hold out, for choices and for calibrated probabilities, if
    the data has no validation part."""
    image_size: int | None = None
    """Resize and centre-crop images of folders, lists and parquet files to this many pixels."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """How to resize images; by default as for the weights that a run starts from, else bilinear."""
    stream: bool = False
    """Decode images of folders and lists from disk for each batch, as longtail does by itself when
    they do not fit into memory; needs --image-size."""
    evaluate_on: Literal["test", "val"] = "test"
    """Part to evaluate on; `val` leaves the test part unread while you choose a recipe."""
    corrupt: Literal["stop", "skip"] = "stop"
    """What to do with an unreadable image: stop and name it, or name it and skip it."""
    subset_seed: int = 0
    """Which images a cut to a ratio keeps, as in cifar100-lt:100; 0 keeps those of our figures."""
    min_count: int = 0
    """Drop classes with fewer training images than this."""
    download: bool = False
    """Download CIFAR from its authors when it is not under --root."""


@dataclass(frozen=True)
class TrainConfig:
    """Optimiser, schedule and augmentation. Defaults are the paper's CIFAR recipe."""

    epochs: int = 200
    """Passes over the training set. Methods of several stages take a share of it for each: see the
    column stages of `longtail methods`."""
    batch_size: int = 256
    """Images per step, over all ranks."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The paper uses SGD. For Adam and AdamW --momentum is beta1, which the paper names as the same
    confounder; the running mean feature then decays with beta1."""
    lr: float = 0.2
    """Peak learning rate. It is not rescaled with --batch-size."""
    head_lr: float | None = None
    """Peak learning rate of the head, on the same schedule; --lr by default."""
    momentum: float = 0.9
    """mu of Eq. 1, and the decay of the running mean feature (Assumption 1)."""
    mean_decay: Literal["momentum", "rate"] = "momentum"
    """Decay of the mean feature: `momentum`, or 1 - (1 - momentum) * min(50 lr, 1), which widens
    its window as the learning rate falls (ImageNet-LT)."""
    weight_decay: float = 5e-4
    """Applied to every parameter, as in the authors' code, unless there is --no-decay-norms."""
    decay_norms: bool = True
    """Apply the weight decay also to biases and to parameters of fewer than two dimensions."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, which replaces them at the end of
    training, with batch statistics computed anew; at step t it is (1 + t) / (10 + t) at most. 0
    keeps the trained weights."""
    drop: float = 0.0
    """Fraction of the features that dropout sets to zero before the head while training."""
    freeze: bool = False
    """Train only the head: the network computes the features of the training images once, without
    augmentation."""
    schedule: Literal["steps", "cosine", "one-cycle"] = "steps"
    """How the learning rate falls after the warm-up, once per epoch; `one-cycle` sets it at every
    step: a warm-up over a tenth of the steps, then a cosine to zero."""
    warmup: int = 5
    """Epochs of linear warm-up: lr * (epoch + 1) / warmup; `one-cycle` does not use it."""
    milestones: tuple[float, ...] = (0.6, 0.8)
    """Fractions of the epochs at which `--schedule steps` multiplies the learning rate by
    --decay."""
    decay: float = 0.01
    """Factor by which `--schedule steps` multiplies the learning rate."""
    augment: Literal[
        "none",
        "crop",
        "crop-flip",
        "resized-crop",
        "trivialaugment",
        "randaugment",
        "autoaugment",
    ] = "crop-flip"
    """Random crop of the padded image and random flip; or, for photographs, random resized crop,
    flip and colour jitter. The last three crop and flip, resized for inputs above 64 pixels, and
    then apply the random operations of that policy."""
    flip: bool = True
    """Mirror half of the images, unless --augment is `none` or `crop`."""
    area: float = 0.08
    """Least fraction of the image that a random resized crop covers."""
    pad: int = 4
    """Pixels of zero padding before a crop that is not resized."""
    crop_size: int | None = None
    """Pixels per side of the network's input; the whole image by default. Evaluation uses the
    centre crop; smaller images are enlarged."""
    cutout: float = 0.0
    """Side of a black square in every training image, as a fraction of the shorter side; 0.5 is
    usual (DeVries and Taylor 2017), and 0 leaves it out."""
    jitter: float = 0.4
    """Largest relative change of brightness, contrast and saturation with `--augment
    resized-crop`."""
    mixup: float = 0.0
    """Share of the batches in which each image is blended with another (Zhang et al. 2018)."""
    cutmix: float = 0.0
    """Share of the batches in which each image gets a box from another (Yun et al. 2019)."""
    cutmix_box: Literal["inside", "clipped"] = "inside"
    """Where the box of --cutmix lies: entirely inside the image, or around any pixel and clipped at
    the border, as that paper and torchvision have it, which makes it smaller on average."""
    donors: Literal["instance", "class"] = "instance"
    """Where the other image of --mixup and --cutmix comes from: the same batch, or a second one in
    which all classes are equally frequent, which needs the class counts."""
    keep_short_batch: bool = False
    """Also train on the short last batch of an epoch, which is dropped by default."""


PHOTOGRAPHS = TrainConfig(mean_decay="rate", schedule="cosine", warmup=0, augment="resized-crop")
"""The paper's ImageNet-LT recipe."""


@dataclass(frozen=True)
class MachineConfig:
    """Devices and processes.

    None of this changes what is computed, up to rounding, but for batch statistics and losses that
    compare images of a batch: they see the images of one process, and of one part of its step.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """`auto` uses CUDA if available; `mps` is the GPU of a Mac, in float32."""
    devices: int = 1
    """Processes on this host; torchrun and SLURM set this themselves."""
    nodes: int = 1
    """Number of hosts."""
    precision: Literal["auto", "32", "bf16"] = "auto"
    """Precision of the backbone; `auto` is bf16 on CUDA and float32 elsewhere. Heads always
    normalise in float32."""
    graph: bool = True
    """Capture the whole step as a CUDA graph on one CUDA device; --no-graph runs it eagerly."""
    compile: bool = False
    """Compile the backbone with torch.compile: half a minute once, then faster steps."""
    accumulate: int = 1
    """Split each device's batch into this many parts and accumulate their gradients: less memory,
    the same step, but for batch statistics and losses that compare images of a batch."""
    sync_batchnorm: bool = False
    """Share batch statistics between CUDA devices instead of computing them per device."""
    workers: int | None = None
    """Processes that decode streamed images; by default this process's share of the cores."""
    replicas: int = 8
    """Trainings (seeds, methods, data sets) to run side by side on one CUDA device; elsewhere they
    run one after another."""
    save_seconds: float = 30.0
    """Seconds between checkpoints, which are saved at the end of an epoch; 0 saves every epoch."""


RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("epochs", "batch_size", "replicas"), (1, math.inf)),
    **dict.fromkeys(("devices", "nodes"), (1, 1025)),  # each device is a process
    **dict.fromkeys(("image_size", "crop_size"), (1, 8193)),  # a larger image fills the memory
    "accumulate": (1, math.inf),
    **dict.fromkeys(("min_count", "workers", "weight_decay", "warmup"), (0, math.inf)),
    "pad": (0, 1025),
    **dict.fromkeys(("save_seconds", "decay", "jitter", "subset_seed"), (0, math.inf)),
    **dict.fromkeys(("momentum", "milestones", "val_fraction", "drop", "ema", "cutout"), (0, 1)),
    **dict.fromkeys(("lr", "head_lr"), (ABOVE_ZERO, math.inf)),
    **dict.fromkeys(("mixup", "cutmix"), (0, TO_ONE)),
    "area": (ABOVE_ZERO, TO_ONE),
}


ADAPTIVE = (
    *("backbone", "image_size", "crop_size", "epochs", "batch_size", "optimizer", "lr", "head_lr"),
    *("weight_decay", "decay_norms", "schedule", "warmup", "drop", "augment", "area", "pad"),
    "cutmix",
)
"""Options whose defaults follow from the data when the images are the user's own."""


@dataclass(frozen=True)
class Config(Settings):
    """Options of one training run."""

    parts: ClassVar[tuple[str, ...]] = ("files", "train", "machine")
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = RANGES
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """Name of a data set, or path of your own: a folder, .csv, .parquet or .npz; see `longtail
    data`."""
    method: str = "deconfound-tde"
    """A method from `longtail methods`, several separated by commas, or `all`."""
    options: Annotated[Mapping[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """The method's own options, as in `--heads 4`."""
    backbone: str = "resnet32-dual"
    """Network: resnet32, resnet32-dual, conv4, a timm name such as resnet50, torchvision/NAME, or
    identity for embeddings."""
    weights: str | None = None
    """Weights to start from: a file, or `pretrained` for the network's published ones, which
    --pretrained means too."""
    seed: int = 0
    """Seed of everything random in training; the data subset does not depend on it."""
    flips: bool = False
    """Also evaluate with the mean logits of every image and its mirror image; the result has these
    figures as `flips`, beside the plain ones."""
    background: str = ""
    """Class that keeps its total effect, since it is frequent for a good reason (Eq. 9); for
    methods with an alpha."""
    adaptive: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """Options that are still to be set from the data; one that is given leaves this list."""
    recipe_name: Annotated[str, tyro.conf.Suppress] = ""
    """Name of the recipe that set the defaults; empty without one."""
    files: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    @classmethod
    def preset(cls, data: str, *, embeddings: bool = False) -> "Config":
        """Return the defaults for the data set called `data`, or for `embeddings`."""
        name = data.split(":")[0]
        if name in ("letters-lt", "digits-lt"):
            # letters may be shifted but not flipped: b is not d
            small = TrainConfig(epochs=30, batch_size=128, lr=0.1, augment="crop", pad=1)
            return Config(data=data, backbone="conv4", train=small)
        if embeddings or name.endswith(".npz"):
            vectors = TrainConfig(epochs=100, lr=0.1, augment="none")
            return Config(data=data, method="auto", backbone="identity", train=vectors)
        if name in ("cifar10-lt", "cifar100-lt"):
            return Config(data=data)
        if name == "tiny-imagenet-lt":
            small = replace(PHOTOGRAPHS, batch_size=128, lr=0.1, epochs=60)
            return Config(data=data, backbone="resnext50_32x4d", train=small)
        if name in ("imagenet-lt", "places-lt", "inaturalist18"):
            backbone = "resnet50" if name == "inaturalist18" else "resnext50_32x4d"
            large = replace(PHOTOGRAPHS, batch_size=512, lr=0.2, epochs=90, crop_size=224)
            return Config(data, backbone=backbone, files=DataConfig(image_size=256), train=large)
        return Config(data=data, method="auto", backbone="resnet18", adaptive=ADAPTIVE)
