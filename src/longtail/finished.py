"""What can be asked of a finished run: judge it again, at any alpha, without training."""

from collections.abc import Sequence
from pathlib import Path

from longtail import data as data_sets
from longtail import measures, methods
from longtail.config import MachineConfig
from longtail.data.base import Data
from longtail.engine import launch
from longtail.errors import UserError
from longtail.features import extract
from longtail.heads import NormalisedHead
from longtail.jobs import Job
from longtail.methods.base import Auto
from longtail.models import build_model, load_weights
from longtail.resident import View
from longtail.results import COST, Evidence, Result, collect, judge, label_free, make_result
from longtail.runs import Run


def _reopen(run: Run | Path | str, data: Data | None) -> tuple[Job, Data, Evidence]:
    """A finished run with its data, its features and its scores."""
    run = Run.open(run)
    config = run.config
    job = Job(config, methods.build(config.method, config.options), run)
    choice = job.method.choice
    method = job.closed(run.result[choice.option]) if choice else job.method
    data = data if data is not None else data_sets.load(config.data, config.files)
    if data.subset_sha256 != run.result["subset_sha256"]:
        raise UserError(
            f"{run.folder} was trained on other images than {config.data} holds now: subset "
            f"{run.result['subset_sha256'][:12]} then, {data.subset_sha256[:12]} now"
        )
    model = build_model(config, method, data)
    load_weights(model, run.load_model(), f"{run.folder}/model.safetensors")
    fabric = launch(MachineConfig())  # where it was trained may be gone
    view = View.of(data, config.train, fabric.device)
    model.to(fabric.device)
    machine = config.machine
    features = collect(model, data, lambda split: extract(model, split, view, fabric, machine))
    return job, data, judge(method, model.head, features, data)


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
    job, data, evidence = _reopen(run, data)
    stored = job.run.result
    if alpha is None:
        chosen = (stored["alpha"], stored["alpha_rule"])
    else:
        _needs_tde(job, evidence)
        chosen = _alpha(alpha, evidence, data)
    cost = {name: stored[name] for name in COST}
    return make_result(job.config, data, evidence, chosen, cost)


def _alpha(wanted: Auto, evidence: Evidence, data: Data) -> tuple[float, str]:
    if wanted != "auto":
        return wanted, "fixed"
    if evidence.held_out is not None and data.test is not None:
        return measures.choose_alpha(evidence.held_out, data.counts), "held-out"
    assert isinstance(evidence.head, NormalisedHead)
    return label_free(evidence.head, evidence.features.train), "label-free"


def sweep(
    run: Run | Path | str, alphas: Sequence[float] = measures.GRID, *, data: Data | None = None
) -> dict[float, measures.Accuracy]:
    """Accuracy of a finished run at each alpha, from one pass over the images."""
    job, data, evidence = _reopen(run, data)
    _needs_tde(job, evidence)
    return measures.sweep(evidence.scores, data.counts, alphas)


def _needs_tde(job: Job, evidence: Evidence) -> None:
    if evidence.scores.indirect is None:
        raise UserError(
            f"{job.config.method} has no alpha: its head has no direction to subtract. "
            "Methods that do: cosine, capsule, deconfound, and each with -tde"
        )
