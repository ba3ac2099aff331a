"""Losses, samplers and heads for a long tail, for any training loop.

Shapes: B images of a batch, C classes, N training images.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from longtail.core.errors import UserError, unknown_error
from longtail.core.names import count_noun
from longtail.data.base import ClassCounts
from longtail.data.samplers import TailSampler
from longtail.nn import losses
from longtail.nn.heads import DeconfoundHead
from longtail.nn.losses import Outputs, State
from longtail.nn.ops import at_least_float32

LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross-entropy": losses.cross_entropy,
    "focal": losses.focal,
    "class-balanced": losses.class_balanced,
    "ldam": losses.ldam,
    "eql": losses.eql,
    "balanced-softmax": losses.balanced_softmax,
}
"""The losses of `Tail.loss`. The methods of the same names train with the same functions."""
LARGEST = {"beta": math.nextafter(1.0, 0.0), "ignore": 1.0}
"""Largest value of an option; the others have none."""


class Tail:
    """The class counts of a training set, and what they give to any training loop.

    Everything is plain PyTorch: modules that take (logits, target), a sampler for a `DataLoader`,
    tensors of weights. Nothing needs our own engine.

    Args:
        counts: training images of each class (C,).

    Examples:
        >>> import torch, longtail as lt
        >>> labels = torch.arange(3).repeat_interleave(torch.tensor([500, 50, 5]))
        >>> tail = lt.Tail.of(labels)
        >>> tail
        Tail(3 classes, 555 images, imbalance 100)
        >>> tail.splits()
        {'many': (0,), 'medium': (1,), 'few': (2,)}
        >>> logits, target = torch.randn(8, 3), torch.arange(8) % 3
        >>> loss = tail.loss("balanced-softmax")(logits, target)
        >>> sampler = tail.sampler("class")
        >>> torch.bincount(labels[list(sampler)])
        tensor([185, 185, 185])
        >>> tail.head(dim=64)(torch.randn(8, 64)).shape
        torch.Size([8, 3])
    """

    def __init__(self, counts: ArrayLike | Tensor | ClassCounts) -> None:
        images = _to_integers(counts.images if isinstance(counts, ClassCounts) else counts, "count")
        if not images.sum():
            raise UserError("counts hold no training image: give the images of each class")
        self.counts = ClassCounts(tuple(images.tolist()))
        self._labels: Tensor | None = None

    @classmethod
    def of(cls, labels: ArrayLike | Tensor, classes: int | None = None) -> "Tail":
        """Count the classes of the training labels (N,), which `sampler` then draws from.

        A `Tail` is for one label per image.

        Args:
            labels: the class of each training image, 0 to C - 1, in the order of the data set.
            classes: number C of classes; the largest label plus one by default.
        """
        values = torch.from_numpy(_to_integers(labels, "label"))
        least = int(values.max()) + 1
        if classes is not None and classes < least:
            raise UserError(f"label {least - 1} is not one of {classes} classes: they count from 0")
        tail = cls(torch.bincount(values, minlength=classes or 0))
        tail._labels = values
        return tail

    def loss(self, name: str, **options: float) -> "TailLoss":
        """Return a loss as a module that takes logits (B, C) and a target, and averages.

        The target holds classes (B,), or probabilities (B, C) as of Mixup. `ldam` expects `scale`
        times a cosine as logits: those of `lt.CosineHead(dim, classes, tau=30)`.

        Args:
            name: balanced-softmax | class-balanced | cross-entropy | eql | focal | ldam.
            options: of the loss, such as `gamma=2.0` for focal; `longtail.nn.losses` has them all.
        """
        return TailLoss(name, self.counts, **options)

    def sampler(
        self,
        kind: str,
        labels: ArrayLike | Tensor | None = None,
        *,
        size: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
    ) -> TailSampler:
        """Return a sampler for a `DataLoader`, right under DDP and resumable.

        Args:
            kind: class (all classes equally often) | square-root (a class in proportion to the
                root of its count) | reversed (in proportion to 1 / count) | instance (every image
                once).
            labels: (N,) of the data set that the loader reads; those of `Tail.of` by default.
            size: images of an epoch over all ranks; N by default.
            seed: of the order of every epoch.
            rank: of this process; that of `torch.distributed` by default.
            world: number of processes; that of `torch.distributed`, or 1, by default. Give rank 0
                and world 1 where the trainer shares the batches among the ranks itself, as
                accelerate does.
        """
        rows = self._labels if labels is None else torch.from_numpy(_to_integers(labels, "label"))
        if rows is None:
            raise UserError(
                "a sampler needs labels: pass them, or make the tail by Tail.of(labels)"
            )
        if rows.max() >= len(self.counts):
            raise UserError(f"label {int(rows.max())} is not one of {len(self.counts)} classes")
        size = len(rows) if size is None else size
        if not isinstance(size, Integral):
            raise UserError(f"size {size!r} must be a whole number: the images of an epoch")
        return TailSampler(kind, rows, self.counts, int(size), seed, rank, world)

    def weights(self, beta: float = 0.9999) -> Tensor:
        """Return class weights (C,) with mean 1: 1 / effective number of images (Cui et al. 2019).

        Args:
            beta: 0 gives equal weights; near 1 they are in proportion to 1 / count.
        """
        _check_option("weights", "beta", beta)
        return losses.effective_weights(self.counts.tensor(), beta)

    def head(self, dim: int, **options: Any) -> DeconfoundHead:
        """Return a `DeconfoundHead` for features of length `dim`, with options of that class."""
        return DeconfoundHead(dim, len(self.counts), **options)

    def adjust(self, logits: Tensor, tau: float = 1.0) -> Tensor:
        """Remove the class prior from logits (..., C): z - tau * log(n / N) (Menon et al. 2021)."""
        _check_classes(logits, self.counts)
        _check_option("adjust", "tau", tau)
        counts = self.counts.tensor().to(logits.device).clamp(min=1)
        return at_least_float32(logits) - tau * torch.log(counts / counts.sum())

    def splits(self) -> dict[str, tuple[int, ...]]:
        """Return the classes with many (> 100), medium (20 to 100) and few (< 20) images."""
        return self.counts.splits

    def __repr__(self) -> str:
        images = self.counts.images
        imbalance = max(images) / max(1, min(images))
        numbers = count_noun(len(images), "class", "classes"), count_noun(sum(images), "image")
        return f"Tail({', '.join(numbers)}, imbalance {imbalance:g})"


class TailLoss(nn.Module):
    """A loss of `longtail.nn.losses` that knows the class counts: (logits, target) -> scalar."""

    counts: Tensor
    _unused: Tensor

    def __init__(self, name: str, counts: ClassCounts, **options: float) -> None:
        super().__init__()
        if name not in LOSSES:
            raise unknown_error("loss", name, LOSSES, f"they are {', '.join(LOSSES)}")
        parameters = inspect.signature(LOSSES[name]).parameters
        known = [key for key, at in parameters.items() if at.kind is at.KEYWORD_ONLY]
        for key, value in options.items():
            if key not in known:
                listed = ", ".join(known) or "none"
                raise unknown_error(f"option of {name}", key, known, f"its options: {listed}")
            _check_option(name, key, value)
        self.name, self.options, self.classes = name, options, counts
        self._loss = partial(LOSSES[name], **options)
        # integers, since half precision would make large counts infinite
        self.register_buffer("counts", counts.tensor().long(), persistent=False)
        self.register_buffer("_unused", torch.zeros(()), persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of logits (B, C) for a target (B,) or (B, C)."""
        _check_classes(logits, self.classes)
        if logits.ndim != 2 or target.shape not in (logits.shape[:1], logits.shape):
            raise UserError(  # the shapes could also broadcast to a wrong number
                f"a target of shape {tuple(target.shape)} does not fit logits of shape "
                f"{tuple(logits.shape)}: pass logits (B, C), and classes (B,) or probabilities "
                "(B, C)"
            )
        # these losses read only the logits, the counts and torch's own generator
        rest = dict.fromkeys(("progress", "lr", "mu"), self._unused)
        state = State(**rest, counts=self.counts.float(), generator=None)  # type: ignore[arg-type]
        outputs = Outputs(features=self._unused, logits=at_least_float32(logits))
        try:
            return self._loss(outputs, target, state)
        except (IndexError, RuntimeError):  # only then is the target read: a good one costs nothing
            if target.ndim == 1 and target.device.type == "cpu":
                _check_target(target, len(self.classes))
            raise

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


