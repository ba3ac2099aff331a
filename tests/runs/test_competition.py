"""Runs of `auto`: which data chooses, which rule is shipped, and that every door agrees."""

import json
from dataclasses import replace

import pytest
import torch

import longtail as lt
from helpers import tiny_config, tiny_data
from interrupted import Kill, KillAfter, without_clock
from longtail import methods
from longtail.data.base import Data, Split
from longtail.data.prepare import hold_out
from longtail.evaluation import scoring
from longtail.evaluation.likelihood import fit_likelihood
from longtail.methods import auto
from longtail.methods.base import Choice
from longtail.runs import auto as competition
from longtail.runs.compare import find_runs
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

LONGER = {"epochs": 3, "batch_size": 8}


def with_validation(**options) -> Data:
    """Tiny images with a validation part of five a class."""
    return replace(tiny_data(**options), val=tiny_data(**options).test)


def fit(folder, data: Data, *, resume: bool = False, **options) -> Run:
    config = tiny_config(**options)
    (run,) = fit_all(config, ["auto"], [0], out=folder, data=data, resume=resume)
    return run


def let_win(monkeypatch, name: str) -> None:
    """Make the candidate called `name` win every competition."""
    monkeypatch.setattr(scoring, "find_best", lambda standings, labels: name)


def check_doors(run: Run, data: Data) -> None:
    """The result, its reopened run, the loaded model and the exported one predict alike."""
    assert lt.evaluate(run, data=data).to_json() == run.result
    model = lt.load_model(run, device="cpu")
    logits = model.logits(data.test.inputs)
    right = (logits.argmax(1) == data.test.labels).double().mean().item()
    assert run.result["overall"] == pytest.approx(100 * right)
    file = lt.export(run, "safetensors", out=run.folder.parent / "model.safetensors")
    shipped = lt.load_model(file, device="cpu")
    assert torch.allclose(shipped.logits(data.test.inputs), logits, atol=1e-4)


class KillInTuning(KillAfter):
    """Raises when `epoch` epochs of the second training are over."""

    trainings = 0

    def begin(self, *args):
        self.trainings += 1

    def epoch(self, record):
        if self.trainings == 2:
            super().epoch(record)


def stop_in_tuning(folder, data: Data, **options) -> None:
    """Start a run of `auto`, and stop it in the middle of its tuning run."""
    config = tiny_config(**options, **LONGER)
    with pytest.raises(Kill):
        fit_all(config, ["auto"], [0], out=folder, data=data, progress=KillInTuning(2))
    assert (folder / "tuning" / "last.pt").exists()


