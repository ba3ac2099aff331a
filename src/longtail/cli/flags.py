"""Flags of a command: tyro reads them into the command's dataclass, and shows them as help.

A command with many options lists the most used ones in `main_options`. `--help` shows only these,
`--help-all` shows the others too, as advanced options.
"""

import ast
import inspect
import io
import re
import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import partial
from itertools import dropwhile, islice, pairwise, takewhile
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from longtail.core.errors import UserError, suggest, unknown_error

REGISTRY = ConstructorRegistry()
"""How tyro reads the types of our options."""
SETTINGS: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,), "registry": REGISTRY}
WIDEST = 100
"""Columns that a paragraph of a help text fills at most."""
Row: TypeAlias = tuple[str, Any, Any]
"""Name, type and default of an option, or of a group of options."""


def read_flags(program: str, kind: type, words: list[str], **default: Any) -> Any:
    """Return a `kind` with the options that `words` set; `default=` an instance with the others.

    `program` is the command as the user typed it, for errors.
    """
    _check_values(kind, words)
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            command, extra = tyro.cli(
                kind, args=words, prog=program, return_unknown_args=True, **SETTINGS, **default
            )
    except SystemExit:
        help_flag = "--help-all" if hasattr(kind, "main_options") else "--help"
        raise UserError(f"{_take_message(said.getvalue())} (see {program} {help_flag})") from None
    if extra and extra[0].startswith("-"):
        flag = extra[0].partition("=")[0]
        if flag in list_flags(kind):  # tyro reads the others
            way_out = f"write its value alone (see {program} --help)"
            raise UserError(f"{flag} is not an option: {way_out}")
        help_flag = "--help-all" if hasattr(kind, "main_options") else "--help"
        known = [*list_flags(kind), *(["--help"] if flag.startswith("--h") else [])]
        raise unknown_error("option", flag, known, f"list them: add {help_flag}")
    if extra:
        if ("--csv", extra[0]) in pairwise(words):  # a switch that looks as if it took a file
            raise UserError(f"--csv takes no file: pass -o {extra[0]}")
        hint = ""
        if program == "longtail train" and extra[0] in _list_after("--method", words):
            hint = ": commas separate methods, as in --method baseline,deconfound-tde"
        raise UserError(f"unexpected argument '{extra[0]}'{hint} (see {program} --help)")
    return command


def hyphenate(kind: type, words: Sequence[str]) -> list[str]:
    """Write the flags of a command with hyphens, such as --batch-size for --batch_size."""
    known, end = set(list_flags(kind)), words.index("--") if "--" in words else len(words)
    written = []
    for word in words[:end]:
        flag, sign, value = word.partition("=")
        hyphened = flag.replace("_", "-")
        written.append(f"{hyphened}{sign}{value}" if hyphened in known else word)
    return [*written, *words[end:]]


def _check_values(kind: type, words: list[str]) -> None:
    """Refuse a flag of several values that has none: tyro takes it for an empty list."""
    several = set(_list_several(kind))
    for word, value in pairwise([*words, "--"]):
        if word in several and value.startswith("-") and not re.match(r"-[.\d]", value):
            raise UserError(f"{word} needs a value")


def _list_several(kind: type) -> Iterator[str]:
    """Yield the flags of a command that take several values."""
    for item in fields(kind):
        if isinstance(item.type, type) and is_dataclass(item.type):
            yield from _list_several(item.type)
        elif get_origin(item.type) is tuple:
            yield f"--{item.name.replace('_', '-')}"


def _list_after(flag: str, words: list[str]) -> list[str]:
    """List the words between `flag` and the next one, its value included."""
    after = dropwhile(lambda word: word.partition("=")[0] != flag, words)
    return list(takewhile(lambda word: not word.startswith("-"), islice(after, 1, None)))


def _take_message(box: str) -> str:
    """Return the first paragraph of an error that tyro printed in a box."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    inside = "\n".join(line.strip("│ ") for line in plain.splitlines()[1:])
    paragraphs = filter(str.strip, re.split(r"(?m)^[─-]*$", inside))
    message = " ".join(next(paragraphs).split())
    message = re.sub(r"^Missing from .*?: +(\S+) ", r"missing \1: ", message)
    return re.sub(r"^Error parsing (\S+): ", r"\1 ", message).removesuffix(" (required)")


def list_flags(kind: type) -> list[str]:
    """List every flag of a command, including the --no- form of switches."""
    flags: list[str] = []
    for item in fields(kind):
        if tyro.conf.Suppress in get_args(item.type):
            continue
        name = item.name.replace("_", "-")
        if isinstance(item.type, type) and is_dataclass(item.type):
            flags += list_flags(item.type)
        else:
            flags += [f"--{name}", f"--no-{name}"] if item.type is bool else [f"--{name}"]
    return flags


@REGISTRY.primitive_rule
def _make_reader(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Read numbers and choices with our own errors, and `X | None` as `X` or the word None."""
    union = NoneType in get_args(info.type)
    kind: Any = get_args(info.type)[0] if union else info.type
    choices = get_args(kind) if get_origin(kind) is Literal else None
    if not (choices or kind in (int, float) or (union and kind in (Path, str))):
        return None
    make = partial(_read_choice, choices) if choices else partial(_read_value, kind)
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(choices)}}}" if choices else kind.__name__.upper(),
        instance_from_str=lambda words: None if union and words == ["None"] else make(words[0]),
        is_instance=lambda v: v is None or (v in choices if choices else isinstance(v, kind)),
        str_from_instance=lambda value: [str(value)],
    )


