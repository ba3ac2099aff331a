"""What every set of options can do: take flat names, check its values, go to YAML and back."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import yaml

from longtail.errors import UserError, unknown


class Settings(ABC):
    """A frozen dataclass of options, some of them in parts that are dataclasses too (abstract)."""

    parts: ClassVar[tuple[str, ...]]
    """Names of the fields that are parts."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]]
    """Least value of an option, and the one it must stay below."""

    @classmethod
    @abstractmethod
    def preset(cls, data: str) -> Self:
        """The defaults for the data set called `data`."""

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
