"""A run leaves a self-explaining folder, and no file in it is ever half written.

config.yaml env.json metrics.jsonl last.pt model.safetensors model.json result.json per_class.csv
sweep.csv intervals.json, and head.safetensors where a post-hoc rule made another head
"""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import safetensors.torch
import torch
from torch import Tensor

from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.files import read_tensors, replace_atomically
from longtail.core.options import Settings

CHECKPOINT_FORMAT = 1
FILES = (
    *("result.json", "per_class.csv", "sweep.csv", "intervals.json", "report.html"),
    *("model.safetensors", "model.json", "head.safetensors"),
    *("last.pt", "metrics.jsonl", "config.yaml", "env.json"),
)
"""All that a run writes, and so all that replacing it may remove; a tuning run lies in `tuning`.

In this order, so that a run that is half removed is an unfinished one to the end.
"""


C = TypeVar("C", bound=Settings)


class Folder(Generic[C]):
    """One training's folder, whatever was trained (abstract)."""

    kind: type[C]
    """What its config.yaml holds."""
    command: str
    """What the user says to start or go on with it."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._records: list[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @classmethod
    def open(cls, folder: Path | str | Self) -> Self:
        """A run that exists, finished or not."""
        run = folder if isinstance(folder, cls) else cls(cast(Path | str, folder))
        if not (run.folder / "config.yaml").exists():
            raise UserError(
                f"{run.folder} is not a run: it has no config.yaml. "
                f"A run is the --out folder of {cls.command}; several methods or seeds have one "
                "each at OUT/METHOD/sSEED"
            )
        _ = run.config  # refuses a run of another kind
        return run

    @property
    def config(self) -> C:
        """The configuration it was started with."""
        path = self.folder / "config.yaml"
        try:
            return self.kind.from_yaml(path.read_text(), str(path))
        except UserError as error:  # as of a detector's run that is taken for a classifier's
            raise UserError(
                f"is {self.folder} a run of {self.command}? A detector's is read by longtail "
                f"detect, a classifier's by the other commands\n  {error}"
            ) from None

    @property
    def result(self) -> dict[str, Any]:
        """result.json, written when the run is finished."""
        if not self.finished:
            raise UserError(f"{self.folder} has not finished: go on with {self._resumed}")
        path = self.folder / "result.json"
        try:
            return json.loads(path.read_text())
        except ValueError:
            raise UserError(
                f"{path} is damaged: delete it, and {self.command} --resume judges the run again"
            ) from None

    @property
    def _resumed(self) -> str:
        """The command that goes on with it as it is."""
        return f"{self.command} --resume --out {self.folder}"

    @property
    def finished(self) -> bool:
        """Whether its result is written."""
        return (self.folder / "result.json").exists()

    @property
    def has_model(self) -> bool:
        """Whether it is finished and its weights are still there."""
        return self.finished and (self.folder / "model.safetensors").exists()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record an epoch."""
        path = self.folder / "metrics.jsonl"
        try:
            lines = path.read_text().splitlines() if path.exists() else []
            return [json.loads(line) for line in lines]
        except ValueError:
            raise UserError(
                f"{path} is damaged: copy it again from where the run was trained, or delete it, "
                "and nothing but the curve of the loss is lost"
            ) from None

    @property
    def classes(self) -> list[str]:
        """Names of the classes in the order of their labels."""
        path = self.folder / "per_class.csv"
        try:
            with path.open(newline="") as file:
                return [row["class"] for row in csv.DictReader(file)]
        except (FileNotFoundError, KeyError, ValueError):
            raise UserError(
                f"{path} is {'damaged' if path.exists() else 'missing'}: copy it again, or delete "
                f"{self.folder}/result.json, and {self.command} --resume judges the run again"
            ) from None

    @property
    def made_with(self) -> str:
        """env.json as it is shown; `unknown` where it was not copied along, or is damaged."""
        try:
            return json.dumps(json.loads((self.folder / "env.json").read_text()), indent=1)
        except (OSError, ValueError):
            return "unknown"

    def check(self, config: C, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that holds something else; every rank may ask."""
        if resume and overwrite:
            raise UserError("--resume goes on with a run and --overwrite replaces it: pass one")
        if self.folder.is_file():
            raise UserError(f"{self.folder} is a file: --out is the folder of the run")
        # hidden files are left by a start that was killed
        there = {path.name for path in self.folder.glob("[!.]*")}
        if {"config.yaml", "env.json"} <= there:
            if not overwrite:
                self._check_same(config, resume)
        elif there - {"env.json"}:  # alone it is of a start that was killed
            raise UserError(f"{self.folder} is not empty and not a run: choose another --out")

    def begin(self, config: C, *, overwrite: bool, cuda: bool) -> None:
        """Make the folder for `config`; one rank does, after `check`."""
        about = {**environment(cuda=cuda), "started_in": _way(self.folder, Path.cwd())}
        self.remove() if overwrite else self._sweep_up()
        self.write("env.json", json.dumps(about, indent=2) + "\n")
        self.write("config.yaml", config.to_yaml())

    def reached(self, path: Path) -> Path:
        """A path of its configuration, from where the run was started; as it is if not there."""
        for start in self._starts():
            there = start / path.expanduser()
            if there.exists():
                return there
        return path

    def remove(self) -> None:
        """Delete the files of a run, and nothing else that lies beside them."""
        self._sweep_up()
        if (self.folder / "tuning").is_dir():
            type(self)(self.folder / "tuning").remove()
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def write(self, name: str, content: str) -> None:
        """Write a text file whole or not at all."""
        with replace_atomically(self.folder / name) as path:
            path.write_text(content)

    def save_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Replace last.pt; the one before stays until the new one is wholly on disk."""
        whole = io.BytesIO()  # a full disk then fails in a plain write, and says so
        torch.save({"format": CHECKPOINT_FORMAT, **content}, whole)
        with replace_atomically(self.folder / "last.pt") as path, path.open("wb") as file:
            file.write(whole.getbuffer())
            file.flush()
            os.fsync(file.fileno())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """What `save_checkpoint` wrote, or None before the first."""
        path = self.folder / "last.pt"
        if not path.exists():
            return None
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            written_by = content["format"]
        except Exception as error:
            raise UserError(
                f"{path} cannot be read: it was cut short or is not a checkpoint "
                f"({type(error).__name__}). Delete it and --resume starts this run from its "
                "first epoch, or use --overwrite"
            ) from error
        if written_by != CHECKPOINT_FORMAT:
            raise UserError(
                f"{path} has checkpoint format {written_by}, this version reads "
                f"{CHECKPOINT_FORMAT}: finish the run with the version in {path.parent}/env.json, "
                "or start again with --overwrite"
            )
        return content

    def save_model(self, state: Mapping[str, Tensor], name: str = "model.safetensors") -> None:
        """Write the weights as trained, or what a rule made of the head to another `name`."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        with replace_atomically(self.folder / name) as path:
            path.write_bytes(safetensors.torch.save(tensors))

    def load_model(self, name: str = "model.safetensors") -> dict[str, Tensor]:
        """Read what `save_model` wrote."""
        path = self.folder / name
        if not path.exists():
            raise UserError(f"{self.folder} has no model yet: go on with {self._resumed}")
        return read_tensors(path)

    def append_metrics(self, record: Mapping[str, Any], *, epoch: int) -> None:
        """Add the record of `epoch`, dropping any of a later epoch that a resumed run redoes."""
        records = self.metrics if self._records is None else self._records
        self._records = [*(old for old in records if old["epoch"] < epoch), dict(record)]
        self.write_metrics(self._records)

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Replace metrics.jsonl."""
        self.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))

    def _sweep_up(self) -> None:
        """Delete what a killed process was writing; of those that train, one at a time is here."""
        for name in FILES:
            for half in self.folder.glob(f".{name}.[0-9]*"):
                half.unlink(missing_ok=True)

    def _starts(self) -> list[Path]:
        """Where it was started, seen from its folder as that is called and as it really lies."""
        try:
            way = json.loads((self.folder / "env.json").read_text())["started_in"]
            called, real = self.folder.absolute() / way, self.folder.resolve() / way
        except (OSError, ValueError, KeyError, TypeError):  # damaged, or there is nothing to tell
            return [Path.cwd()]
        return [Path(os.path.normpath(called)), real.resolve()]

    def _check_same(self, config: C, resume: bool) -> None:
        changed = differences(self.config, config)
        ways = "replace it with --overwrite, or choose another --out"
        if changed:
            raise UserError(
                f"{self.folder} exists and differs in: {', '.join(changed)}.\n  "
                f"continue it unchanged with {self._resumed}, {ways}"
            )
        if not resume:
            state = "finished" if self.finished else "unfinished"
            raise UserError(
                f"{self.folder} exists, {state}, with this very configuration.\n  "
                f"{'take its result' if self.finished else 'continue it'} with --resume, {ways}"
            )


class Run(Folder[Config]):
    """The folder of a classifier's training."""

    kind = Config
    command = "longtail train"


def differences(old: Settings, new: Settings) -> list[str]:
    """What differs between two configurations, as 'train.epochs 200 -> 90'; not the machine."""
    before, after = _flat(asdict(old)), _flat(asdict(new))  # type: ignore[call-overload]
    return [
        f"{name} {before.get(name)} -> {after.get(name)}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name) and not name.startswith("machine.")
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(_flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


def _way(folder: Path, place: Path) -> str | None:
    """From `folder` up to `place`, which holds when both are moved.

    None where it leads down again: names on the way, as a user's, would tell of the machine.
    """
    for end in (folder, folder.resolve()):
        with suppress(ValueError):  # they are on two drives
            way = os.path.relpath(place, end)
            if set(Path(way).parts) <= {".."}:
                return way
    return None
