"""What can be asked of a finished run: judge it again, at any alpha, without training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from torch import Tensor

from longtail import data as data_sets
from longtail import measures, tables
from longtail.config import MachineConfig
from longtail.data.base import Data, Split
from longtail.engine import launch
from longtail.errors import UserError
from longtail.features import extract
from longtail.heads import Head, NormalisedHead, checked_alpha
from longtail.jobs import Job
from longtail.methods import Method, Model
from longtail.methods.base import Auto
from longtail.models import build_model, load_weights
from longtail.resident import View
from longtail.results import COST, Evidence, Result, collect, judge, label_free, make_result
from longtail.runs import Run


@dataclass(frozen=True)
class Opened:
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
    def evidence(self) -> Evidence:
        """Features and scores of every part of its data, by `head`."""
        features = collect(self.model, self.data, self.features)
        evidence = judge(self.method, self.model.head, features, self.data)
        self._turn(evidence.head)
        return evidence

    @cached_property
    def head(self) -> Head:
        """The head after the method's rule; of TDE, at the run's own alpha.

        Only a rule has to see features of all data, which can take minutes.
        """
        return self.evidence.head if self.method.rule else self._turn(self.model.head)

    def _turn(self, head: Head) -> Head:
        if isinstance(head, NormalisedHead):
            head.alpha = self.job.run.result["alpha"]
        return head


def reopen(run: Run | Path | str, data: Data | None = None, root: Path | None = None) -> Opened:
    """A finished run on its own data, which must be what it was trained on.

    Args:
        run: the run or its folder.
        data: for a run that was trained on a `Data` of your own making.
        root: where its data set lies now; else where it lay, seen from where the run was started.
    """
    run = Run.open(run)
    job = Job.of(run.config, run)
    config = job.config
    choice = job.method.choice
    method = job.closed(run.result[choice.option]) if choice else job.method
    typed = run.result["data"]
    if data is None:
        name, files = data_sets.relocated(config.data, config.files, run.reached)
        files = files if root is None else replace(files, root=root)
        try:
            data = replace(data_sets.load(name, files), name=typed)
        except UserError as error:
            raise UserError(
                f"{run.folder} was trained on {config.data}, which was looked for where the run "
                f"was started and from here: {error}"
            ) from None
    if data.subset_sha256 != run.result["subset_sha256"]:
        raise UserError(
            f"{run.folder} was trained on other images than {config.data} holds now: subset "
            f"{run.result['subset_sha256'][:12]} then, {data.subset_sha256[:12]} now"
        )
    if data.judged_on != run.result["judged_on"]:
        raise UserError(
            f"{run.folder} was judged on its {tables.PARTS[run.result['judged_on']]} part, and "
            f"{config.data} would be judged on its {tables.PARTS[data.judged_on]} part: pass the "
            "data that it was trained on"
        )
    judged = run.result.get("judged_sha256")
    if judged and data.judged_sha256 and judged != data.judged_sha256:
        raise UserError(
            f"{run.folder} was judged on other images than the {tables.PARTS[data.judged_on]} part "
            f"of {config.data} holds now: {judged[:12]} then, {data.judged_sha256[:12]} now"
        )
    model = build_model(config, method, data)
    load_weights(model, run.load_model(), f"{run.folder}/model.safetensors")
    # the device may be gone; figures are those of its precision
    fabric = launch(MachineConfig(precision=config.machine.precision))
    view = View.of(data, config.train, fabric.device)
    return Opened(job, method, data, model.to(fabric.device).eval(), view, fabric)


def evaluate(
    run: Run | Path | str,
    alpha: Auto | None = None,
    *,
    data: Data | None = None,
) -> Result:
    """The result of a finished run at `alpha` (None: as it was trained); writes nothing.

    `auto` chooses on held-out data that is not judged on when there is some, else by the label-free
    rule.
    `data` is needed for a run that was trained on a `Data` of your own making.
    """
    if alpha is not None and alpha != "auto":
        alpha = checked_alpha(alpha)
    opened = reopen(run, data)
    job, data, evidence = opened.job, opened.data, opened.evidence
    stored = job.run.result
    if alpha is None:
        chosen = (stored["alpha"], stored["alpha_rule"])
    else:
        _needs_tde(job, evidence)
        chosen = _alpha(alpha, evidence, data, stored)
    cost = {name: stored.get(name) for name in COST}
    return make_result(job.config, data, evidence, chosen, cost)


def _alpha(
    wanted: Auto, evidence: Evidence, data: Data, stored: Mapping[str, Any]
) -> tuple[float, str]:
    if wanted != "auto":
        return wanted, "fixed"
    if stored["alpha_rule"] == "held-out":  # it was chosen then, perhaps by a tuning run
        return stored["alpha"], "held-out"
    if evidence.held_out is not None and data.test is not None:
        return measures.choose_alpha(evidence.held_out, data.counts), "held-out"
    assert isinstance(evidence.head, NormalisedHead)
    return label_free(evidence.head, evidence.features.train)


def sweep(
    run: Run | Path | str, alphas: Sequence[float] = measures.GRID, *, data: Data | None = None
) -> dict[float, measures.Accuracy]:
    """Accuracy of a finished run at each alpha, from one pass over the images."""
    alphas = [checked_alpha(alpha) for alpha in alphas]
    opened = reopen(run, data)
    _needs_tde(opened.job, opened.evidence)
    return measures.sweep(opened.evidence.scores, opened.data.counts, alphas)


def _needs_tde(job: Job, evidence: Evidence) -> None:
    if evidence.scores.indirect is None:
        raise UserError(
            f"{job.config.method} has no alpha: its head has no direction to subtract. "
            "Methods that do: cosine, capsule, deconfound, and each with -tde"
        )
