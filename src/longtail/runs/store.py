"""The files of a run: each is written whole, recorded in the manifest and verified when read."""

import csv
import hashlib
import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from longtail.core.errors import UserError
from longtail.core.files import encode_tensors, read_tensors, replace_atomically
from longtail.core.identity import read_ids
from longtail.core.manifest import (
    DamageError,
    describe_damage,
    forget,
    read_manifest,
    record,
    replace_recorded,
    verify,
)
from longtail.core.names import count_noun
from longtail.core.plain import check_fields, read_json, read_text
from longtail.core.spreadsheets import restore_cell
from longtail.runs.checkpoint import list_checkpoints
from longtail.runs.lines import format_lines, parse_lines
from longtail.runs.places import describe_runs_below
from longtail.runs.repairs import explain_evaluation, explain_repair

logger = logging.getLogger(__name__)

CONFIG, ENVIRONMENT, METRICS = "config.yaml", "env.json", "metrics.jsonl"
CLASS_MEANS = "class_means.safetensors"
"""File with the tensors of `StoredFeatures`: class means, and features of held-out images."""


class RunFiles:
    """The files of one training (abstract)."""

    command: str
    """The command that starts or resumes the run."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._lines: dict[int, str] | None = None  # of metrics.jsonl, by epoch

    def check_is_run(self) -> None:
        """Refuse a folder that no training has begun, and name the runs below it."""
        if (self.folder / CONFIG).exists():
            return
        if not self.folder.exists():
            raise UserError(
                f"{self.folder} does not exist: pass a run, which is the --out folder of "
                f"{self.command}"
            )
        raise UserError(
            f"{self.folder} is not a run: it has no config.yaml. A run is the --out folder of "
            f"{self.command}; several methods or seeds have one each at OUT/METHOD/sSEED"
            f"{describe_runs_below(self.folder)}"
        )

    @property
    def result(self) -> dict[str, Any]:
        """The content of result.json, which is written when the run is finished."""
        if not self.finished:
            self.check_is_run()
            raise UserError(f"{self.folder} has not finished: continue it with {self.resume_line}")
        path = self.verify("result.json")
        way_out = f"Delete it, and {self.command} --resume evaluates the run again"
        try:
            result: dict[str, Any] = read_json(path)
        except UserError as error:
            raise UserError(f"{error}. {way_out}") from None
        check_fields(result, {}, str(path), way_out)
        return read_ids(result)

    @property
    def resume_line(self) -> str:
        """The command line that resumes the run unchanged."""
        return f"{self.command} --resume --out {shlex.quote(str(self.folder))}"

    @property
    def way_to_evaluate_again(self) -> str:
        """The advice for a missing or damaged file that an evaluation writes."""
        return explain_evaluation(self.folder, self.command)

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
        return bool(list_checkpoints(self.folder))

    @property
    def weights_id(self) -> str | None:
        """Identifies the weights that the run started from; None before its start."""
        return cast(str | None, self.environment.get("weights"))

    @property
    def environment(self) -> dict[str, Any]:
        """The content of env.json; empty if there is no such file, or not of this version."""
        try:
            content = read_json(self.verify(ENVIRONMENT))
        except DamageError:
            raise
        except UserError:
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, one for each epoch."""
        path = self.verify(METRICS)
        try:
            return parse_lines(read_text(path)) if path.exists() else []
        except ValueError as error:
            raise DamageError(
                f"{path} is damaged: {error}. {explain_repair(path, self.command)}"
            ) from None

    @property
    def classes(self) -> list[str]:
        """Names of the classes in the order of their labels."""
        path = self.verify("per_class.csv")
        try:
            # in a run without a manifest, a spreadsheet may have added a byte order mark
            with path.open(newline="", encoding="utf-8-sig") as file:
                return [restore_cell(row["class"]) for row in csv.DictReader(file)]
        except (OSError, KeyError, ValueError, csv.Error):
            raise UserError(
                f"{path} is {'damaged' if path.exists() else 'missing'}: copy it again, or "
                f"{self.way_to_evaluate_again}"
            ) from None

    @property
    def made_with(self) -> str:
        """The content of env.json as text; `unknown` if the file is missing or damaged."""
        try:
            content = self.environment
        except DamageError as damage:
            logger.warning("%s", damage)
            content = {}
        return json.dumps(content, indent=1) if content else "unknown"

    def verify(self, name: str) -> Path:
        """Return the path of a file after a check that it holds what was written to it."""
        path = self.folder / name
        return verify(path, explain_repair(path, self.command))

    def has(self, name: str) -> bool:
        """Return whether a file is there that not every run has.

        Raises:
            DamageError: if it was written and is gone.
        """
        path, known = self.folder / name, read_manifest(self.folder).get(name, [None])
        if not (there := path.exists()) and None not in known:
            repair = explain_repair(path, self.command)
            raise DamageError(f"{describe_damage(path, None, known)} {repair}")
        return there

    def replace(self, name: str) -> AbstractContextManager[Path]:
        """Yield a temporary path, and move it to `name` when the block succeeds."""
        return replace_recorded(self.folder / name)

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file whole or not at all, and record its hash; text is UTF-8."""
        with self.replace(name) as path:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def save_model(self, state: Mapping[str, Tensor], name: str = "model.safetensors") -> str:
        """Write the weights as trained, and return the SHA-256 of the file.

        Those of a head that a rule made go to another `name`.
        """
        content = encode_tensors(state)
        self.write(name, content)
        return hashlib.sha256(content).hexdigest()

    def load_model(self, name: str = "model.safetensors") -> dict[str, Tensor]:
        """Read what `save_model` wrote."""
        path = self.verify(name)
        if not path.exists():
            lost = f"{path} is missing. {explain_repair(path, self.command)}"
            unfinished = f"{self.folder} has no model yet: continue it with {self.resume_line}"
            raise UserError(lost if self.finished else unfinished)
        return read_tensors(path)

    def append_metrics(self, record: Mapping[str, Any], *, epoch: int) -> None:
        """Add the record of `epoch`; drop later ones, which a resumed run trains again."""
        if self._lines is None:
            known = [old for old in self.metrics if old["epoch"] < epoch]
            self._lines = {old["epoch"]: format_lines([old]) for old in known}
            forget(self.folder / METRICS)  # its lines have checksums of their own
            if (found := len(self._lines)) < epoch:
                logger.warning(
                    "%s lacks %d of %s: the curve of the loss has a gap",
                    *(self.folder / METRICS, epoch - found, count_noun(epoch, "epoch")),
                )
        self._lines = {old: line for old, line in self._lines.items() if old < epoch}
        self._lines[epoch] = format_lines([record])
        with replace_atomically(self.folder / METRICS, durable=False) as path:
            path.write_text("".join(self._lines.values()), encoding="utf-8")

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Replace metrics.jsonl."""
        self.write(METRICS, format_lines(records))

    def record_metrics(self) -> None:
        """Record the hash of metrics.jsonl, to which no more lines are added."""
        record(self.folder / METRICS)