class TestWithAValidationPart:
    def test_it_chooses_without_a_tuning_run(self, tmp_path):
        data = with_validation()
        run = fit(tmp_path / "r", data)
        result = run.result
        assert result["alpha_rule"] == "held-out likelihood"
        assert tuple(result["candidates"]) == auto.CANDIDATES
        rows, chosen = result["candidates"], result["rule"]
        names = list(rows)
        for name in names[names.index(chosen) + 1 :]:
            other = name.partition(":")[0] != chosen.partition(":")[0]
            assert -rows[name]["behind"] <= (rows[name]["behind_error"] if other else 0)
        assert all(rows[name]["behind"] > 0 for name in names[: names.index(chosen)])
        assert not (run.folder / "tuning").exists() and not (run.folder / "rivals").exists()
        check_doors(run, data)

    def test_the_test_part_is_not_read_for_the_choice(self, tmp_path):
        data = with_validation()
        order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))
        shuffled = replace(data, test=replace(data.test, labels=data.test.labels[order]))
        one, other = (fit(tmp_path / n, d).result for n, d in (("a", data), ("b", shuffled)))
        assert one["rule"] == other["rule"] and one["candidates"] == other["candidates"]
        assert one["overall"] != other["overall"]

    def test_some_classes_may_have_no_validation_image(self, tmp_path):
        data = with_validation(counts=(24, 12, 8))
        kept = data.val.labels < 2
        val = replace(data.val, inputs=data.val.inputs[kept], labels=data.val.labels[kept])
        run = fit(tmp_path / "r", replace(data, val=val))
        assert run.result["alpha_rule"] == "held-out likelihood"
        assert all(0 <= row["nll"] < 10 for row in run.result["candidates"].values())

    def test_images_that_are_all_right_leave_the_default(self):
        labels, right_of_all = torch.arange(3), 30 * torch.eye(3)
        right, wrong = (
            scoring.Standing(fit_likelihood(logits, labels), 0.0)
            for logits in (right_of_all, right_of_all.roll(1, 0))
        )
        choice = Choice("rule", ("self-prior:0.25", "self-prior:1"), default="self-prior:1")
        both = dict.fromkeys(choice.grid, right)
        assert competition._choose(choice, both, labels) == "self-prior:1"
        first = {**both, "self-prior:1": wrong}
        assert competition._choose(choice, first, labels) == "self-prior:0.25"

    def test_the_strongest_value_that_wins_is_doubted(self, tmp_path, monkeypatch, caplog):
        data, said = with_validation(), "--rule self-prior:2 won, the strongest that was tried"
        kept = [0, 1, *range(5, len(data.val))]  # two of the five images of the first class
        few = replace(data, val=Split(data.val.inputs[kept], data.val.labels[kept]))
        for name, part, warned in (
            *(("self-prior:1", few, False), ("self-prior:2", data, False)),
            ("self-prior:2", few, True),
        ):
            caplog.clear()
            let_win(monkeypatch, name)
            fit(tmp_path / f"{name}-{len(part.val)}", part)
            assert (said in caplog.text) is warned
        assert "a class has only 2 images in the held-out part" in caplog.text
        assert "a weaker one, such as --rule self-prior:1" in caplog.text

    @pytest.mark.parametrize("rule", ["tde:1.5", "logit-adjustment:1", "nearest-mean"])
    def test_each_kind_of_rule_is_shipped_as_it_was_evaluated(self, rule, tmp_path, monkeypatch):
        let_win(monkeypatch, rule)
        data = with_validation()
        run = fit(tmp_path / "r", data)
        assert run.result["rule"] == rule
        assert run.result["alpha"] == (1.5 if rule == "tde:1.5" else None)
        check_doors(run, data)
        pinned = fit(tmp_path / "pinned", data, rule=rule)
        assert pinned.result["per_class"] == run.result["per_class"]
        assert pinned.result["rule"] == rule and pinned.result["options"] == {"rule": rule}

    @pytest.mark.parametrize(
        "rule", ["as-trained", "tde:1.5", "self-prior:0.25", "nearest-mean", "balanced-softmax"]
    )
    def test_the_shipped_model_has_the_likelihood_that_won(self, rule, tmp_path, monkeypatch):
        """The scale that was fitted to the winner is in its head."""
        let_win(monkeypatch, rule)
        data = with_validation()
        run = fit(tmp_path / "r", data, thorough=rule in auto.RIVALS, **LONGER)
        assert run.result["logit_scale"] not in (0, 1)
        logits = lt.load_model(run, device="cpu").logits(data.val.inputs)
        losses = torch.nn.functional.cross_entropy(logits, data.val.labels, reduction="none")
        by_class = [losses[data.val.labels == c].mean().item() for c in range(3)]
        won = run.result["candidates"][rule]
        assert sum(by_class) / 3 == pytest.approx(won["nll"], abs=1e-4)
        certain = lt.load_model(run, device="cpu").logits(data.test.inputs).softmax(1).amax(1)
        stored = run.predictions["probability"].to_pylist()
        assert stored == pytest.approx(certain.tolist(), abs=1e-4)
        check_doors(run, data)


