"""The folder of a run: it explains itself, and none of its files is ever half written.

It holds config.yaml, env.json, metrics.jsonl, last.pt, previous.pt, model.safetensors, model.json,
result.json, per_class.csv, predictions.parquet, sweep.csv, slider.json, examples.parquet if it was
evaluated on images, class_means.safetensors, and head.safetensors if a post-hoc rule made a head.
Its manifest.json records their hashes, against which they are verified when they are read.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import pyarrow as pa

from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.manifest import NAME as MANIFEST
from longtail.core.manifest import DamageError, read_manifest, verify
from longtail.core.names import count_noun
from longtail.core.notebook import html_table
from longtail.core.options import Settings, differences
from longtail.core.plain import read_text
from longtail.data import kinds
from longtail.evaluation import tables
from longtail.evaluation.predictions import NAME, read_table
from longtail.runs.checkpoint import read_checkpoint, write_checkpoint
from longtail.runs.places import explain_missing, make_absolute, map_paths, resolve
from longtail.runs.repairs import explain_repair
from longtail.runs.store import CLASS_MEANS, CONFIG, ENVIRONMENT, METRICS, RunFiles

logger = logging.getLogger(__name__)

FILES = (
    *("result.json", "per_class.csv", "sweep.csv", "slider.json", "report.html"),
    *("predictions.parquet", "examples.parquet"),
    *("model.safetensors", "model.json", "head.safetensors", CLASS_MEANS),
    *("previous.pt", "last.pt", METRICS, CONFIG, ENVIRONMENT, MANIFEST),
)
"""Every file that a run writes and that replacing it removes; a tuning run lies in `tuning`,
methods that competed with `auto --thorough` in `rivals`.