def _read_value(kind: Any, word: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        rule = "a whole number" if kind is int else "a number"
        raise ValueError(f"takes {rule}, not '{word}'") from None


def _read_choice(choices: tuple[str, ...], word: str) -> str:
    if word in choices:
        return word
    *others, last = choices
    listed = f"{', '.join(others)} or {last}" if others else last
    near = suggest(word, choices)
    raise ValueError(f"takes {listed}, not '{word}'{near and f'.{near}'}")


def print_help(program: str, kind: Any, default: Any = None, *, advanced: bool = False) -> NoReturn:
    """Print the help of a command and exit.

    The values of `default`, an instance of `kind`, are shown as defaults, else those of the class.
    """
    main: dict[str, Row] = dict.fromkeys(getattr(kind, "main_options", ()), ("", None, None))
    rows = _list_rows(kind, default, main)
    if main:
        about = tyro.conf.arg(help="show the advanced options too", help_behavior_hint="")
        help_all = ("help_all", Annotated[bool, tyro.conf.FlagCreatePairsOff, about], False)
        others = _make_group("advanced", rows, f"All other options of {program}.")
        rows = [*main.values(), help_all, *([others] if advanced else [])]
    options = make_dataclass("Options", rows, kw_only=True)
    examples = textwrap.indent(inspect.cleandoc(kind.examples), "  ")
    text = f"{_wrap(inspect.cleandoc(kind.__doc__))}\n\nExamples:\n{examples}"
    tyro.cli(options, args=["--help"], prog=program, description=text, **SETTINGS)
    raise AssertionError("tyro exits after --help")


def _wrap(text: str) -> str:
    """Wrap a docstring at the width of the terminal; what follows its first line is indented.

    tyro wraps no description, and joins lines that begin with a letter.
    """
    width = min(shutil.get_terminal_size().columns, WIDEST)
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        wrapper.initial_indent = "  " if lines else ""
        lines += wrapper.wrap(" ".join(paragraph.split()))
    return "\n".join(lines)


def _list_rows(
    kind: Any, default: Any, main: dict[str, Row], adaptive: Collection[str] = ()
) -> list[Row]:
    """List the options of a dataclass, in groups; those named in `main` go there instead.

    The defaults of those named in `adaptive` follow from the data.
    """
    rows: list[Row] = []
    adaptive = getattr(default, "adaptive", adaptive)
    texts = _read_help_texts(kind)
    for item in fields(kind):
        made = item.default if item.default_factory is MISSING else item.default_factory()
        value = getattr(default, item.name, made)
        if item.name == "config":
            rows += _list_rows(item.type, value, main, adaptive)
        elif is_dataclass(item.type):
            inner = _list_rows(item.type, value, main, adaptive)
            rows.append(_make_group(item.name, inner, item.type.__doc__))
        else:
            follows = item.name in adaptive
            row = _describe_option(item, value, texts.get(item.name), follows=follows)
            if item.name in main:
                main[item.name] = row
            else:
                rows.append(row)
    return rows


def _describe_option(item: Field[Any], value: Any, text: str | None, *, follows: bool) -> Row:
    """Describe one option; an empty default is not shown, nor one that follows from the data."""
    empty = value is MISSING or value is None or value is False or value in ("", ())
    hint = "" if empty else None  # None: as tyro words it
    if follows:
        hint = "(default: follows from the data)"
    kind = Annotated[item.type, tyro.conf.arg(help=text, help_behavior_hint=hint)]  # type: ignore[name-defined]
    return item.name, kind, field() if value is MISSING else field(default_factory=lambda: value)


def _make_group(name: str, rows: list[Row], text: str | None) -> Row:
    kind = make_dataclass(name, rows, kw_only=True, namespace={"__doc__": text})
    return name, kind, field(default_factory=kind)


def _read_help_texts(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, on one line."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(item.target): " ".join(ast.literal_eval(text.value).split())
        for item, text in pairwise(tree.body)
        if isinstance(item, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