def _to_integers(values: Any, what: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return `values` as int64 (N,), or raise a `UserError` that names the first wrong one."""
    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iuf":
        kind = f"{array.dtype} of shape {array.shape}"
        several = (
            ". A Tail is for one label per image" if what == "label" and array.ndim > 1 else ""
        )
        raise UserError(f"{what}s must be a list of whole numbers, not {kind}{several}")
    with np.errstate(invalid="ignore"):  # a NaN does not equal itself below
        whole = array.astype(np.int64)
    wrong = np.flatnonzero((whole != array) | (whole < 0))
    if len(wrong):
        first = wrong[0]
        raise UserError(f"{what} {array[first]} at {first} must be a whole number from 0 up")
    return whole


def _check_option(name: str, option: str, value: float) -> None:
    if not isinstance(value, Real):
        raise UserError(f"{name}: {option} {value!r} must be a number")
    most = LARGEST.get(option, math.inf)
    least = math.ulp(0.0) if option == "scale" else 0.0
    if not (least <= value <= most and math.isfinite(value)):
        above = "above 0" if least else "at least 0"
        below = {"beta": " and below 1", "ignore": " and at most 1"}.get(option, "")
        raise UserError(f"{name}: {option} {value:g} must be {above}{below}")


def _check_target(target: Tensor, classes: int) -> None:
    wrong = target[(target < 0) | (target >= classes)]
    if len(wrong):
        raise UserError(
            f"target {wrong[0].item()} is not one of {classes} classes: they count from 0"
        ) from None


def _check_classes(logits: Tensor, counts: ClassCounts) -> None:
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise UserError(f"logits must be a tensor, not {kind}: pass torch.as_tensor(logits)")
    if logits.shape[-1:] != (len(counts),):
        raise UserError(
            f"logits of shape {tuple(logits.shape)} do not fit {len(counts)} classes: the last "
            "dimension must be the classes"
        )