They are removed in this order, so that a half removed run counts as unfinished.
"""
C = TypeVar("C", bound=Settings)


class Folder(RunFiles, ABC, Generic[C]):
    """The folder of one training, of a classifier or a detector (abstract)."""

    kind: type[C]
    """The options that config.yaml holds."""

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
        run.check_is_run()
        _ = run.config  # refuses a run of another kind
        return run

    @property
    def config(self) -> C:
        """The configuration that the run was started with."""
        read_manifest(self.folder)  # damage to it is no reason to doubt config.yaml
        try:
            verify(self.folder / CONFIG)
        except DamageError as damage:
            return self._confirm_config(damage)
        return self._read_config()

    def _read_config(self) -> C:
        text = read_text(path := self.folder / CONFIG)
        try:
            return self.kind.from_yaml(text, str(path))
        except UserError as error:  # as for a detector's run that is taken for a classifier's
            raise UserError(
                f"is {self.folder} a run of {self.command}? A detector's is read by longtail "
                f"detect, a classifier's by the other commands\n  {error}"
            ) from None

    def _hide_paths(self, config: C) -> C:
        """Return a configuration without the paths of its data, whose content is compared."""
        return map_paths(config, self.is_path, lambda path: Path("PATH"))

    def _compare_checkpoint(self, saved: Mapping[str, Any] | None, config: C) -> list[str] | None:
        """List the options in which `config` differs from a checkpoint; None if it holds none."""
        if not saved or "config" not in saved:
            return None
        stored = self.kind.from_yaml(saved["config"], "the checkpoint")
        return differences(stored, self._hide_paths(config))

    def _confirm_config(self, damage: DamageError) -> C:
        """Return the content of an edited config.yaml if the checkpoint has the same options."""
        path, again = self.folder / CONFIG, f"the {self.command} command that started the run"
        way_out = f"delete it, and {again} writes it again with --resume"
        saved = read_checkpoint(self.folder)
        if not saved or "config" not in saved:
            raise DamageError(f"{damage} {explain_repair(path, self.command)}")
        try:
            found = self._read_config()
            changed = self._compare_checkpoint(saved, found)
        except UserError as error:
            raise DamageError(f"{damage} Restore it, or {way_out}\n  {error}") from None
        if changed:
            raise DamageError(
                f"{path} was edited, and differs from the checkpoint of the run in: "
                f"{', '.join(changed)}.\n  Restore these options, or {way_out}"
            )
        return found

    def check(self, config: C, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that holds something else; every rank may call this."""
        if resume and overwrite:
            raise UserError("--resume continues a run and --overwrite replaces it: pass one")
        if self.folder.is_file():
            raise UserError(f"{self.folder} is a file: --out is the folder of the run")
        there = {path.name for path in self.folder.glob("[!.]*")}  # hidden ones are half written
        begun = CONFIG in there and there & {ENVIRONMENT, MANIFEST}
        if begun or (MANIFEST in there and self.has_checkpoint):
            if not overwrite:
                self._check_same(config, resume)
        elif there - {ENVIRONMENT, MANIFEST}:  # a killed start leaves these files alone
            raise UserError(f"{self.folder} is not empty and not a run: choose another --out")

    def check_sound(self) -> None:
        """Refuse a run that cannot be continued or used because a file of it is damaged."""
        rivals = (self.folder / "rivals").glob("*")
        for inner in (self.folder / "tuning", *rivals):
            if inner.is_dir():
                type(self)(inner).check_sound()
        if (self.folder / CONFIG).exists():
            _ = self.config, self.environment, self.metrics
            _ = self.result if self.finished else self.load_checkpoint()

    def begin(
        self,
        config: C,
        *,
        overwrite: bool,
        cuda: bool,
        weights_id: str | None = None,
        ranks: int = 1,
        has_place: bool = True,
    ) -> None:
        """Make the folder for `config`; only rank 0 calls this, after `check`.

        config.yaml holds absolute paths of its data, so that the run can be opened from any
        directory; no result, report, export or model card does. Data without a place keeps its
        name, even if a folder here is called the same.
        """
        self.remove() if overwrite else self._remove_half_written()
        before = self.environment.get("ranks", ranks)
        if isinstance(before, int) and before != ranks and self.has_checkpoint:
            logger.warning(
                "%s was begun on %s and goes on with %d: batch statistics are those of a rank, so "
                "its result can differ from that of an uninterrupted training",
                *(self.folder, count_noun(before, "rank"), ranks),
            )
        facts = environment(cuda=cuda) | {"ranks": ranks}
        facts |= {"weights": weights_id} if weights_id else {}
        self.write(ENVIRONMENT, json.dumps(facts, indent=2) + "\n")
        self.write_config(config, has_place=has_place)

    def write_config(self, config: C, *, has_place: bool) -> None:
        """Write config.yaml, with absolute paths if the data has a place."""
        is_path = self.is_path if has_place else lambda _: False
        self.write(CONFIG, map_paths(config, is_path, make_absolute).to_yaml())

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

    def save_checkpoint(self, content: Mapping[str, Any], config: C) -> None:
        """Replace last.pt, which becomes previous.pt when the new one is on disk.

        The checkpoint holds the configuration too, so that nobody continues it with another one.
        """
        text = self._hide_paths(config).to_yaml()
        write_checkpoint(self.folder, {**content, "config": text})

    def load_checkpoint(self, config: C | None = None) -> dict[str, Any] | None:
        """Load what `save_checkpoint` wrote; None before the first checkpoint.

        A checkpoint of another configuration than `config` is refused.
        """
        saved = read_checkpoint(self.folder)
        if config and (changed := self._compare_checkpoint(saved, config)):
            raise UserError(
                f"{self.folder} holds the checkpoint of another configuration: "
                f"{', '.join(changed)}. Restore these options in {CONFIG}, replace the run with "
                "--overwrite, or choose another --out"
            )
        return saved

    def _remove_half_written(self) -> None:
        """Delete the temporary files of a killed process; the lock keeps other trainings out."""
        for name in FILES:
            for half in self.folder.glob(f".{name}.[0-9]*"):
                half.unlink(missing_ok=True)

    def list_changes(self, config: C) -> list[str]:
        """List the options in which `config` differs from those that the run was started with."""
        if (self.folder / CONFIG).exists():
            pair = (map_paths(each, self.is_path, resolve) for each in (self.config, config))
            return differences(*pair)
        # it was deleted, since it was damaged
        return self._compare_checkpoint(read_checkpoint(self.folder), config) or []

    def _check_same(self, config: C, resume: bool) -> None:
        changed = self.list_changes(config)
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
    is_path = staticmethod(kinds.is_path)

    @property
    def predictions(self) -> pa.Table:
        """The content of predictions.parquet: a row for each image of the evaluated part."""
        return read_table(self.verify(NAME), self.way_to_evaluate_again)
