"""Help: the overview of `longtail`, and the options of one command.

A command with many options lists the most used ones in `main_options`. `--help` shows only these,
`--help-all` shows the others too, as advanced options.
"""

import ast
import inspect
import textwrap
from collections.abc import Collection
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from itertools import pairwise
from typing import Annotated, Any, NoReturn, TypeAlias

import tyro

from longtail.cli.commands import COMMANDS
from longtail.cli.flags import REGISTRY

HELP_WORDS = ("-h", "--help", "--help-all")

Row: TypeAlias = tuple[str, Any, Any]
"""Name, type and default of an option, or of a group of options."""
HELP_ALL: Row = (
    "help_all",
    Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        tyro.conf.arg(help="show the advanced options too", help_behavior_hint=""),
    ],
    False,
)


def overview(family: str = "") -> str:
    """Return the text of `longtail --help`, or of the help of a family such as `detect`."""
    lines = ["Long-tailed recognition: bring the rare classes back.", "", "Commands:"]
    shown = {name: kind for name, kind in COMMANDS.items() if not family or family in name.split()}
    width = max(map(len, shown))
    for name, kind in shown.items():
        lines.append(f"  longtail {name:<{width}}  {(kind.__doc__ or '').splitlines()[0]}")
    lines += ["", "Add --help to a command for its options and examples. Start with: longtail demo"]
    return "\n".join(lines)


def print_help(program: str, kind: Any, default: Any = None, *, advanced: bool = False) -> NoReturn:
    """Print the help of a command and exit.

    Args:
        program: the command as the user types it.
        kind: its dataclass.
        default: an instance whose values are shown as defaults; else those of the class.
        advanced: show the advanced options too.
    """
    names = getattr(kind, "main_options", ())
    main: dict[str, Row] = {}
    others = _list_rows(kind, default, names, main)
    rows = [*(main[name] for name in names), HELP_ALL] if names else others
    if names and advanced:
        rows.append(_group("advanced", others, f"All other options of {program}."))
    examples = textwrap.indent(inspect.cleandoc(kind.examples), "  ")
    tyro.cli(
        make_dataclass("Options", rows, kw_only=True),
        args=["--help"],
        prog=program,
        description=f"{inspect.cleandoc(kind.__doc__)}\n\nExamples:\n{examples}",
        config=(tyro.conf.OmitArgPrefixes,),
        registry=REGISTRY,
    )
    raise AssertionError("tyro exits after --help")


def _list_rows(
    kind: Any, default: Any, main_names: Collection[str], main: dict[str, Row]
) -> list[Row]:
    """List the options of a dataclass, in groups; those of `main_names` go into `main` instead."""
    rows: list[Row] = []
    texts = _help_texts(kind)
    for item in fields(kind):
        value = _default_value(item) if default is None else getattr(default, item.name)
        if item.name == "config":
            rows += _list_rows(item.type, value, main_names, main)
        elif is_dataclass(item.type):
            inner = _list_rows(item.type, value, main_names, main)
            rows.append(_group(item.name, inner, item.type.__doc__))
        elif item.name in main_names:
            main[item.name] = _option(item, value, texts.get(item.name))
        else:
            rows.append(_option(item, value, texts.get(item.name)))
    return rows


def _default_value(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _option(item: Field[Any], value: Any, text: str | None) -> Row:
    """Describe one option; an empty default is not shown."""
    empty = value is MISSING or value is None or value is False or value in ("", ())
    hint = "" if empty else None  # None: as tyro words it
    kind = Annotated[item.type, tyro.conf.arg(help=text, help_behavior_hint=hint)]  # type: ignore[name-defined]
    return item.name, kind, field() if value is MISSING else field(default_factory=lambda: value)


def _group(name: str, rows: list[Row], text: str | None) -> Row:
    kind = make_dataclass(name, rows, kw_only=True, namespace={"__doc__": text})
    return name, kind, field(default_factory=kind)


def _help_texts(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, on one line."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for item, text in pairwise(tree.body):
        if isinstance(item, ast.AnnAssign) and isinstance(text, ast.Expr):
            texts[ast.unparse(item.target)] = " ".join(ast.literal_eval(text.value).split())
    return texts
