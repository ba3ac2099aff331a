"""The command line: read the words that a user typed into a command, and run it.

Each command is a dataclass of its options whose `run` calls one library function and prints. No
command imports torch before it runs, so that help answers at once.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import longtail
from longtail.cli.adapt import Adapt
from longtail.cli.arguments import check_out
from longtail.cli.audit import AuditCommand
from longtail.cli.counterparts import check_runs, read_any_recipe
from longtail.cli.demo import Demo
from longtail.cli.detect import DetectEval, DetectReport, DetectSweep, DetectTrain
from longtail.cli.detect_predict import DetectPredict
from longtail.cli.embed import Embed
from longtail.cli.evaluate import Eval
from longtail.cli.export import Export
from longtail.cli.extend import Extend
from longtail.cli.failures import user_errors
from longtail.cli.figure import Figure, Figures
from longtail.cli.flags import hyphenate, list_flags, print_help, read_flags
from longtail.cli.lists import DataSets, Methods
from longtail.cli.predict import Predict
from longtail.cli.report import Report
from longtail.cli.retrofit import RetrofitCommand
from longtail.cli.sweep import Sweep
from longtail.cli.train import Train
from longtail.cli.verify import Verify
from longtail.core.config import PRETRAINED
from longtail.core.errors import UserError, unknown_error

COMMANDS: dict[str, type] = {
    "demo": Demo,
    "audit": AuditCommand,
    "train": Train,
    "eval": Eval,
    "sweep": Sweep,
    "report": Report,
    "predict": Predict,
    "adapt": Adapt,
    "extend": Extend,
    "export": Export,
    "figure": Figure,
    "figures": Figures,
    "embed": Embed,
    "retrofit": RetrofitCommand,
    "verify": Verify,
    "methods": Methods,
    "data": DataSets,
    "detect train": DetectTrain,
    "detect eval": DetectEval,
    "detect sweep": DetectSweep,
    "detect predict": DetectPredict,
    "detect report": DetectReport,
}
"""Commands by what the user types: one word, or a family and a word of it."""
HELP_WORDS = {"-h", "--help", "--help-all"}
OPTION = re.compile(r"--|-[a-z]", re.IGNORECASE)
"""Beginning of an option; -1 is a value."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command of `longtail`."""
    words = list(sys.argv[1:] if argv is None else argv)
    with user_errors(words):
        parse(words)()


def parse(arguments: list[str]) -> Callable[[], None]:
    """Return the command to run, or the function that prints the overview or the version."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in HELP_WORDS:
        return partial(print, overview())
    if arguments[0] == "--version":
        return partial(print, f"longtail {longtail.__version__}")
    name, words = _split_command(arguments)
    if name not in COMMANDS:
        return partial(print, overview(name))
    kind = COMMANDS[name]
    words = hyphenate(kind, words)
    if "--weights" in list_flags(kind) and "--pretrained" not in list_flags(kind):
        if "--pretrained" in words and any(word.split("=")[0] == "--weights" for word in words):
            raise UserError("--pretrained and --weights were both given: pass one of them")
        short = {"--pretrained": ["--weights", PRETRAINED]}
        words = [long for word in words for long in short.get(word, [word])]
    if any(item.name == "config" for item in fields(kind)):
        command = parse_configured(name, kind, words)
    else:
        command = parse_alone(kind, f"longtail {name}", words)
        check_runs(command, name)
    check_out(command)
    run: Callable[[], None] = command.run
    return run


def overview(family: str = "") -> str:
    """Return the text of `longtail --help`, or of the help of a family such as `detect`."""
    shown = {name: kind for name, kind in COMMANDS.items() if not family or family in name.split()}
    width = max(map(len, shown))
    lines = ["Long-tailed recognition: bring the rare classes back.", "", "Commands:"]
    for name, kind in shown.items():
        lines.append(f"  longtail {name:<{width}}  {(kind.__doc__ or '').splitlines()[0]}")
    lines += ["", "Add --help to a command for its options and examples. Start with: longtail demo"]
    return "\n".join(lines)


def _split_command(words: list[str]) -> tuple[str, list[str]]:
    """Split words into a command, or a family of commands whose help is wanted, and its options."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    family = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if family and (len(words) == 1 or words[1] in HELP_WORDS):
        return words[0], []
    name = " ".join(words[:2]) if family else words[0]
    more = "see python -m benchmarks" if name.startswith("bench") else "list them: longtail --help"
    raise unknown_error("command", name, family or COMMANDS, more)


