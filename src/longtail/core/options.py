"""What every set of options can do: take flat names, check its values, go to YAML and back.

The conversion is written by hand because the libraries for it lose what our errors promise: the
value, the rule and the nearest valid name.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml

from longtail.core.errors import UserError, unknown_error
from longtail.core.plain import parse_yaml

P = TypeVar("P")
ABOVE_ZERO = 1e-12
"""The least value of an option that may be any number above 0."""
TO_ONE = 1 + 1e-12
"""The value below which an option stays that may be any number up to 1."""

LARGEST = {int: 2**31 - 1, float: 1e30}
"""Largest number that an option may be, by its type: float32 and the machine must hold it."""


class Settings(ABC):
    """A frozen dataclass of options, some of them in parts that are dataclasses too (abstract)."""

    parts: ClassVar[tuple[str, ...]]
    """Names of the fields that are parts."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]]
    """Least value of an option, and the value it must stay below."""

    @classmethod
    @abstractmethod
    def preset(cls, data: str) -> Self:
        """Return the defaults for the data set called `data`."""

    def with_options(self, **options: Any) -> Self:
        """Return a copy with flat names set where they belong; the rest go to the method."""
        parts: dict[str, dict[str, Any]] = {part: {} for part in self.parts}
        top: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in options.items():
            home = next((p for p in parts if name in _names(getattr(self, p))), None)
            if home:
                parts[home][name] = value
            elif name in self._top_names():
                top[name] = value
            elif "options" in _names(self):
                own |= value if name == "options" else {name: value}
            else:
                raise unknown_error("option", name, self.flat_names())
        if "adaptive" in self._top_names() - top.keys():
            top["adaptive"] = [name for name in self.adaptive if name not in options]  # type: ignore[attr-defined]
        nested: dict[str, Any] = {p: with_values(getattr(self, p), parts[p]) for p in parts}
        if own:
            nested["options"] = {**self.options, **own}  # type: ignore[attr-defined]
        return replace(with_values(self, top), **nested)  # type: ignore[type-var]

    def flat_names(self) -> set[str]:
        """Return every option that `with_options` can place."""
        return self._top_names().union(*(_names(getattr(self, part)) for part in self.parts))

    def _top_names(self) -> set[str]:
        return _names(self) - {*self.parts, "options"}

    def check(self) -> None:
        """Refuse values of the wrong type or out of range, whoever set them."""
        with_values(self, {name: getattr(self, name) for name in self._top_names()})
        for part in self.parts:
            check_values(getattr(self, part), self.ranges)

    def to_yaml(self) -> str:
        """Return the options as text that `from_yaml` reads back."""
        text = json.dumps(asdict(self), default=fspath)  # type: ignore[call-overload]
        return yaml.safe_dump(json.loads(text), sort_keys=False)  # no tuples and no paths

    @classmethod
    def from_yaml(cls, text: str, source: str = "config", data: str = "") -> Self:
        """Read the output of `to_yaml`, or a recipe that names only what differs from the preset.

        A recipe's `paper` and `seeds` belong to the benchmarks and are skipped. `data` serves a
        recipe that names none. Errors name `source`.
        """
        tree = parse_yaml(text, source)
        if not isinstance(tree, dict):
            raise UserError(f"{source} must be a mapping of options, like 'method: baseline'")
        tree = {name: value for name, value in tree.items() if name not in ("paper", "seeds")}
        tree.setdefault("data", data)
        config = cls.preset(convert(tree["data"], str, f"{source}: data"))
        own = _take_sections(tree, _names(config) & {"options"}, source)
        flat: dict[str, Any] = {}
        for part, section in _take_sections(tree, cls.parts, source).items():
            known = _names(getattr(config, part))
            for name in section:
                if name not in known:
                    raise unknown_error(f"option of {part} in {source}", str(name), known)
            flat |= section
        for name in tree:
            if name not in _names(config):
                home = next((p for p in cls.parts if name in _names(getattr(config, p))), "")
                more = f"it belongs under '{home}:'" if home else ""
                raise unknown_error(f"option in {source}", str(name), _names(config), more)
        try:
            return replace(config.with_options(**flat, **tree), **own)  # type: ignore[type-var]
        except UserError as error:
            raise UserError(f"{source}: {error}") from None


def differences(old: Settings, new: Settings) -> list[str]:
    """List the options that differ, as 'train.epochs 200 -> 90', but not those of the machine."""
    before, after = _flatten(asdict(old)), _flatten(asdict(new))  # type: ignore[call-overload]
    return [
        f"{name} {before.get(name)} -> {after.get(name)}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name) and not name.startswith("machine.")
    ]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(_flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


def with_values(part: P, values: Mapping[str, Any]) -> P:
    """Return a copy of a dataclass of options with `values`, converted to their fields' types."""
    kinds = _kinds(type(part))  # type: ignore[arg-type]  # mypy takes no class for hashable
    read = {name: convert(value, kinds[name], name) for name, value in values.items()}
    return replace(part, **read)  # type: ignore[type-var]


def check_values(part: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse values of a dataclass of options that have the wrong type or are out of range."""
    for name, kind in _kinds(type(part)).items():  # type: ignore[arg-type]
        value = convert(getattr(part, name), kind, name)
        least, below = ranges.get(name, (-math.inf, math.inf))
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) not in LARGEST:
                continue
            if not least <= number < below:
                raise UserError(f"{_flag(name)} {number}: {_rule(number, least, below)}")
            if abs(number) > (largest := LARGEST[type(number)]):
                raise UserError(f"{_flag(name)} {number}: must be at most {largest:g}")


def convert(value: Any, kind: Any, name: str) -> Any:
    """Convert `value` to the type `kind` of the option `name`: YAML has no tuples and no paths."""
    inner = get_args(kind)
    if get_origin(kind) in (UnionType, Union):  # the latter of a Literal
        (given,) = set(inner) - {NoneType}
        return None if value is None else convert(value, given, name)
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in inner}  # YAML reads 32 as a number
        if str(value) not in choices:
            raise unknown_error(_flag(name), str(value), choices, f"one of {', '.join(choices)}")
        return choices[str(value)]
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{name} takes a list, like [0.6, 0.8], not {value!r}")
        return tuple(convert(item, inner[0], name) for item in value)
    accepted, words = _ACCEPTED[kind]
    if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
        try:
            return kind(value)
        except (ValueError, OverflowError):  # text that is not a number, or one beyond float
            pass
    raise UserError(f"{name} takes {words}, not {value!r}")


_ACCEPTED: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: ((Real, str), "a number"),  # YAML reads 1e-1 as text
    str: (str, "one name"),
    Path: ((str, PathLike), "a path"),
}
"""The values that each type of option accepts, and their name in an error."""


def _take_sections(tree: dict[str, Any], names: Iterable[str], source: str) -> dict[str, Any]:
    """Remove the mappings called `names` from `tree` and return them."""
    sections = {name: tree.pop(name, None) or {} for name in names}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(f"{source}: {name} holds options, like 'epochs: 90', not {section!r}")
    return sections


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _rule(number: float, least: float, below: float) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return "must be finite"
    if below == math.inf:
        return "must be above 0" if least == ABOVE_ZERO else f"must be at least {least}"
    if below == TO_ONE:
        above = "above 0" if least == ABOVE_ZERO else f"at least {least}"
        return f"must be {above} and at most 1"
    return f"must be at least {least} and less than {below}"


@cache  # it compiles every annotation, and a run reads its options dozens of times
def _kinds(part: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass of options."""
    return get_type_hints(part)


def _names(part: Any) -> set[str]:
    return {f.name for f in fields(part)}
