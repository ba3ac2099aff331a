"""What a training took, and which training it was: a part of every result."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


@dataclass(frozen=True)
class Cost:
    """What the training took: an evaluation copies it."""

    recipe_id: str
    """Shared by runs that one training can serve."""
    seconds: float
    """From the first step to the last evaluation, without capture."""
    images: int
    """Images that this training saw, over all samplers and stages."""
    images_per_second: float
    """Training images per second, over all replicas."""
    device: str
    training_id: str | None = field(default=None, kw_only=True)
    """Drawn when the training started; None if unknown, as in older results."""
    weights_sha256: str | None = field(default=None, kw_only=True)
    """Hash of model.safetensors; None if unknown."""
    ranks: int | None = field(default=None, kw_only=True)
    """Processes that trained it together; None if unknown, as in older results."""

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> Self:
        """Read the cost back from a stored result."""
        names = [item.name for item in fields(cls)]
        return cls(**{name: result[name] for name in names if name in result})


@dataclass(frozen=True)
class ClassifierCost(Cost):
    """What the training of a classifier took."""

    capture_seconds: float
    """Spent on compiling and capturing the step; next to nothing where it runs eagerly."""
    replicas: int
    """Trainings that shared the device during these seconds."""
