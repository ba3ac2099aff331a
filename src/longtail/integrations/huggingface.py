"""transformers: the head, losses and metrics for classifiers and their `Trainer`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.evaluation.alpha import choose_by_effects
from longtail.integrations import parts
from longtail.nn.heads import DeconfoundHead
from longtail.nn.tail import Tail
from longtail.training.head_kinds import describe_head

NAME = "longtail_head"
"""Key of a model's configuration that describes its head."""


def swap_head(model: Any, tail: Tail, **options: float) -> DeconfoundHead:
    """Replace the last layer of an `AutoModelFor...Classification` by a `DeconfoundHead`.

    The configuration remembers the head: `save_pretrained` saves it, and `load_classifier` loads
    it. The head takes the options of `DeconfoundHead`.
    """
    layer, head = parts.swap_last_layer(model, len(tail.counts), **options)
    setattr(model.config, NAME, {"layer": layer, **describe_head(head)})
    return head


def load_classifier(folder: str | Path) -> Any:
    """Load what `save_pretrained` saved of a model with a swapped head, in eval mode.

    The `from_pretrained` of transformers would build its own last layer.
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    about = dict(getattr(config, NAME, None) or {})
    if not about:
        raise UserError(f"{folder} holds no head of longtail: load it by from_pretrained")
    layer, _ = about.pop("layer"), about.pop("kind")
    name = (config.architectures or [""])[0]
    base = getattr(transformers, name, None)
    if base is None:
        raise UserError(f"{folder}: transformers has no class '{name}', which the model needs")

    def build(self: Any, config: Any, *args: Any, **options: Any) -> None:
        base.__init__(self, config, *args, **options)
        self.set_submodule(layer, DeconfoundHead(**about))

    names = {"__init__": build, "__module__": base.__module__}
    with_head: Any = type(base.__name__, (base,), names)
    model, found = with_head.from_pretrained(folder, output_loading_info=True)
    if missing := sorted(found["missing_keys"]):
        raise UserError(f"{folder} has no weight {missing[0]}: save the model again")
    loaded, head = model.get_submodule(layer), DeconfoundHead(**about)
    head.load_state_dict(loaded.state_dict())  # a fresh head has its momentum, which is not saved
    model.set_submodule(layer, head.to(loaded.weight.device, loaded.weight.dtype))
    model.__class__ = base
    return model.eval()


def make_loss(tail: Tail, name: str, **options: float) -> Callable[..., Tensor]:
    """Return a loss of `Tail.loss` for the argument `compute_loss_func` of a `Trainer`."""
    loss = tail.loss(name, **options)

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        mean: Tensor = loss.to(logits.device)(logits, labels)
        # the Trainer adds up the parts of an accumulated batch, and counts all numbers of labels
        return mean if num_items_in_batch is None else mean * (labels.numel() / num_items_in_batch)

    return compute_loss


def make_metrics(tail: Tail) -> Callable[[Any], dict[str, float]]:
    """Return the accuracy by split for the argument `compute_metrics` of a `Trainer`."""
    return lambda found: parts.measure_splits(tail, *_read_output(found))


def choose_alpha(trainer: transformers.Trainer, data: Any) -> float:
    """Set the head's alpha to the best on held-out data, and return it.

    Of soft labels (N, C) the most probable class counts.
    """
    head = parts.find_head(trainer.model)
    own, logits = float(head.alpha), []
    try:
        for alpha in (0.0, 1.0):  # TDE is linear in alpha
            head.alpha = alpha
            found, labels = _read_output(trainer.predict(data))
            logits.append(found)
    finally:
        head.alpha = own
    classes = parts.read_classes(logits[0], labels, head.classes)
    head.alpha = choose_by_effects(logits[0], logits[0] - logits[1], classes)
    return float(head.alpha)


def _read_output(found: Any) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,) or (N, C); some models output more than logits."""
    if found.label_ids is None:
        raise UserError("the data has no labels: give every item a value called labels")
    logits = found.predictions
    first = logits[0] if isinstance(logits, tuple) else logits
    return torch.as_tensor(first), torch.as_tensor(found.label_ids)


class TailCallback(transformers.TrainerCallback):
    """Lets the head's mean feature decay by the momentum of the optimiser, or Adam's beta1."""

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module, optimizer: Any, **rest: Any
    ) -> None:
        parts.follow_momentum(parts.find_head(model), getattr(optimizer, "optimizer", optimizer))