class TestWithoutOne:
    def test_a_tuning_run_chooses_and_everything_is_trained_on(self, tmp_path, caplog):
        data = tiny_data(counts=(24, 12, 8))
        run = fit(tmp_path / "r", data)
        assert (run.folder / "tuning" / "last.pt").exists()
        assert "one more run on 80 % of each class" in caplog.text
        assert run.result["held_out"] == 0
        (plain,) = fit_all(tiny_config(), ["deconfound"], [0], out=tmp_path / "d", data=data)
        own, other = run.load_model(), plain.load_model()
        assert all(torch.equal(own[name], other[name]) for name in other if name != "head.alpha")
        assert run.result["recipe_id"] == plain.result["recipe_id"]
        check_doors(run, data)

    def test_the_test_part_is_not_read_for_the_choice(self, tmp_path):
        data = tiny_data(counts=(24, 12, 8))
        reverse = replace(data, test=replace(data.test, labels=data.test.labels.flip(0)))
        one, other = (fit(tmp_path / n, d).result for n, d in (("a", data), ("b", reverse)))
        assert one["rule"] == other["rule"] and one["candidates"] == other["candidates"]

    def test_every_seed_holds_out_images_of_its_own(self, tmp_path, monkeypatch):
        seen = []

        def watch(split: Split, fraction: float, *, seed: int) -> tuple[Split, Split]:
            parts = hold_out(split, fraction, seed=seed)
            seen.append(parts[1].inputs)
            return parts

        monkeypatch.setattr(competition, "hold_out", watch)
        data = tiny_data(counts=(24, 12, 8))
        fit_all(tiny_config(), ["auto"], [0, -1], out=tmp_path, data=data)
        one, other = seen
        assert len(one) == len(other) == 9 and not torch.equal(one, other)

    def test_too_few_held_out_images_leave_the_default(self, tmp_path, caplog):
        data = tiny_data(counts=(8, 4, 3))  # a fifth is 2 + 1 + 1 images
        run = fit(tmp_path / "r", data, batch_size=5)
        assert (run.result["rule"], run.result["alpha_rule"]) == ("self-prior:1", "default")
        assert "candidates" not in run.result and not (run.folder / "tuning").exists()
        assert "held-out images are too few for 3 classes" in caplog.text
        assert "self-prior:1 is used without a choice" in caplog.text
        check_doors(run, data)


class TestThorough:
    @pytest.mark.parametrize("rival", auto.RIVALS)
    @pytest.mark.parametrize("validation", [True, False])
    def test_a_rival_that_wins_is_shipped(self, rival, validation, tmp_path, monkeypatch):
        let_win(monkeypatch, rival)
        data = with_validation() if validation else tiny_data(counts=(24, 12, 8))
        options = {"thorough": True, "heads": 4}
        run = fit(tmp_path / "r", data, **options)
        assert run.result["rule"] == rival and rival in run.result["candidates"]
        assert tuple(run.result["candidates"]) == (*auto.CANDIDATES, *auto.RIVALS)
        own = {k: v for k, v in options.items() if k in methods.options_of(rival)}
        (alone,) = fit_all(tiny_config(**own), [rival], [0], out=tmp_path / "alone", data=data)
        one, other = run.load_model(), alone.load_model()
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert run.result["per_class"] == alone.result["per_class"]
        check_doors(run, data)
        trained = {p.parent.name for p in run.folder.rglob("rivals/*/last.pt")}
        assert trained == set(auto.RIVALS)
        assert (run.folder / "tuning").exists() is not validation

    def test_a_finished_run_whose_rival_won_is_not_taken_for_its_own_training(
        self, tmp_path, monkeypatch
    ):
        let_win(monkeypatch, "deconfound-balanced")
        data, config = with_validation(), tiny_config(thorough=True)
        fit_all(config, ["auto"], [0, 1], out=tmp_path, data=data)
        runs = fit_all(config, ["auto", "deconfound"], [0, 1], out=tmp_path, data=data, resume=True)
        plain = next(run for run in runs if run.folder.parent.name == "deconfound")
        (alone,) = fit_all(tiny_config(), ["deconfound"], [0], out=tmp_path / "alone", data=data)
        assert torch.equal(plain.load_model()["head.weight"], alone.load_model()["head.weight"])
        assert sorted(find_runs([tmp_path / "auto"])) == sorted(
            run.folder for run in runs if run.folder.parent.name == "auto"
        )

    def test_nothing_is_left_when_it_is_replaced(self, tmp_path, monkeypatch):
        let_win(monkeypatch, "balanced-softmax")
        data = tiny_data(counts=(24, 12, 8))
        run = fit(tmp_path / "r", data, thorough=True)
        assert (run.folder / "tuning/rivals/balanced-softmax/last.pt").exists()
        run.remove()
        assert not run.folder.exists()