def parse_alone(kind: Any, program: str, words: list[str]) -> Any:
    """Read a command whose defaults do not depend on other options."""
    if HELP_WORDS.intersection(words):
        print_help(program, kind)
    return read_flags(program, kind, words)


def parse_configured(name: str, kind: Any, words: list[str]) -> Any:
    """Read a training command in two passes.

    The first finds the data set, the recipe or the run to resume: they set the defaults of all
    other options in the second.
    """
    program = f"longtail {name}"
    ours = [word for word in words if word not in HELP_WORDS]
    method_options: dict[str, str] = {}
    if any(item.name == "options" for item in fields(kind().config)):
        ours, method_options = _split_method_options(ours)
    wants_help = bool(HELP_WORDS.intersection(words))
    first = read_flags(program, kind, ours)
    if not wants_help:
        _check_resumable(program, first)
        check_runs(first, name)
    default = kind(config=_choose_defaults(first))
    if wants_help:
        print_help(program, kind, default, advanced="--help-all" in words)
    command = read_flags(program, kind, ours, default=default)
    if method_options:
        _check_method_options(method_options, command.config.method)
    config = command.config.with_options(**method_options)
    if kind is Train:
        flags = {word.partition("=")[0] for word in ours if word.startswith("--")}
        given = {flag[2:].removeprefix("no-").replace("-", "_") for flag in flags}
        kept = tuple(name for name in config.adaptive if name not in given)
        config = replace(config, adaptive=kept)
    return replace(command, config=config)


def _check_resumable(program: str, command: Any) -> None:
    """Refuse --resume if nothing says which run to continue."""
    named = command.config.data or getattr(command.config.files, "list", None)
    if command.resume and not (named or command.recipe or command.out):
        raise UserError(
            "--resume needs --out, the folder of the run to continue, as in "
            f"{program} --resume --out runs/NAME"
        )


def _choose_defaults(command: Any) -> Any:
    """Return the configuration that a recipe, a run to resume or the data set's preset gives."""
    settings, data = type(command.config), command.config.data
    recipe, out = command.recipe, command.out
    if recipe:
        return read_any_recipe(settings, recipe, data)
    named = data or getattr(command.config.files, "list", None)
    if named or not (command.resume and out):
        return settings.preset(data)
    if (out / "config.yaml").exists():
        return command.load_config()
    if several := sorted(out.glob("*/*/config.yaml")):
        raise UserError(
            f"{out} holds several runs: repeat the command that started them with --resume, or "
            f"resume one of them with --out {several[0].parent}"
        )
    if (out / "last.pt").exists():
        raise UserError(
            f"{out} has a checkpoint and no config.yaml: repeat the command that started it, with "
            "--resume"
        )
    raise UserError(f"{out} holds no run to resume: name the data to start one")


def _split_method_options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Split off options that `train` does not know, such as `--heads 4 --tau=8`, as a mapping."""
    known, pending = list_flags(Train), list(words)
    ours: list[str] = []
    theirs: dict[str, str] = {}
    while pending:
        word = pending.pop(0)
        if word == "--":  # what follows is not an option
            return [*ours, word, *pending], theirs
        flag, has_value, value = word.partition("=")
        if not flag.startswith("--") or flag in known:
            ours.append(word)
            continue
        name = flag[2:].replace("-", "_")
        if name in _list_switches() and not has_value:
            value = "true"
        elif not has_value and pending and not OPTION.match(pending[0]):
            value = pending.pop(0)
        theirs[name] = value
    return ours, theirs


def _list_switches() -> set[str]:
    """Return the options of methods that take no value."""
    from longtail import methods

    every = [option for name in methods.registry() for option in methods.options_of(name).values()]
    return {option.name for option in every if option.annotation is bool}


def _check_method_options(options: dict[str, str], method: str) -> None:
    """Refuse an option that none of the chosen methods has, or that has no value."""
    from longtail import methods

    names = methods.list_names() if method == "all" else method.split(",")
    known = {option for name in names for option in methods.options_of(name)}
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name not in known:
            if reason := methods.explain_foreign_option(names, name):
                raise UserError(reason)
            flags = [*list_flags(Train), *HELP_WORDS, *(f"--{name}" for name in sorted(known))]
            raise unknown_error("option", flag, flags, "list them: add --help-all")
        if not value:
            raise UserError(f"{flag} needs a value")
