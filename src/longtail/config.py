"""Every option of a training, as frozen dataclasses that are also the command line.

No torch here: `longtail --help` must answer at once. Nothing changes after construction; what
depends on the data set is a preset chosen by its name (`Config.preset`). A method's own options
follow the same command line, as in `--heads 4`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import tyro
import yaml

from longtail.errors import UserError, unknown


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
    judge: Literal["test", "val"] = "test"
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
    decode: Literal["workers", "device"] = "workers"
    """Where streamed JPEGs are decoded: by those processes, or by torchvision on the device, which
    is nvJPEG on CUDA and differs by a grey level here and there."""
    replicas: int = 8
    """Trainings (seeds, methods, data sets) side by side on one CUDA device; elsewhere they
    follow each other."""
    save_seconds: float = 30.0
    """A checkpoint at the end of the first epoch after this long; 0 saves every epoch."""


class Settings:
    """A frozen dataclass of options, some of them in parts that are dataclasses too (abstract)."""

    parts: ClassVar[tuple[str, ...]]
    """Names of the fields that are parts."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]]
    """Least value of an option, and the one it must stay below."""

    @classmethod
    def preset(cls, data: str) -> Self:
        """The defaults for the data set called `data`."""
        raise NotImplementedError

    def with_options(self, **options: Any) -> Self:
        """A copy with flat names set wherever they belong; the rest are the method's options."""
        parts: dict[str, dict[str, Any]] = {part: {} for part in self.parts}
        top: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in options.items():
            home = next((p for p in parts if name in _names(getattr(self, p))), None)
            if home:
                parts[home][name] = value
            elif name in _names(self) - {*parts, "options"}:
                top[name] = value
            elif "options" in _names(self):
                own[name] = value
            else:
                raise unknown("option", name, self.flat_names())
        nested = {part: replace(getattr(self, part), **parts[part]) for part in parts}
        if own:
            top["options"] = {**self.options, **own}  # type: ignore[attr-defined]
        return replace(self, **top, **nested)  # type: ignore[type-var]

    def flat_names(self) -> set[str]:
        """Every option that `with_options` knows the place of."""
        inner = (_names(getattr(self, part)) for part in self.parts)
        return (_names(self) - {*self.parts, "options"}).union(*inner)

    def check(self) -> None:
        """Refuse values that no training could have, whoever set them."""
        for part in (getattr(self, name) for name in self.parts):
            for name, kind in get_type_hints(type(part)).items():
                value = getattr(part, name)
                if get_origin(kind) is Literal and value not in get_args(kind):
                    raise unknown(_flag(name), str(value), get_args(kind), _either(get_args(kind)))
                least, below = self.ranges.get(name, (-math.inf, math.inf))
                if name in self.ranges and value is not None and not least <= value < below:
                    raise UserError(f"{_flag(name)} {value}: {_range(least, below)}")
                if name == "milestones" and not all(0 <= share <= 1 for share in value):
                    raise UserError(
                        f"--milestones {value} are parts of the epochs, each from 0 to 1"
                    )

    def to_yaml(self) -> str:
        """As text that `from_yaml` reads back."""
        return yaml.safe_dump(_plain(asdict(self)), sort_keys=False)  # type: ignore[call-overload]

    @classmethod
    def from_yaml(cls, text: str, source: str = "config", data: str = "") -> Self:
        """Read what `to_yaml` wrote, or a recipe that names only what differs from the preset.

        A recipe's `paper` and `seeds` are for the bench and are passed over here. `data` is for a
        recipe that names none.
        """
        try:
            tree = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"{source} is not readable YAML: {error}") from None
        if not isinstance(tree, dict):
            raise UserError(f"{source} must be a mapping of options, like 'method: baseline'")
        tree = {name: value for name, value in tree.items() if name not in ("paper", "seeds")}
        tree.setdefault("data", data)
        for name in ("data", "method", "backbone"):
            if not isinstance(tree.get(name, ""), str):
                raise UserError(f"{source}: {name} takes one name, not {tree[name]!r}")
        config = cls.preset(tree["data"])
        flat: dict[str, Any] = {}
        for part in cls.parts:
            section = tree.pop(part, None) or {}
            if not isinstance(section, dict):
                raise UserError(
                    f"{source}: {part} holds options, like 'epochs: 90', not {section!r}"
                )
            known = _names(getattr(config, part))
            for name, value in section.items():
                if name not in known:
                    raise unknown(f"option of {part} in {source}", name, known)
                flat[name] = _typed(value, getattr(getattr(config, part), name), name)
        own = {"options": tree.pop("options", None) or {}} if "options" in _names(config) else {}
        for name in tree:
            if name not in _names(config):
                home = next((p for p in cls.parts if name in _names(getattr(config, p))), "")
                more = f"it belongs under '{home}:'" if home else ""
                raise unknown(f"option in {source}", name, _names(config), more)
        return replace(config.with_options(**flat, **tree), **own)  # type: ignore[type-var]


RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("epochs", "batch_size", "devices", "nodes", "replicas", "accumulate"), (1, math.inf)
    ),
    "crop_size": (1, math.inf),
    "workers": (0, math.inf),
    **dict.fromkeys(
        ("weight_decay", "warmup", "pad", "save_seconds", "decay", "jitter"), (0, math.inf)
    ),
    "lr": (1e-12, math.inf),
    "momentum": (0, 1),
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


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _either(values: tuple[Any, ...]) -> str:
    return "one of " + ", ".join(map(str, values))


def _range(least: float, below: float) -> str:
    if below == math.inf:
        return "it must be above 0" if 0 < least < 1 else f"it must be at least {least}"
    return f"it must be from {least} to below {below}"


def _names(part: Any) -> set[str]:
    return {f.name for f in fields(part)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _typed(value: Any, default: Any, name: str) -> Any:
    """YAML has no tuples and no paths."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise UserError(f"{name} takes a list, like [0.6, 0.8], not {value!r}")
        return tuple(value)
    if isinstance(default, float) and not isinstance(default, bool):
        try:
            return float(value)  # YAML reads 1e-1 as text
        except (TypeError, ValueError):
            raise UserError(f"{name} takes a number, not {value!r}") from None
    if type(default) is int and type(value) is not int:
        raise UserError(f"{name} takes a whole number, not {value!r}")
    return Path(value) if value is not None and name in _PATHS else value


_PATHS = {"root", "list", "val_list", "test_list"}
