"""Thin bridges to other libraries; each module imports its framework only when used."""

from importlib import import_module
from typing import Any

from longtail.core.errors import UserError

EXTRAS = {
    "huggingface": "transformers and accelerate",
    "lightning": "",
    "ray": "ray[data]",
    "timm": "",
    "torchvision": "",
    "ultralytics": "ultralytics",
}
"""Modules, and what their extra installs."""


def __getattr__(name: str) -> Any:
    if name not in EXTRAS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if not EXTRAS[name] or str(error.name).startswith("longtail"):
            raise
        raise UserError(
            f"{error.name} is missing: pip install 'longtail[{name}]' installs {EXTRAS[name]}"
        ) from error


def __dir__() -> list[str]:
    return sorted(EXTRAS)
