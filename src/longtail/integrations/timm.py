"""timm: its networks with the de-confounded head; `lt.Tail.loss` takes the targets of its Mixup."""

from pathlib import Path
from typing import Any

import timm
from torch import nn

from longtail.core.errors import UserError, unknown_error
from longtail.integrations.parts import swap_last_layer

HEADS = ("deconfound", "linear")


def create_model(
    name: str,
    num_classes: int | None = None,
    head: str = "deconfound",
    head_options: dict[str, float] | None = None,
    **options: Any,
) -> nn.Module:
    """Create a network of timm whose classifier is a `DeconfoundHead`.

    It stays a network of timm: `get_classifier`, `pretrained_cfg`, the optimisers, `ModelEmaV3` and
    checkpoints of timm work as before. `reset_classifier` puts timm's own layer back.

    Args:
        name: as timm has it.
        num_classes: number of classes; that of the network's weights by default.
        head: deconfound, or linear for timm's own layer.
        head_options: of `DeconfoundHead`, such as `{"tau": 16.0}`.
        options: of `timm.create_model`, such as `pretrained=True`. A `checkpoint_path` may be of
            this network or of timm's own.

    Raises:
        UserError: if the network has two classifiers, as distilled ones do.
    """
    if head not in HEADS:
        raise unknown_error("head", head, HEADS, f"they are {', '.join(HEADS)}")
    if head == "linear" and head_options:
        raise UserError(
            "head_options are for the head deconfound: leave them out, or head='linear'"
        )
    path = options.get("checkpoint_path")
    swapped = head == "deconfound" and path and _has_head(path)
    if swapped:  # timm would load it before the swap
        options = {**options, "checkpoint_path": ""}
    model: nn.Module = timm.create_model(name, num_classes=num_classes, **options)
    if head == "deconfound":
        classifier: Any = model.get_classifier
        if isinstance(classifier(), tuple):
            raise UserError(
                f"{name} has two classifiers, one of them for distillation, and the head replaces "
                "one: use a network with one classifier, or head='linear'"
            )
        classes: Any = model.num_classes
        swap_last_layer(model, classes, **(head_options or {}))
    if swapped:
        timm.models.load_checkpoint(model, str(path))
    return model


def _has_head(path: str | Path) -> bool:
    """Return whether a checkpoint is of a network with a normalised head."""
    if Path(path).suffix in (".npz", ".npy"):  # published weights in JAX's layout
        return False
    return any(key.endswith(".mean_feature") for key in timm.models.load_state_dict(str(path)))
