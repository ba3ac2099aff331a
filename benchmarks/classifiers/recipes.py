"""Recipes of classifiers: a row of a table of the paper each, and which results are its own."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common.recipes import read_recipe
from longtail.core.config import Config, TrainConfig
from longtail.core.errors import UserError, unknown_error
from longtail.core.options import convert
from longtail.evaluation import tables
from longtail.evaluation.result import recipe_fields, round_floats
from longtail.runs.plan import Job, resolve


@dataclass(frozen=True)
class ClassifierRecipe:
    """A row of a table of the paper: its configuration and the paper's figure."""

    path: Path
    config: Config
    paper: float | None
    """Overall accuracy in the paper's table; None if the paper has no such cell."""
    seeds: int
    paper_splits: Mapping[str, float] = field(default_factory=dict)
    """Accuracies on many, medium and few in that table; empty if it does not give them."""

    @staticmethod
    def read(path: Path) -> "ClassifierRecipe":
        """Read a recipe file, which holds options of `Config` and the keys `paper` and `seeds`.

        The paper's figure is a number, or a mapping from `overall` and the splits to numbers.
        """
        config, paper, seeds = read_recipe(path, Config, _check_recipe, seeds=3)
        figures = paper if isinstance(paper, dict) else {"overall": paper}
        if unknown := set(figures) - set(tables.SPLITS):
            raise unknown_error("split", min(unknown), tables.SPLITS, f"in {path}: paper")
        values = {n: convert(v, float | None, f"{path}: paper") for n, v in figures.items()}
        overall = values.pop("overall", None)
        return ClassifierRecipe(path, config, overall, seeds, values)

    @property
    def cell(self) -> Path:
        """DATA-RATIO/BACKBONE, the folder of the results within the benchmark's own folder."""
        data = Path(self.config.data.replace(":", "-"))
        below = [part for part in data.parts if part not in (data.anchor, "..")]
        return Path(*below, self.config.backbone)

    @property
    def name(self) -> str:
        """METHOD, or METHOD+VARIANT if a method occurs with several options."""
        return self.path.stem

    @property
    def place(self) -> Path:
        """CELL/NAME, the path of a result without its seed."""
        return self.cell / self.name

    def find_changes(self, found: Mapping[str, Any]) -> list[str]:
        """Return the fields of the result `found` that differ from this recipe."""
        wanted = {"method": self.config.method, **recipe_fields(self.config)}
        if found["alpha_rule"] == "fixed" and "alpha" in self.config.options:
            wanted["alpha"] = self.config.options["alpha"]
        if self.config.files.evaluate_on == "val":
            wanted["evaluated_on"] = "val"
        # the default of an option that a result does not have is what its training did
        found = {**found, "train": {**round_floats(asdict(TrainConfig())), **found["train"]}}
        return [n for n, value in wanted.items() if found[n] != round_floats(value)]


def check_same_recipe(job: Job) -> None:
    """Raise if the recipe has changed since the run folder was written."""
    if (job.run.folder / "config.yaml").exists():
        before, now = recipe_fields(job.run.config), recipe_fields(job.config)
        if before != now:
            raise UserError(
                f"{job.run.folder} was trained by another recipe than its present one: delete that "
                "folder to train again, or restore the recipe"
            )


def _check_recipe(config: Config) -> Config:
    """Check and complete the options of a recipe; what it does not name has the plain default."""
    return resolve(replace(config, adaptive=()))[0]
