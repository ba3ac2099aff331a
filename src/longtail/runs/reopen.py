"""What can be asked of a finished run: judge it again, at any alpha, without training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from torch import Tensor

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.data import load as data_sets
from longtail.data.base import Data, Split
from longtail.evaluation import accuracy as measures
from longtail.evaluation import tables
from longtail.evaluation.result import ClassifierCost, ClassifierDetails, Result, make_result
from longtail.evaluation.scoring import (
    Evaluation,
    choose_label_free,
    extract_parts,
    score_parts,
)
from longtail.methods import Method, Model
from longtail.methods.base import Auto
from longtail.nn.heads import Head, NormalisedHead, check_alpha
from longtail.runs.folder import Run
from longtail.runs.plan import Job
from longtail.training.features import extract
from longtail.training.loop import launch
from longtail.training.model import build_model, load_weights
from longtail.training.resident import View


@dataclass(frozen=True)
class OpenRun:
    """A finished run with its data and its network, which features can be asked of."""

    job: Job
    method: Method
    """With nothing left open."""
    data: Data
    model: Model
    view: View
    fabric: Fabric

    def features(self, split: Split) -> Tensor:
        """Features (N, D) of any images of that kind, prepared as those it was trained on."""
        return extract(self.model, split, self.view, self.fabric, self.job.config.machine)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Features and scores of every part of its data, by `head`."""
        features = extract_parts(self.model, self.data, self.features)
        evaluation = score_parts(self.method, self.model.head, features, self.data)
        self._turn(evaluation.head)
        return evaluation

    @cached_property
    def head(self) -> Head:
        """The head after the method's rule; of TDE, at the run's own alpha.

        Only a rule has to see features of all data, which can take minutes.
        """
        return self.evaluation.head if self.method.rule else self._turn(self.model.head)

    def _turn(self, head: Head) -> Head:
        if isinstance(head, NormalisedHead):
            head.alpha = self.job.run.result["alpha"]
        return head


Own = Data | Path | str | None
"""A run's own data: a `Data` of the user's making, or where it lies now if it was moved."""


def reopen(run: Run | Path | str, data: Own = None, root: Path | None = None) -> OpenRun:
    """A finished run on its own data, which must be what it was trained on.

    Args:
        run: the run or its folder.
        data: the `Data` of your own making that it was trained on, or where its data lies now.
        root: where its data set lies now; else where it lay, seen from where the run was started.
    """
    run = Run.open(run)
    job = Job.of(run.config, run)
    config = job.config
    choice = job.method.choice
    method = job.with_choice(run.result[choice.option]) if choice else job.method
    own = own_data(run, data, root)
    model = build_model(config, method, own)
    load_weights(model, run.load_model(), f"{run.folder}/model.safetensors")
    fabric = relaunch(run)
    view = View.of(own, config.train, fabric.device)
    return OpenRun(job, method, own, model.to(fabric.device).eval(), view, fabric)


def relaunch(run: Run) -> Fabric:
    """The device at hand, for that of the run may be gone; figures are those of its precision."""
    return launch(MachineConfig(precision=run.config.machine.precision))


def own_data(run: Run, data: Own = None, root: Path | None = None) -> Data:
    """What the run was trained and judged on, or a `UserError` if that is not what is there now."""
    config, result = run.config, run.result
    called = config.data or config.files.list
    if isinstance(data, Path | str):
        called = data
    if not isinstance(data, Data):
        name, files = data_sets.relocated(config.data, config.files, run.reached)
        files = files if root is None else replace(files, root=root)
        try:
            loaded = data_sets.load(name if data is None else data, files)
        except UserError as error:
            if data is not None:
                raise
            moved = ". Tell longtail eval or sweep with --data PATH where it lies now"
            raise UserError(
                f"{run.folder} was trained on {called}, which was looked for "
                f"where the run was started and from here: {error}"
                f"{moved if data_sets.is_path(config.data) else ''}"
            ) from None
        data = replace(loaded, name=result["data"])
    if data.subset_sha256 != result["subset_sha256"]:
        raise UserError(
            f"{run.folder} was trained on other images than {called} holds now: subset "
            f"{result['subset_sha256'][:12]} then, {data.subset_sha256[:12]} now. Bring those "
            "back, or train anew"
        )
    then, now = (tables.PARTS[part] for part in (result["evaluated_on"], data.evaluated_on))
    if then != now:
        raise UserError(
            f"{run.folder} was judged on its {then} part, and {called} would be judged on its "
            f"{now} part: pass the data that it was trained on"
        )
    if not data.is_evaluated_on(result.get("evaluated_sha256")):
        raise UserError(
            f"{run.folder} was judged on other images than the {now} part of {called} holds "
            f"now: {result['evaluated_sha256'][:12]} then, {data.evaluated_sha256[:12]} now"
        )
    return data


def evaluate(
    run: Run | Path | str,
    alpha: Auto | None = None,
    *,
    data: Own = None,
) -> Result[ClassifierDetails]:
    """The result of a finished run at `alpha` (None: as it was trained); writes nothing.

    `auto` chooses on held-out data that is not judged on when there is some, else by the label-free
    rule.
    `data` is needed for a run that was trained on a `Data` of your own making, or whose data was
    moved.
    """
    if alpha is not None and alpha != "auto":
        alpha = check_alpha(alpha)
    opened = reopen(run, data)
    job, evaluation = opened.job, opened.evaluation
    stored = job.run.result
    if alpha is None:
        chosen = (stored["alpha"], stored["alpha_rule"])
    else:
        _needs_tde(job, evaluation)
        chosen = _alpha(alpha, evaluation, opened.data, stored)
    cost = ClassifierCost.from_json(stored)
    return make_result(job.config, opened.data, evaluation, chosen, cost)


def _alpha(
    wanted: Auto, evaluation: Evaluation, data: Data, stored: Mapping[str, Any]
) -> tuple[float, str]:
    if wanted != "auto":
        return wanted, "fixed"
    if stored["alpha_rule"] == "held-out":  # it was chosen then, perhaps by a tuning run
        return stored["alpha"], "held-out"
    if evaluation.held_out is not None and data.test is not None:
        return measures.choose_alpha(evaluation.held_out, data.counts), "held-out"
    assert isinstance(evaluation.head, NormalisedHead)
    return choose_label_free(evaluation.head, evaluation.features.train)


def sweep(
    run: Run | Path | str, alphas: Sequence[float] = measures.GRID, *, data: Own = None
) -> dict[float, measures.Accuracy]:
    """Accuracy of a finished run at each alpha, from one pass over the images."""
    alphas = [check_alpha(alpha) for alpha in alphas]
    opened = reopen(run, data)
    _needs_tde(opened.job, opened.evaluation)
    return measures.sweep(opened.evaluation.scores, opened.data.counts, alphas)


def _needs_tde(job: Job, evaluation: Evaluation) -> None:
    if evaluation.scores.indirect is None:
        raise UserError(
            f"{job.config.method} has no alpha: its head has no direction to subtract. "
            "Methods that do: cosine, capsule, deconfound, and each with -tde"
        )
