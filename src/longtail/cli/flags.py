"""Flags of a command: tyro reads them from words into the command's dataclass."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from longtail.core.errors import UserError, unknown

REGISTRY = ConstructorRegistry()
"""How tyro reads the types of our options."""


def read_flags(program: str, kind: type, words: list[str], **default: Any) -> Any:
    """Return a `kind` with the options that `words` set.

    Args:
        program: the command as the user typed it, for errors.
        kind: the dataclass of a command.
        words: what follows the command.
        default: `default=` an instance of `kind` that holds the other options.

    Raises:
        UserError: if `kind` has no such option.
    """
    command, extra = tyro.cli(
        kind,
        args=words,
        prog=program,
        config=(tyro.conf.OmitArgPrefixes,),
        return_unknown_args=True,
        registry=REGISTRY,
        **default,
    )
    if extra and extra[0].startswith("-"):
        flag = extra[0].partition("=")[0]
        help_flag = "--help-all" if hasattr(kind, "main_options") else "--help"
        raise unknown("option", flag, list_flags(kind), f"list them: add {help_flag}")
    if extra:
        raise UserError(f"unexpected argument '{extra[0]}' (see longtail --help)")
    return command


def list_flags(kind: type) -> list[str]:
    """List every flag of a command, including the --no- form of switches."""
    flags: list[str] = []
    for item in fields(kind):
        inner = item.type if isinstance(item.type, type) else None
        if inner and is_dataclass(inner):
            flags += list_flags(inner)
        else:
            name = item.name.replace("_", "-")
            flags += [f"--{name}", f"--no-{name}"] if inner is bool else [f"--{name}"]
    return flags


@REGISTRY.primitive_rule
def _optional_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Show `X | None` as `X` in help, and read the word None as None."""
    kind, *rest = get_args(info.type) or (None,)
    if rest != [type(None)]:
        return None
    if get_origin(kind) is Literal:
        return _choice_spec(get_args(kind))
    if kind not in (Path, str, int, float):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if words == ["None"] else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


def _choice_spec(choices: tuple[str, ...]) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(choices)}}}",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: value is None or value in choices,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )
