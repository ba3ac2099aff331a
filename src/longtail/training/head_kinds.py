"""Kinds of heads: a saved model names the class of its head and the numbers it is built with."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from longtail import methods
from longtail.core.errors import UserError, unknown_error
from longtail.core.plain import fits
from longtail.nn.heads import Head, NormalisedHead
from longtail.nn.linear_heads import TrainedBiasHead

MOST = 2**31
"""Largest whole number of a head that a file may ask for."""
LARGEST = 1e30
"""Largest number of a head that a file may ask for: its square must not overflow float32."""
ABSTRACT = (NormalisedHead, TrainedBiasHead)
"""Base classes that are no kind of head themselves."""
RULES = "see 'A head of your own' in docs/add-a-method.md"


def describe_head(head: Head) -> dict[str, Any]:
    """Return the class name of `head` as `kind`, and those of its arguments that are numbers."""
    arguments = _read_arguments(head)
    if isinstance(head, NormalisedHead) and "alpha" in arguments:
        arguments["alpha"] = float(head.alpha)
    numbers = {name: value for name, value in arguments.items() if isinstance(value, (int, float))}
    return {"kind": type(head).__name__, **numbers}


def find_head(name: str) -> type[Head]:
    """Find the head class called `name`; import the files of the methods only if none is ours."""
    found = _find_classes(name)
    if not any(kind.__module__.startswith("longtail.") for kind in found):
        methods.registry()
        found = _find_classes(name)
    if not found:
        known = sorted({kind.__name__ for kind in _list_classes()})
        raise unknown_error("kind of head", name, known, "is its method's file installed?")
    if len(found) > 1:
        places = " and ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in found)
        raise UserError(
            f"more than one head is called '{name}': {places}. A saved model knows its head by "
            "that name alone: rename all but one of them"
        )
    return found[0]


def check_head(head: nn.Module, method: str, classes: int) -> None:
    """Refuse a head of `method` that could not be reported, saved and built again."""
    kind = type(head).__name__
    if not isinstance(head, Head):
        raise UserError(
            f"{method}: its head {kind} is not a subclass of longtail.nn.heads.Head, so a saved "
            f"model could not build it again: derive it from Head ({RULES})"
        )
    for name, value in _read_arguments(head).items():
        if not (is_storable(value) or (isinstance(value, Tensor) and value.numel() == 1)):
            raise UserError(
                f"{method}: its head {kind} takes '{name}' and keeps no finite number in an "
                f"attribute of that name, so a saved model could not build it again: set "
                f"self.{name} to the number, or do not take it ({RULES})"
            )
    weight = getattr(head, "class_weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or len(weight) != classes:
        found = f"of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else "missing"
        raise UserError(
            f"{method}: the class_weight of its head {kind} is {found}, and must have one row for "
            f"each of the {classes} classes: keep Head's own weight, or return yours from a "
            f"property class_weight ({RULES})"
        )
    _check_rebuilt(head, method)


def _check_rebuilt(head: Head, method: str) -> None:
    """Build `head` again, as a saved model does, and compare the tensors of the two."""
    values = describe_head(head)
    kind = values.pop("kind")
    built = find_head(kind)
    try:
        with torch.random.fork_rng(devices=[]):
            same = _list_shapes(built(**values)) == _list_shapes(head)
        problem = "the tensors of the two differ"
    except (TypeError, ValueError) as error:
        same, problem = False, str(error)
    if not same:
        arguments = ", ".join(f"{name}={value}" for name, value in values.items())
        raise UserError(
            f"{method}: a saved model could not build its head again as {kind}({arguments}): "
            f"{problem}. Those numbers alone must determine the head ({RULES})"
        )


def is_storable(value: Any) -> bool:
    """Whether a file may hold `value` as a number of a head."""
    return fits(value, float | bool) and abs(value) <= (MOST if fits(value, int) else LARGEST)


def _read_arguments(head: Head) -> dict[str, Any]:
    """Return the attributes of `head` that are called like the arguments of its class."""
    return {name: getattr(head, name, None) for name in inspect.signature(type(head)).parameters}


def _list_shapes(head: Head) -> dict[str, Any]:
    return {name: getattr(value, "shape", None) for name, value in head.state_dict().items()}


def _find_classes(name: str) -> list[type[Head]]:
    """Find the head classes called `name`; of a class that was defined again, only the last."""
    found = [kind for kind in _list_classes() if kind.__name__ == name]
    return list({(kind.__module__, kind.__qualname__): kind for kind in found}.values())


def _list_classes(base: type[Head] = Head) -> list[type[Head]]:
    """List the classes below `base`, at any depth, that are kinds of heads."""
    below = base.__subclasses__()
    deeper = [kind for each in below for kind in _list_classes(each)]
    return [*(kind for kind in below if kind not in ABSTRACT), *deeper]
