"""The command line: from words to a command, and a user's mistake to one paragraph."""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

import longtail
from longtail.cli.commands import COMMANDS
from longtail.cli.output import rank
from longtail.cli.train import Train
from longtail.core.errors import UserError, unknown


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command of `longtail`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with user_errors():
        command = parse(arguments)
        if command is not None:
            command()


def parse_alone(kind: Any, program: str, arguments: list[str]) -> Any:
    """The one command of a program that is not `longtail`, as `python -m benchmarks`."""
    return _only(*_tyro(program, kind, arguments))


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a user's mistake as one paragraph and exit with code 2."""
    # threads that wait by spinning starve each other on a busy machine; read when torch loads
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("longtail").setLevel(logging.WARNING if rank() else logging.INFO)
    try:
        yield
    except UserError as error:
        _stop(str(error))
    except RuntimeError as error:
        from longtail.data.decoding.workers import explain_killed_worker

        if (reason := explain_killed_worker(error)) is None:
            raise
        _stop(reason)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(
            "\nlongtail: interrupted; a training goes on from its last checkpoint with --resume "
            "--out FOLDER",
            file=sys.stderr,
        )
        sys.exit(130)


def _stop(reason: str) -> NoReturn:
    print(f"longtail: {reason}" if rank() == 0 else f"[rank {rank()}] {reason}", file=sys.stderr)
    sys.exit(2)


def parse(arguments: list[str]) -> Callable[[], None] | None:
    """The command that `arguments` ask for; None after printing help or version."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return None
    if arguments[0] == "--version":
        print(f"longtail {longtail.__version__}")
        return None
    name, rest = command_of(arguments)
    if name not in COMMANDS:
        print(overview(name))
        return None
    kind = COMMANDS[name]
    if any(item.name == "config" for item in fields(kind)):
        return parse_configured(name, kind, rest).run
    return _only(*_tyro(f"longtail {name}", kind, rest)).run


def command_of(words: list[str]) -> tuple[str, list[str]]:
    """The command that `words` begin with and what follows; or a family whose help is asked for."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    family = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if family and (len(words) == 1 or words[1] in ("-h", "--help")):
        return words[0], []
    name = " ".join(words[:2]) if family else words[0]
    raise unknown("command", name, family or COMMANDS, "list them: longtail --help")


def parse_configured(name: str, kind: Any, arguments: list[str]) -> Any:
    """Two passes: the data set's name, or a recipe, sets the defaults of every other option."""
    settings = type(kind().config)
    own = "options" in {item.name for item in fields(settings)}
    ours, theirs = split_method_options(arguments) if own else (arguments, {})
    plain = [word for word in ours if word not in ("-h", "--help")]
    first = _only(*_tyro(f"longtail {name}", kind, plain))
    preset = _resumed(first) or settings.preset(first.config.data)
    if recipe := first.recipe:
        try:
            preset = settings.from_yaml(recipe.read_text(), str(recipe), data=first.config.data)
        except OSError as error:
            raise UserError(f"the recipe cannot be read: {error}") from None
    parsed = _only(*_tyro(f"longtail {name}", kind, ours, default=kind(config=preset)))
    if own:
        _check_method_options(theirs, parsed.config.method)
    return replace(parsed, config=parsed.config.with_options(**theirs))


def _resumed(asked: Any) -> Any:
    """The configuration of the run in --out that is to go on, where no other data are named."""
    named = asked.config.data or getattr(asked.config.files, "list", None)
    if named or asked.recipe or not asked.resume or not asked.out:
        return None
    if (asked.out / "config.yaml").exists():
        return asked.begun()
    if several := sorted(asked.out.glob("*/*/config.yaml")):
        raise UserError(
            f"{asked.out} holds several runs: go on with the command that began them and --resume, "
            f"or with one of them, as --out {several[0].parent}"
        )
    raise UserError(f"{asked.out} holds no run to go on with: name the data to begin one")


def split_method_options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Our own words, and `--heads 4 --tau=8` as a mapping: what is not ours is the method's."""
    known = _flags(Train)
    ours: list[str] = []
    theirs: dict[str, str] = {}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        flag, has_value, value = word.partition("=")
        if not flag.startswith("--") or flag == "--help" or flag in known:
            ours.append(word)
            continue
        if not has_value and not pending:
            theirs[flag] = ""
            break
        theirs[flag] = value if has_value else pending.pop(0)
    return ours, {flag[2:].replace("-", "_"): value for flag, value in theirs.items()}


def _check_method_options(options: dict[str, str], method: str) -> None:
    """Refuse a flag that is neither ours nor any asked-for method's."""
    if not options:
        return
    from longtail import methods

    names = list(methods.registry()) if method == "all" else method.split(",")
    known = {option for name in names for option in methods.options_of(name)}
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name not in known:
            having = [m for m in methods.registry() if name in methods.options_of(m)]
            if having:
                raise UserError(f"{method} has no {flag}; these do: {', '.join(having)}")
            more = [f"--{option}" for option in sorted(known)]
            raise unknown("option", flag, [*_flags(Train), *more], "list them: add --help")
        if not value:
            raise UserError(f"{flag} needs a value")


def _only(parsed: Any, extra: list[str]) -> Any:
    """What was parsed, if that was all."""
    if extra and extra[0].startswith("-"):
        flags = _flags(type(parsed))
        raise unknown("option", extra[0].partition("=")[0], flags, "list them: add --help")
    if extra:
        raise UserError(f"unexpected argument '{extra[0]}' (see longtail --help)")
    return parsed


def _tyro(program: str, kind: type, arguments: list[str], **default: Any) -> tuple[Any, list[str]]:
    description = f"{inspect.cleandoc(kind.__doc__ or '')}\n\nExamples:{kind.examples}"  # type: ignore[attr-defined]
    return tyro.cli(
        kind,
        args=arguments,
        prog=program,
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
        return_unknown_args=True,
        registry=_REGISTRY,
        **default,
    )


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`PATH` in help in place of `{None}|PATH`: the default tells that it may be left out."""
    kind, *rest = get_args(info.type) or (None,)
    if rest == [type(None)] and get_origin(kind) is Literal:
        return _chosen(get_args(kind))
    if rest != [type(None)] or kind not in (Path, str, int, float):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if words == ["None"] else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


def _chosen(values: tuple[str, ...]) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(values)}}}",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: value is None or value in values,
        str_from_instance=lambda value: [str(value)],
        choices=values,
    )


def _flags(kind: type) -> list[str]:
    """Every flag of a command, switched-off ones too."""
    flags: list[str] = []
    for item in fields(kind):
        inner = item.type if isinstance(item.type, type) else None
        if inner and is_dataclass(inner):
            flags += _flags(inner)
        else:
            name = item.name.replace("_", "-")
            flags += [f"--{name}", f"--no-{name}"] if inner is bool else [f"--{name}"]
    return flags


def overview(family: str = "") -> str:
    """What `longtail --help` prints, or the help of a family such as `longtail detect`."""
    lines = ["Long-tailed recognition: bring the rare classes back.", "", "Commands:"]
    shown = {name: kind for name, kind in COMMANDS.items() if not family or family in name.split()}
    width = max(map(len, shown))
    for name, kind in shown.items():
        lines.append(f"  longtail {name:<{width}}  {(kind.__doc__ or '').splitlines()[0]}")
    lines += ["", "Each command has --help with examples. Start with: longtail demo"]
    return "\n".join(lines)
