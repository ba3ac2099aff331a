"""Reopen a finished run: evaluate it again, at any alpha, without training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lightning.fabric import Fabric
from torch import Tensor

from longtail.core.alphas import parse_alphas
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.data.base import Data, Split
from longtail.evaluation import accuracy as measures
from longtail.evaluation.alpha import GRID, choose_alpha
from longtail.evaluation.cost import ClassifierCost
from longtail.evaluation.result import ClassifierResult, make_result
from longtail.evaluation.scoring import (
    Evaluation,
    Features,
    check_flips,
    choose_label_free,
    extract_parts,
    score_flips,
    score_parts,
)
from longtail.methods.base import Auto, Method, Model
from longtail.nn.background import find_background, several_labels_error
from longtail.nn.heads import Head, NormalisedHead, check_alpha
from longtail.nn.preprocess import Preprocess
from longtail.runs.folder import Run
from longtail.runs.own_data import OwnData, own_data
from longtail.runs.plan import Job, resolve
from longtail.training.features import extract
from longtail.training.inputs import build_preprocess
from longtail.training.launch import launch
from longtail.training.model import build_model, load_weights, use_inputs_of_weights


@dataclass(frozen=True)
class OpenRun:
    """A finished run with its data and its network on a device."""

    job: Job
    method: Method
    """The method with its open option set to the value that was chosen."""
    data: Data
    model: Model
    preprocess: Preprocess
    fabric: Fabric
    background: str | None = None
    """Class that keeps its total effect instead of the run's own, if any; empty for none."""

    def features(self, split: Split) -> Tensor:
        """Extract features (N, D) of images, which are prepared as the training images were."""
        return self._extract(split)

    def mirrored_features(self, split: Split) -> Tensor:
        """Extract features (N, D) of the mirror images of `split`."""
        return self._extract(split, mirrored=True)

    def _extract(self, split: Split, *, mirrored: bool = False) -> Tensor:
        place = self.preprocess, self.fabric, self.job.config.machine
        return extract(self.model, split, *place, mirrored=mirrored)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Features and scores of every part of its data, with the head at the run's own alpha."""
        return self.score(extract_parts(self.data, self.features))

    def score(self, features: Features) -> Evaluation:
        """Score `features` of every part, which another run of the same training may share."""
        name, stored = self.background, self.job.config.background
        if name is None and stored and stored not in self.data.classes:
            raise UserError(
                f"{self.job.run.folder}: its background '{stored}' is not a class of its data"
            )
        background = find_background(stored if name is None else name, self.data.classes)
        evaluation = score_parts(
            self.method, self.model.head, features, self.data, self._logit_scale, background
        )
        self._set_alpha(evaluation.head)
        return evaluation

    @cached_property
    def head(self) -> Head:
        """The shipped head: after the method's rule, at the run's own alpha and scale.

        Only a rule needs the features of all data, which can take minutes.
        """
        if self.method.rule:
            return self.evaluation.shipped
        head, scale = self.model.head, self._logit_scale
        self._set_alpha(head)
        return head if scale == 1 else head.scaled(scale)

    @property
    def _logit_scale(self) -> float:
        return float(self.job.run.result.get("logit_scale", 1.0))  # older results have none

    def _set_alpha(self, head: Head) -> None:
        if isinstance(head, NormalisedHead):
            head.alpha = self.job.run.result["alpha"]


def reopen(run: Run | Path | str, data: OwnData = None) -> OpenRun:
    """Open a finished run on its own data, which must be what it was trained on.

    Args:
        run: the run or its folder.
        data: its data, if you made that yourself, or the place that it was moved to.
    """
    run = Run.open(run)
    with _name_config(run):
        job = Job(*resolve(run.config), run)
    choice = job.method.choice
    if choice and choice.option not in run.result:
        raise UserError(
            f"{run.folder}/config.yaml and result.json are not of one training: the result has no "
            f"{choice.option}. Restore whichever was changed, or train again with --overwrite"
        )
    method = job.with_choice(run.result[choice.option]) if choice else job.method
    own = use_inputs_of_weights(job.config, own_data(run, data))
    with _name_config(run):
        model = build_model(job.config, method, own)
    load_weights(model, run.load_model(), f"{run.folder}/model.safetensors")
    fabric = relaunch(run)
    preprocess = build_preprocess(own, job.config.train).to(fabric.device)
    return OpenRun(job, method, own, model.to(fabric.device).eval(), preprocess, fabric)


