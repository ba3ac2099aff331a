"""The optimiser, and the groups of parameters that differ in learning rate or weight decay."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from longtail.core.config import TrainConfig
from longtail.core.errors import unknown_error


def build_optimizer(
    train: TrainConfig, model: nn.Module, lr: Tensor, head_lr: Tensor | None = None
) -> torch.optim.Optimizer:
    """Build the optimiser of all parameters that are not frozen; `momentum` is Adam's beta1.

    `lr` and `head_lr` are the device tensors of the learning rates.
    """
    trained = _group_parameters(train, model, lr, lr if head_lr is None else head_lr)
    shared: dict[str, Any] = {"lr": lr, "weight_decay": train.weight_decay, "fused": True}
    if train.optimizer == "sgd":
        return torch.optim.SGD(trained, momentum=train.momentum, **shared)
    adams: dict[str, Callable[..., torch.optim.Optimizer]]
    adams = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if train.optimizer not in adams:
        raise unknown_error("optimizer", train.optimizer, ["sgd", *adams])
    shared |= {"betas": (train.momentum, 0.999), "capturable": lr.is_cuda}
    return adams[train.optimizer](trained, **shared)


def _group_parameters(
    train: TrainConfig, model: nn.Module, lr: Tensor, head_lr: Tensor
) -> list[nn.Parameter] | list[dict[str, Any]]:
    """Group the parameters that are not frozen: backbone and head, with and without decay.

    All are one list if they share the learning rate and the decay.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if train.head_lr is None and train.decay_norms:
        return list(trained.values())
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    exempt = _list_exempt(model)
    for name, parameter in trained.items():
        small = name.endswith("bias") or parameter.ndim < 2 or name in exempt
        groups[name.startswith("head."), train.decay_norms or not small].append(parameter)
    return [
        {
            "params": parameters,
            "lr": head_lr if in_head else lr,
            "weight_decay": train.weight_decay if decays else 0.0,
        }
        for (in_head, decays), parameters in groups.items()
    ]


def _list_exempt(model: nn.Module) -> set[str]:
    """List what networks themselves exempt from decay, as transformers do position embeddings."""
    return {
        f"{place}.{name}"
        for place, module in model.named_modules()
        if hasattr(module, "no_weight_decay")
        for name in module.no_weight_decay()
    }
