"""Methods by name. Every public function in this folder that returns a `Method` is a method.

Its name, with hyphens, is what users type; its keyword arguments are the method's options.
"""

import importlib
import inspect
import math
import pkgutil
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from longtail.core.errors import UserError, unknown_error
from longtail.methods.base import Method


@cache
def registry() -> dict[str, Callable[..., Method]]:
    """Return every method by the name that users type."""
    found: dict[str, Callable[..., Method]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and inspect.signature(function).return_annotation is Method:
                found[name.replace("_", "-")] = function
    return found


def list_names(*, multi_label: bool = False) -> list[str]:
    """List the methods for images with one label each, or for those with several."""
    return [name for name in registry() if build(name).multi_label is multi_label]


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the options of the method called `name`."""
    return dict(inspect.signature(_find(name)).parameters)


def explain_foreign_option(names: Sequence[str], option: str) -> str | None:
    """Explain that none of the methods called `names` has `option`; None if no method has it."""
    if option == "alpha" and "auto" in names:
        return "auto chooses its own rule; with a fixed --alpha train --method deconfound-tde"
    having = [name for name in registry() if option in options_of(name)]
    flag = f"--{option.replace('_', '-')}"
    return f"{','.join(names)} has no {flag}; these do: {', '.join(having)}" if having else None


def describe(name: str) -> str:
    """Return the first line of the method's docstring."""
    return (inspect.getdoc(_find(name)) or "").splitlines()[0]


def read_meanings(name: str) -> dict[str, str]:
    """Return the meaning of each option that an `Args:` section of the method's docstring has."""
    _, _, section = (inspect.getdoc(_find(name)) or "").partition("\nArgs:\n")
    indented = re.split(r"^(?=\S)", section, maxsplit=1, flags=re.MULTILINE)[0]
    entries = re.findall(r"^(\w+):(.*(?:\n(?!\S).*)*)", textwrap.dedent(indented), re.MULTILINE)
    return {option: " ".join(text.split()).removesuffix(".") for option, text in entries}


def parse_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options of the method called `name` from strings to their types."""
    known = options_of(name)
    return {key: _parse(name, known, key, value) for key, value in options.items()}


def build(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Build the method called `name` with `options`."""
    values = parse_options(name, options or {})
    try:
        return _find(name)(**values)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def _find(name: str) -> Callable[..., Method]:
    if name not in registry():
        raise unknown_error("method", name, registry(), "list them: longtail methods")
    return registry()[name]


def _parse(method: str, known: Mapping[str, inspect.Parameter], key: str, value: Any) -> Any:
    """Convert `value` to the type of the option's default; keep "auto" if the option takes it."""
    if key not in known:
        listed = ", ".join(known) or "none"
        raise unknown_error(f"option of {method}", key, known, f"its options: {listed}")
    option = known[key]
    if option.annotation is str:
        return str(value)
    if option.annotation is bool:
        return _parse_switch(method, key, value)
    kind = float if option.default == "auto" else type(option.default)
    auto = " or auto" if "auto" in str(option.annotation) else ""
    if value == "auto" and auto:
        return value
    try:
        parsed = kind(float(value)) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError):
        parsed = None
    whole = kind is not int or (parsed is not None and float(value) == parsed)
    if parsed is None or not whole or not math.isfinite(parsed):
        number = "a whole number" if kind is int else "a number"
        flag = key.replace("_", "-")
        raise UserError(
            f"{method}: --{flag} takes {number}{auto}, not '{value}' (default {option.default})"
        )
    return parsed


def _parse_switch(method: str, key: str, value: Any) -> bool:
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise UserError(f"{method}: --{key} is a switch: give it without a value, not '{value}'")
    return words[str(value).lower()]
