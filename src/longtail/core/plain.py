"""Plain values from JSON and YAML files; every damaged file is a `UserError` that names it."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import yaml

from longtail.core.errors import UserError

MOST_NODES = 100_000
"""Values of a YAML file after its aliases are expanded; far more than any recipe has."""
SHOWN = 60
"""Characters of a wrong value that an error shows."""


def read_text(path: Path) -> str:
    """Read a text file, which is UTF-8 whatever the system's own encoding."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # not UTF-8, or a path with a null byte
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from None


def read_json(path: Path) -> Any:
    """Read the values of a JSON file."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON; errors name `source`, the file."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{source} is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{source} is not readable JSON: {error}") from None


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML; errors name `source`, the file.

    An alias stands for as many values as its anchor, so that a few lines can stand for billions:
    such files are refused before they are expanded.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _count_nodes(node, {}) > MOST_NODES:
                raise UserError(f"{source} stands for more than {MOST_NODES:,} values")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise UserError(f"{source} is nested too deeply") from None
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as an impossible date
        raise UserError(f"{source} is not readable YAML: {error}") from None


def _count_nodes(node: yaml.Node, counted: dict[int, int]) -> int:
    """Count the values that `node` stands for; an anchor that holds itself has no end."""
    if id(node) not in counted:
        counted[id(node)] = MOST_NODES + 1  # until it is known
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for item in inner for child in (item if type(item) is tuple else [item])]
        counted[id(node)] = 1 + sum(_count_nodes(child, counted) for child in children)
    return counted[id(node)]


def check_fields(tree: Any, kinds: Mapping[str, Any], source: str, way_out: str) -> None:
    """Raise an error unless `tree` is a mapping with values of these types under these names.

    The error names the file `source` and ends with `way_out`.
    """
    if not isinstance(tree, Mapping):
        raise UserError(f"{source} is damaged: it is not a mapping. {way_out}")
    for name, kind in kinds.items():
        if name not in tree or not fits(tree[name], kind):
            found = repr(tree[name])[:SHOWN] if name in tree else "missing"
            raise UserError(f"{source} is damaged: its {name} is {found}. {way_out}")


def fits(value: Any, kind: Any) -> bool:
    """Return whether a plain value has the type `kind`; a tuple is a list in JSON."""
    inner = get_args(kind)
    origin = get_origin(kind) or kind
    if kind is Any:
        return True
    if origin in (UnionType, Union):
        return any(fits(value, each) for each in inner)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and inner[-1] is not Ellipsis:
            return len(value) == len(inner) and all(map(fits, value, inner))
        return all(fits(each, inner[0]) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(each, inner[1]) for each in value.values())
    if origin in (int, float):
        numbers = int if origin is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, NoneType if kind is None else origin)