@contextmanager
def _name_config(run: Run) -> Iterator[None]:
    """Name the run's config.yaml in an error about its options."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{run.folder}/config.yaml: {error}") from None


def relaunch(run: Run) -> Fabric:
    """Launch on the device at hand, since that of the run may be gone, in the run's precision."""
    return launch(MachineConfig(precision=run.config.machine.precision))


def evaluate_own(
    run: Run | Path | str,
    alpha: Auto | None = None,
    *,
    data: OwnData = None,
    background: str | None = None,
    flips: bool = False,
) -> ClassifierResult:
    """Evaluate a finished run on its own data at `alpha`; nothing is written.

    Args:
        run: the run or its folder.
        alpha: a number; `auto` to choose it on held-out data that is not the evaluated part, or
            by the label-free rule without any; None for the run's own.
        data: its data, if you made that yourself, or the place that it was moved to.
        background: class that keeps its total effect (Eq. 9); the run's own by default.
        flips: also score the mean logits of every image and its mirror image.
    """
    opened = replace(reopen(run, data), background=background)
    stored = opened.job.run.result
    if background and opened.data.multi_label:
        raise several_labels_error()
    if background:
        _check_has_alpha(opened)
    if alpha is None:
        choice = (stored["alpha"], stored["alpha_rule"])
    else:
        _check_has_alpha(opened)
        choice = _choose_alpha(opened) if alpha == "auto" else (alpha, "given")
    cost = ClassifierCost.from_json(stored)
    kept = ["logit_scale"] + (["rule", "strength", "candidates"] if alpha is None else [])
    exempt = stored.get("background", "") if background is None else background
    if alpha is None and exempt == stored.get("background", ""):
        kept.append("trust")
    chosen = {key: stored[key] for key in kept if key in stored}
    chosen |= {"background": exempt} if exempt else {}
    if flips or opened.job.config.flips:
        check_flips(opened.data)
        mirrored = opened.mirrored_features(opened.data.evaluated)
        chosen["flips"] = score_flips(opened.evaluation, mirrored, choice[0], opened.data.counts)
    made = opened.job.config, opened.data, opened.evaluation
    return make_result(*made, choice, cost, chosen, mean_cos=stored.get("mean_cos"))


def _choose_alpha(opened: OpenRun) -> tuple[float, str]:
    """Choose alpha as the run did, else on held-out data, else without labels."""
    stored, evaluation = opened.job.run.result, opened.evaluation
    if stored["alpha_rule"].startswith("held-out"):  # perhaps by a tuning run
        return stored["alpha"], stored["alpha_rule"]
    assert isinstance(evaluation.head, NormalisedHead)
    held_out = evaluation.features.held_out
    several = opened.data.multi_label  # likelihood is of one label per image
    if held_out is not None and opened.data.test is not None and not several:
        return choose_alpha(evaluation.head, *held_out), "held-out likelihood"
    return choose_label_free(evaluation.head, evaluation.features.train)


def sweep(
    run: Run | Path | str, alphas: Sequence[float] | str = GRID, *, data: OwnData = None
) -> dict[float, measures.Accuracy]:
    """Compute the accuracy of a finished run at each alpha, from one pass over the images.

    `alphas` may also be text as for `longtail sweep --alphas`, such as "0:3:0.25" or "0,0.5,1".
    """
    values = parse_alphas(alphas, "alphas") if isinstance(alphas, str) else alphas
    alphas = [check_alpha(alpha) for alpha in values]
    opened = reopen(run, data)
    _check_has_alpha(opened)
    return measures.sweep(opened.evaluation.scores, opened.data.counts, alphas)


def _check_has_alpha(opened: OpenRun) -> None:
    if opened.evaluation.scores.indirect is None:
        chosen = opened.job.run.result.get("rule")
        name = opened.job.config.method + (f" with the rule {chosen}" if chosen else "")
        several = opened.data.multi_label
        raise UserError(
            f"{name} has no alpha: its head has no direction to subtract. Train with --method "
            f"{'deconfound-bce-tde' if several else 'deconfound-tde'} for a run that has one"
        )
