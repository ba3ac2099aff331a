"""The folder of a run: it explains itself, and none of its files is ever half written.

It holds config.yaml, env.json, metrics.jsonl, last.pt, model.safetensors, model.json, result.json,
per_class.csv, predictions.parquet, sweep.csv, slider.json, examples.parquet if it was evaluated on
images, and head.safetensors if a post-hoc rule made a head.
"""

import csv
import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import pyarrow as pa
from torch import Tensor

from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.files import read_tensors, replace_atomically, write_tensors
from longtail.core.notebook import html_table
from longtail.core.options import Settings, differences
from longtail.core.spreadsheets import restore_cell
from longtail.data import load as data_sets
from longtail.evaluation import tables
from longtail.evaluation.predictions import NAME, read_table
from longtail.runs.checkpoint import read_checkpoint, write_checkpoint
from longtail.runs.places import (
    describe_runs_below,
    explain_missing,
    make_absolute,
    map_paths,
    resolve,
)

FILES = (
    *("result.json", "per_class.csv", "sweep.csv", "slider.json", "report.html"),
    *("predictions.parquet", "examples.parquet"),
    *("model.safetensors", "model.json", "head.safetensors"),
    *("last.pt", "metrics.jsonl", "config.yaml", "env.json"),
)
"""Every file that a run writes and that replacing it removes; a tuning run lies in `tuning`,
methods that competed with `auto --thorough` in `rivals`.

They are removed in this order, so that a half removed run counts as unfinished.
"""
C = TypeVar("C", bound=Settings)