class TestResume:
    @pytest.mark.parametrize("thorough", [False, True])
    def test_it_goes_on_where_it_was_stopped(self, thorough, tmp_path):
        data = tiny_data(counts=(24, 12, 8))
        whole = fit(tmp_path / "a", data, thorough=thorough, **LONGER)

        stop_in_tuning(tmp_path / "b", data, thorough=thorough)
        again = fit(tmp_path / "b", data, thorough=thorough, resume=True, **LONGER)
        assert without_clock(again) == without_clock(whole)

    def test_it_needs_something_to_choose(self, tmp_path):
        with pytest.raises(lt.UserError, match="--rule tde:1 leaves nothing to choose"):
            fit(tmp_path / "r", with_validation(), thorough=True, rule="tde:1")
        assert fit(tmp_path / "r", with_validation(), thorough=True, rule="tde").result["rule"]

    def test_a_tuning_run_that_held_out_other_images_starts_again(self, tmp_path, monkeypatch):
        """An earlier version had begun it."""
        data = tiny_data(counts=(24, 12, 8))
        whole = fit(tmp_path / "a", data, **LONGER)

        def hold_out_others(data: Data, seed: int) -> Data:
            rest, held = hold_out(data.train, 0.2, seed=seed + 1)
            return replace(data, train=rest, val=held, test=None)

        with monkeypatch.context() as patch:
            patch.setattr(competition, "_hold_out", hold_out_others)
            stop_in_tuning(tmp_path / "b", data)
        again = fit(tmp_path / "b", data, resume=True, **LONGER)
        assert without_clock(again) == without_clock(whole)

    def test_a_finished_run_stays(self, tmp_path):
        data = with_validation()
        run = fit(tmp_path / "r", data)
        before = run.result
        assert fit(tmp_path / "r", data, resume=True).result == before
        (run.folder / "result.json").unlink()
        again = fit(tmp_path / "r", data, resume=True).result
        assert again["candidates"] == before["candidates"] and again["rule"] == before["rule"]


class TestAlpha:
    def test_a_choice_of_0_is_logged(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(scoring, "find_best", lambda standings, labels: 0.0)
        config, data = tiny_config(alpha="auto"), with_validation()
        (run,) = fit_all(config, ["deconfound-tde"], [0], out=tmp_path, data=data)
        assert run.result["alpha"] == 0
        assert "on the 15 held-out images TDE would hurt, or not help" in caplog.text

    def test_a_rule_without_alpha_is_named(self, tmp_path, monkeypatch):
        let_win(monkeypatch, "self-prior:1")
        data = with_validation()
        run = fit(tmp_path / "r", data)
        with pytest.raises(lt.UserError, match="auto with the rule self-prior:1 has no alpha"):
            lt.evaluate(run, data, 1.0)

    def test_embeddings_compete_too(self, tmp_path):
        data = replace(tiny_data(images=False), val=tiny_data(images=False, seed=0).test)
        run = fit(tmp_path / "r", data, backbone="identity", augment="none")
        assert run.result["rule"] in auto.CANDIDATES
        assert json.loads((run.folder / "result.json").read_text()) == run.result