class Folder(ABC, Generic[C]):
    """The folder of one training, of a classifier or a detector (abstract)."""

    kind: type[C]
    """The options that config.yaml holds."""
    command: str
    """The command that starts or resumes the run."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._records: list[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        if not self.finished:
            return html_table(["state"], [["unfinished"]], repr(self))
        result = self.result
        alpha = result["alpha"] if result["alpha"] is None else f"{result['alpha']:g}"
        mean = tables.class_mean(result["per_class"])
        cells = {**result, "alpha": alpha, tables.CLASS_MEAN: mean}
        chosen = ("rule",) if "rule" in result else ()
        names = ("method", *chosen, "data", "seed", "alpha", *tables.SPLITS, tables.CLASS_MEAN)
        return html_table(names, [[cells[name] for name in names]], repr(self))

    @staticmethod
    @abstractmethod
    def is_path(data: str, /) -> bool:
        """Return whether `data` is a path, not the name of a data set."""

    @classmethod
    def open(cls, folder: Path | str | Self) -> Self:
        """Open a run that exists, finished or not."""
        run = folder if isinstance(folder, cls) else cls(cast(Path | str, folder))
        run._check_is_run()
        _ = run.config  # refuses a run of another kind
        return run

    def _check_is_run(self) -> None:
        """Refuse a folder that no training has begun, and name the runs below it."""
        if (self.folder / "config.yaml").exists():
            return
        raise UserError(
            f"{self.folder} is not a run: it has no config.yaml. A run is the --out folder of "
            f"{self.command}; several methods or seeds have one each at OUT/METHOD/sSEED"
            f"{describe_runs_below(self.folder)}"
        )

    @property
    def config(self) -> C:
        """The configuration that the run was started with."""
        path = self.folder / "config.yaml"
        try:
            return self.kind.from_yaml(path.read_text(), str(path))
        except UserError as error:  # as for a detector's run that is taken for a classifier's
            raise UserError(
                f"is {self.folder} a run of {self.command}? A detector's is read by longtail "
                f"detect, a classifier's by the other commands\n  {error}"
            ) from None

    @property
    def result(self) -> dict[str, Any]:
        """The content of result.json, which is written when the run is finished."""
        if not self.finished:
            self._check_is_run()
            raise UserError(f"{self.folder} has not finished: continue it with {self.resume_line}")
        path = self.folder / "result.json"
        try:
            return dict(json.loads(path.read_text()))
        except ValueError:
            raise UserError(
                f"{path} is damaged: delete it, and {self.command} --resume evaluates the run again"
            ) from None

    @property
    def resume_line(self) -> str:
        """The command line that resumes the run unchanged."""
        return f"{self.command} --resume --out {shlex.quote(str(self.folder))}"

    @property
    def way_to_evaluate_again(self) -> str:
        """The advice for a missing or damaged file that an evaluation writes."""
        return (
            f"delete {self.folder}/result.json, and the same {self.command} command with --resume "
            "evaluates the run again without training it"
        )

    @property
    def finished(self) -> bool:
        """Whether its result is written."""
        return (self.folder / "result.json").exists()

    @property
    def has_model(self) -> bool:
        """Whether it is finished and its weights are still there."""
        return self.finished and (self.folder / "model.safetensors").exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint is there to continue from."""
        return (self.folder / "last.pt").exists()

    @property
    def weights_id(self) -> str | None:
        """What tells the weights apart that the run started from; None before its start."""
        try:
            return cast(str | None, json.loads((self.folder / "env.json").read_text())["weights"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, one for each epoch."""
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
            # a spreadsheet may have saved it again, with a byte order mark
            with path.open(newline="", encoding="utf-8-sig") as file:
                return [restore_cell(row["class"]) for row in csv.DictReader(file)]
        except (FileNotFoundError, KeyError, ValueError):
            raise UserError(
                f"{path} is {'damaged' if path.exists() else 'missing'}: copy it again, or "
                f"{self.way_to_evaluate_again}"
            ) from None

    @property
    def made_with(self) -> str:
        """The content of env.json as text; `unknown` if the file is missing or damaged."""
        try:
            return json.dumps(json.loads((self.folder / "env.json").read_text()), indent=1)
        except (OSError, ValueError):
            return "unknown"

    def check(self, config: C, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that holds something else; every rank may call this."""
        if resume and overwrite:
            raise UserError("--resume continues a run and --overwrite replaces it: pass one")
        if self.folder.is_file():
            raise UserError(f"{self.folder} is a file: --out is the folder of the run")
        there = {path.name for path in self.folder.glob("[!.]*")}  # hidden ones are half written
        if {"config.yaml", "env.json"} <= there:
            if not overwrite:
                self._check_same(config, resume)
        elif there - {"env.json"}:  # a killed start leaves that file alone
            raise UserError(f"{self.folder} is not empty and not a run: choose another --out")

    def begin(
        self, config: C, *, overwrite: bool, cuda: bool, weights_id: str | None = None
    ) -> None:
        """Make the folder for `config`; only rank 0 calls this, after `check`.

        config.yaml holds absolute paths of its data, so that the run can be opened from any
        directory; no result, report, export or model card does.
        """
        self.remove() if overwrite else self._remove_half_written()
        facts = environment(cuda=cuda) | ({"weights": weights_id} if weights_id else {})
        self.write("env.json", json.dumps(facts, indent=2) + "\n")
        self.write("config.yaml", map_paths(config, self.is_path, make_absolute).to_yaml())

    @property
    def public_config(self) -> str:
        """The content of config.yaml without the folders that lead to its data."""
        return map_paths(self.config, self.is_path, lambda path: Path(path.name)).to_yaml()

    def with_data(self, data: Path | str | None) -> C:
        """Return the configuration with its data at `data`; None leaves it unchanged.

        For a data set with a name, and for lists, `data` is the root folder.
        """
        config = self.config
        if data is None:
            return config
        own = str(getattr(config, "data", ""))
        if self.is_path(own) or not self.is_path(str(data)):
            return config.with_options(data=str(data))
        return config.with_options(root=data)

    def missing_data(self, error: UserError) -> UserError:
        """Return the error for a run whose data cannot be loaded because of `error`."""
        return explain_missing(self.folder, error, self.config, self.is_path)

    def remove(self) -> None:
        """Delete the files of a run, and nothing else that lies beside them."""
        self._remove_half_written()
        rivals = self.folder / "rivals"
        for inner in (self.folder / "tuning", *rivals.glob("*")):
            if inner.is_dir():
                type(self)(inner).remove()
        if rivals.is_dir() and not any(rivals.iterdir()):
            rivals.rmdir()
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def write(self, name: str, content: str) -> None:
        """Write a text file whole or not at all."""
        with replace_atomically(self.folder / name) as path:
            path.write_text(content, encoding="utf-8")

    def save_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Replace last.pt; the previous one stays until the new one is on disk."""
        write_checkpoint(self.folder / "last.pt", content)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Load what `save_checkpoint` wrote; None before the first checkpoint."""
        return read_checkpoint(self.folder / "last.pt") if self.has_checkpoint else None

    def save_model(self, state: Mapping[str, Tensor], name: str = "model.safetensors") -> None:
        """Write the weights as trained; those of a head that a rule made go to another `name`."""
        write_tensors(self.folder / name, state)

    def load_model(self, name: str = "model.safetensors") -> dict[str, Tensor]:
        """Read what `save_model` wrote."""
        path = self.folder / name
        if not path.exists():
            raise UserError(f"{self.folder} has no model yet: continue it with {self.resume_line}")
        return read_tensors(path)

    def append_metrics(self, record: Mapping[str, Any], *, epoch: int) -> None:
        """Add the record of `epoch`; drop later ones, which a resumed run trains again."""
        records = self.metrics if self._records is None else self._records
        self._records = [*(old for old in records if old["epoch"] < epoch), dict(record)]
        self.write_metrics(self._records)

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Replace metrics.jsonl."""
        self.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))

    def _remove_half_written(self) -> None:
        """Delete the temporary files of a killed process; the lock keeps other trainings out."""
        for name in FILES:
            for half in self.folder.glob(f".{name}.[0-9]*"):
                half.unlink(missing_ok=True)

    def _check_same(self, config: C, resume: bool) -> None:
        pair = (map_paths(each, self.is_path, resolve) for each in (self.config, config))
        changed = differences(*pair)
        ways = "replace it with --overwrite, or choose another --out"
        if changed:
            go_on = f"continue it unchanged with {self.resume_line},"
            raise UserError(
                f"{self.folder} exists and differs in: {', '.join(changed)}.\n  "
                f"{'it is finished:' if self.finished else go_on} {ways}"
            )
        if not resume:
            state = "a finished" if self.finished else "an unfinished"
            use = "Use its result" if self.finished else "Continue it"
            raise UserError(
                f"{self.folder} already holds {state} run with the same configuration. {use} with "
                f"--resume, {ways}"
            )


class Run(Folder[Config]):
    """The folder of a classifier's training."""

    kind = Config
    command = "longtail train"
    is_path = staticmethod(data_sets.is_path)

    @property
    def predictions(self) -> pa.Table:
        """The content of predictions.parquet: a row for each image of the evaluated part."""
        return read_table(self.folder / NAME, self.way_to_evaluate_again)
