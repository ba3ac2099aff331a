"""The whole way from data to a run folder, on tiny data."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import longtail as lt
from helpers import files_in, tiny_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors, without_clock
from longtail import methods
from longtail.core.config import DataConfig, TrainConfig
from longtail.core.errors import UserError
from longtail.data.prepare import hold_out
from longtail.evaluation.result import KEYS
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.training.optimizer import build_optimizer
from longtail.training.probe import batch_per_rank, check_fits
from longtail.training.schedule import schedule_stages
from longtail.training.trainer import Trainer


def fit(tmp_path, method="deconfound-tde", *, data=None, **options):
    config = tiny_config(method=method, **options)
    (run,) = fit_all(
        config, [method], [config.seed], out=tmp_path / method, data=data or tiny_data()
    )
    return run


@pytest.mark.parametrize("name", methods.list_names())
def test_every_method_trains_resumes_evaluates_and_leaves_a_complete_folder(name, tmp_path):
    data, config = tiny_data(), tiny_config(method=name, epochs=2)
    epochs = schedule_stages(methods.build(name).stages, 2)[-1].stop
    (run,) = fit_all(config, [name], [0], out=tmp_path / "whole", data=data)
    files = files_in(run.folder) - {"tuning"}
    method = methods.build(name)
    ruled = bool(method.rule or method.choice)
    assert ("head.safetensors" in files) == ruled
    assert files - {"head.safetensors"} == {
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "last.pt",
        "previous.pt",
        "manifest.json",
        "model.safetensors",
        "model.json",
        "class_means.safetensors",
        "result.json",
        "per_class.csv",
        "predictions.parquet",
        "sweep.csv",
        "slider.json",
        "examples.parquet",
    }
    result = run.result
    chosen = () if method.choice is None else ("candidates",)
    auto = ("rule", *chosen, "logit_scale")
    assert tuple(result) == (*KEYS, *(auto if name == "auto" else chosen))
    assert result["method"] == name and result["counts"] == [24, 12, 4]
    assert [record["epoch"] for record in run.metrics] == list(range(epochs))
    assert 0 <= result["overall"] <= 100 and result["many"] is None
    assert len(result["per_class"]) == len(result["weight_norm"]) == 3
    assert lt.evaluate(run, data=data).to_json() == result

    killed = KillAfter(epochs - 1)  # in the second stage, where there is one of two epochs
    with pytest.raises(Kill):
        fit_all(config, [name], [0], out=tmp_path / "killed", data=data, progress=killed)
    (resumed,) = fit_all(config, [name], [0], out=tmp_path / "killed", data=data, resume=True)
    assert same_tensors(run, resumed)
    assert without_clock(run) == without_clock(resumed)


def test_a_method_and_its_tde_are_one_training_and_two_alphas(tmp_path):
    names = ["deconfound", "deconfound-tde"]
    plain, tde = fit_all(tiny_config(), names, [0], out=tmp_path, data=tiny_data())
    assert plain.result["training_id"] == tde.result["training_id"]
    assert plain.result["recipe_id"] == tde.result["recipe_id"]
    assert (plain.result["alpha"], tde.result["alpha"]) == (0.0, 1.0)
    states = [run.load_model() for run in (plain, tde)]
    alphas = [state.pop("head.alpha").item() for state in states]
    assert alphas == [0.0, 1.0]  # those of the results; the rest is the same
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not (tde.folder / "last.pt").exists()


def test_other_seeds_options_and_methods_are_other_trainings(tmp_path):
    data = tiny_data()
    ids = {
        fit(tmp_path / "a", seed=0, data=data).result["recipe_id"],
        fit(tmp_path / "b", seed=1, data=data).result["recipe_id"],
        fit(tmp_path / "c", heads=4, data=data).result["recipe_id"],
        fit(tmp_path / "d", "cosine-tde", data=data).result["recipe_id"],
    }
    assert len(ids) == 4


def test_training_learns_and_evaluate_gives_the_same_result_again(tmp_path):
    data = tiny_data()
    run = fit(tmp_path, epochs=12, data=data, alpha=0.5)
    losses = [record["loss"] for record in run.metrics]
    assert losses[-1] < 0.7 * losses[0]
    assert run.result["overall"] > 60
    assert lt.evaluate(run, data=data).to_json() == run.result
    at_zero = lt.evaluate(run, data, 0.0)
    assert at_zero.alpha == 0.0 and at_zero.alpha_rule == "given"
    swept = lt.sweep(run, [0.0, 0.5], data=data)
    assert lt.sweep(run, "0:0.5:0.5", data=data) == lt.sweep(run, "0,0.5", data=data) == swept
    with pytest.raises(UserError, match="^alphas 1:0:0.5: LAST, 0, is below FIRST, 1"):
        lt.sweep(run, "1:0:0.5", data=data)
    assert swept[0.0].overall == at_zero.overall
    assert swept[0.5].overall == pytest.approx(run.result["overall"], rel=1e-5)


def test_a_path_is_a_name_of_data(tmp_path):
    data = tiny_data(images=False)
    parts = {"train": data.train, "test": data.test}
    arrays = {f"x_{part}": split.inputs.numpy() for part, split in parts.items()}
    labels = {f"y_{part}": split.labels.numpy() for part, split in parts.items()}
    np.savez(tmp_path / "points.npz", **arrays, **labels)
    named = [tmp_path / "points.npz", str(tmp_path / "points.npz")]
    runs = [lt.fit(d, out=tmp_path / f"{i}", epochs=1) for i, d in enumerate(named)]
    assert runs[0].config == runs[1].config
    assert runs[0].result["per_class"] == runs[1].result["per_class"]


def test_a_seed_may_be_numpys(tmp_path):
    config = tiny_config(epochs=1)
    (run,) = fit_all(config, ["cosine"], [np.int64(3)], out=tmp_path / "x", data=tiny_data())
    assert Run.open(run.folder).config.seed == 3


def test_fit_takes_seeds_and_embeddings(tmp_path):
    data = tiny_data(images=False)
    runs = lt.fit(
        data,
        "deconfound-tde",
        out=tmp_path,
        seeds=[0, 1],
        epochs=2,
        batch_size=8,
        backbone="identity",
        heads=2,
    )
    assert [run.folder.name for run in runs] == ["s0", "s1"]
    assert runs[0].result["overall"] is not None


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_moves_the_weights_and_adam_takes_momentum_as_beta1(optimizer, tmp_path):
    run = fit(tmp_path, optimizer=optimizer, lr=0.01, momentum=0.8)
    losses = [record["loss"] for record in run.metrics]
    assert losses[-1] < losses[0]
    groups = run.load_checkpoint()["replica"]["optimizer"]["param_groups"]
    assert groups[0].get("momentum", groups[0].get("betas", [None])[0]) == 0.8
    assert run.metrics[0]["mu"] == pytest.approx(0.8)


def test_no_other_optimizer_is_taken_for_an_unknown_one():
    train = replace(tiny_config().train, optimizer="adamax")
    with pytest.raises(UserError, match="unknown optimizer 'adamax'"):
        build_optimizer(train, torch.nn.Linear(2, 2), torch.tensor(0.1))


def test_a_short_last_batch_is_dropped_unless_kept(tmp_path):
    data = tiny_data(counts=(24, 12, 5))  # 41 images
    dropped, kept = (
        fit(tmp_path / str(keep), data=data, batch_size=8, epochs=3, keep_short_batch=keep)
        for keep in (False, True)
    )
    steps = [r.load_checkpoint()["replica"]["model"] for r in (dropped, kept)]
    seen = [int(s["backbone.layers.1.num_batches_tracked"]) for s in steps]
    assert seen == [3 * 5, 3 * 6]


def test_more_batch_than_images_is_one_batch_of_all(tmp_path):
    assert fit(tmp_path, batch_size=4096).finished


def test_fewer_images_than_parts_of_a_step_are_refused(tmp_path):
    options = {"backbone": "identity", "batch_size": 16}
    six, seven = (tiny_data(images=False, counts=counts) for counts in ((3, 2, 1), (4, 2, 1)))
    with pytest.raises(UserError, match=r"6 training images .* 16 parts.*--accumulate \(now 16\)$"):
        fit(tmp_path, data=six, accumulate=16, **options)
    assert not (tmp_path / "deconfound-tde").exists()
    config = tiny_config(accumulate=4, **options)
    with pytest.raises(UserError, match="7 training images .* 8 parts.* or fewer ranks than 2"):
        batch_per_rank(config, len(seven.train), 2)
    for images in range(8, 40):  # what every rank gets in each part, an image at a time
        for world in (1, 2):
            given = 0
            while (given + 1) * 4 * world <= min(16, images):
                given += 1
            assert batch_per_rank(config, images, world) == 4 * given > 0


ALONE = "resnet18 cannot be trained on one image alone"


@pytest.mark.parametrize(
    ("images", "options", "said"),
    [
        (
            33,
            {"batch_size": 16, "keep_short_batch": True},
            "short last .* or no --keep-short-batch",
        ),
        (
            *(36, {"batch_size": 16, "keep_short_batch": True, "accumulate": 4}),
            "short last step of an epoch takes one in each part",
        ),
        (
            33,
            {"batch_size": 1},
            r"every step takes just one: use a larger --batch-size \(now 1\) \(",
        ),
        (
            *(33, {"batch_size": 8, "accumulate": 8}),
            r"larger --batch-size \(now 8\) or a smaller --accumulate \(now 8\) \(",
        ),
        (6, {"batch_size": 16, "accumulate": 4}, r"in each part: use a smaller --accumulate \(now"),
        (33, {"batch_size": 16}, ""),
        (34, {"batch_size": 16, "keep_short_batch": True}, ""),
        (33, {"batch_size": 1, "backbone": "conv4"}, ""),
    ],
)
def test_one_image_alone_is_refused_for_a_network_that_cannot_take_it(images, options, said):
    """resnet18 makes a single place of 16x16 pixels, of which no variance can be taken."""
    data = tiny_data(counts=(images - 2, 1, 1))
    wide = data.train.input_tensor.repeat(1, 1, 2, 2)
    data = replace(data, train=replace(data.train, inputs=wide))
    config = tiny_config(**{"backbone": "resnet18", **options})
    random = torch.get_rng_state()
    with pytest.raises(UserError, match=f"{ALONE}.*{said}.*1 value") if said else nullcontext():
        check_fits(config, methods.build("cosine", {}), data, 1)
    assert torch.equal(torch.get_rng_state(), random)


class TestAlpha:
    def test_auto_chooses_on_held_out_data(self, tmp_path):
        data = tiny_data(counts=(24, 12, 6))
        train, val = hold_out(data.train, 0.25)
        data = replace(data, train=train, val=val)
        run = fit(tmp_path, data=data, alpha="auto")
        assert run.result["alpha"] == lt.evaluate(run, data, "auto").alpha
        assert run.result["alpha_rule"] == "held-out likelihood"
        assert run.result["alpha"] in [i * 0.25 for i in range(13)]
        assert run.metrics[0]["val"]["overall"] is not None
        assert not (run.folder / "tuning").exists()

    def test_auto_is_never_chosen_on_the_evaluated_part(self, tmp_path, caplog):
        """Without a test part the validation part is evaluated, so a tuning run must choose."""
        data = tiny_data()
        run = fit(tmp_path, data=replace(data, val=data.test, test=None), alpha="auto")
        assert run.result["evaluated_on"] == "val" and (run.folder / "tuning" / "last.pt").exists()
        assert "no validation part besides the evaluated one" in caplog.text

    def test_auto_without_held_out_data_makes_one_tuning_run(self, tmp_path, caplog):
        run = fit(tmp_path, alpha="auto")
        assert run.result["alpha_rule"] == "held-out likelihood"
        assert (run.folder / "tuning" / "last.pt").exists()
        assert "one more run on 80 %" in caplog.text

    def test_auto_with_nothing_to_hold_out_is_label_free(self, tmp_path):
        run = fit(tmp_path, data=tiny_data(counts=(1, 1, 1)), alpha="auto", batch_size=3)
        result = run.result
        assert result["alpha_rule"] == "label-free"
        assert result["alpha"] == pytest.approx(min(3.0, 1 / result["mean_cos"]), rel=1e-4)

    def test_auto_at_evaluation_is_label_free_without_held_out_data(self, tmp_path):
        data = tiny_data()
        run = fit(tmp_path, data=data)
        assert lt.evaluate(run, data, "auto").alpha_rule == "label-free"

    def test_a_head_without_direction_has_no_alpha(self, tmp_path):
        data = tiny_data()
        run = fit(tmp_path, "baseline", data=data)
        with pytest.raises(UserError, match="baseline has no alpha"):
            lt.evaluate(run, data, 1.0)
        with pytest.raises(UserError, match="Train with --method deconfound-tde for a run that"):
            lt.sweep(run, data=data)

    @pytest.mark.parametrize("alpha", ["-1", "nan", "inf"])
    def test_what_is_no_alpha_is_refused_before_anything_is_read(self, alpha):
        for ask in (
            lambda run, wrong: lt.evaluate(run, alpha=wrong),
            lambda run, wrong: lt.sweep(run, [0.0, wrong]),
        ):
            with pytest.raises(UserError, match=f"alpha {alpha} must be a number from 0 up"):
                ask("nowhere", float(alpha))


class TestBadInput:
    def test_unknown_method_and_option(self, tmp_path):
        with pytest.raises(UserError, match="'deconfund'.*Did you mean 'deconfound'"):
            fit(tmp_path, "deconfund")
        with pytest.raises(UserError, match="unknown option 'head'.*'heads'"):
            fit(tmp_path, "cosine", head=2)
        with pytest.raises(UserError, match="unknown option 'epoch'.*'epochs'"):
            fit(tmp_path, "cosine", epoch=2)
        with pytest.raises(UserError, match="--heads takes a whole number, not 'two'"):
            fit(tmp_path, heads="two")

    @pytest.mark.parametrize("seed", [0.5, "1", True, None])
    def test_what_is_no_seed_is_refused_before_anything_is_written(self, seed, tmp_path):
        with pytest.raises(UserError, match=f"seed takes a whole number, not {seed!r}"):
            lt.fit(tiny_data(), "cosine", out=tmp_path / "x", seeds=[seed])
        with pytest.raises(UserError, match="seed takes a whole number"):
            replace(tiny_config(), seed=seed).check()
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize("seeds", [2, "2", 2.5])
    def test_a_number_of_seeds_is_refused_with_the_way_to_name_them(self, seeds, tmp_path):
        rule = rf"seeds takes the seeds themselves, as in seeds=\[0, 1\], not {seeds!r}.*lt\.report"
        with pytest.raises(UserError, match=rule):
            lt.fit(tiny_data(), "cosine", out=tmp_path / "x", seeds=seeds)
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize("method", ["baseline,oltr", "all", ["baseline", "oltr"]])
    def test_several_methods_are_refused_with_the_way_to_compare_them(self, method, tmp_path):
        rule = f"method takes one name, not {method!r}: call lt.fit once for each"
        with pytest.raises(UserError, match=re.escape(rule)):
            lt.fit(tiny_data(), method, out=tmp_path / "x")
        assert not (tmp_path / "x").exists()

    def test_dim_not_divisible_by_heads(self, tmp_path):
        with pytest.raises(UserError, match="dim 128 does not split into 3"):
            fit(tmp_path, heads=3)

    def test_an_existing_run_is_never_replaced_unasked(self, tmp_path):
        run = fit(tmp_path)
        before = run.folder.joinpath("result.json").read_bytes()
        with pytest.raises(
            UserError, match=r"seed 0 -> 1, train.epochs 2 -> 4\.\n  it is finished: "
        ):
            fit(tmp_path, epochs=4, seed=1)
        with pytest.raises(
            UserError, match="already holds a finished run with the same configuration"
        ):
            fit(tmp_path)
        ways = "it is finished: replace it with overwrite=True, or choose another out="
        with pytest.raises(UserError, match=ways):  # in Python
            lt.fit(tiny_data(), "deconfound-tde", out=run.folder)
        assert run.folder.joinpath("result.json").read_bytes() == before

    def test_overwrite_removes_the_run_and_nothing_beside_it(self, tmp_path):
        run = fit(tmp_path)
        (run.folder / "notes.txt").write_text("mine")
        data = tiny_data()
        (again,) = fit_all(
            tiny_config(epochs=1),
            ["deconfound-tde"],
            [0],
            out=run.folder,
            data=data,
            overwrite=True,
        )
        assert len(again.metrics) == 1 and (run.folder / "notes.txt").read_text() == "mine"

    def test_overwrite_refuses_a_folder_that_only_looks_like_a_run(self, tmp_path):
        (tmp_path / "config.yaml").write_text("my: project")
        (tmp_path / "thesis.tex").write_text("years of work")
        with pytest.raises(UserError, match="not empty and not a run"):
            fit_all(tiny_config(), ["cosine"], [0], out=tmp_path, data=tiny_data(), overwrite=True)
        assert (tmp_path / "config.yaml").read_text() == "my: project"

    def test_a_network_of_another_image_size(self, tmp_path):
        with pytest.raises(UserError, match="vit_tiny_patch16_224 does not take inputs of 3x8x8"):
            fit(tmp_path, backbone="vit_tiny_patch16_224")
        assert not (tmp_path / "deconfound-tde").exists()

    def test_a_damaged_result_and_weights_of_another_model(self, tmp_path):
        data = tiny_data()
        run, other = fit(tmp_path, data=data), fit(tmp_path / "other", "baseline", data=data)
        weights = (other.folder / "model.safetensors").read_bytes()
        (run.folder / "model.safetensors").write_bytes(weights)
        with pytest.raises(UserError, match=r"model\.safetensors is damaged: it has"):
            lt.evaluate(run, data=data)
        (run.folder / "manifest.json").unlink()
        with pytest.raises(UserError, match="of another model than the run.s config.yaml asks for"):
            lt.evaluate(run, data=data)
        (run.folder / "result.json").write_text("{")
        with pytest.raises(UserError, match="result.json is not readable JSON.* Delete it, and"):
            lt.evaluate(run, data=data)

    def test_what_cannot_be_built_touches_no_folder(self, tmp_path):
        run = fit(tmp_path)
        before = (run.folder / "result.json").read_bytes()
        with pytest.raises(UserError, match="does not split into 3"):
            fit_all(
                *(tiny_config(heads=3), ["deconfound-tde"], [0]),
                out=run.folder,
                data=tiny_data(),
                overwrite=True,
            )
        assert (run.folder / "result.json").read_bytes() == before
        with pytest.raises(UserError, match="does not split into 3"):
            fit(tmp_path / "new", heads=3)
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"optimizer": "sdg"}, "unknown --optimizer 'sdg'. Did you mean 'sgd'"),
            ({"augment": "crop-filp"}, "Did you mean 'crop-flip'"),
            ({"epochs": 0}, "--epochs 0: must be at least 1"),
            ({"batch_size": -1}, "--batch-size -1: must be at least 1"),
            ({"lr": float("nan")}, "--lr nan: must be finite"),
            ({"momentum": 1.5}, "--momentum 1.5: must be at least 0 and less than 1"),
            ({"milestones": (120.0,)}, "--milestones 120.0: must be at least 0 and less than 1"),
        ],
    )
    def test_values_are_checked_whoever_sets_them(self, options, said, tmp_path):
        with pytest.raises(UserError, match=re.escape(said)):
            fit(tmp_path, **options)

    def test_batches_too_large_for_the_data_are_warned_about(self, tmp_path, caplog):
        few, enough = tiny_data(), "steps per epoch at --batch-size"
        size = len(few.train) // 4
        fit(tmp_path / "a", data=few, batch_size=size, epochs=1)
        assert enough not in caplog.text
        fit(tmp_path / "b", data=few, batch_size=size + 1, epochs=1)
        assert enough in caplog.text and f"{few.name} has" in caplog.text
        fewer = few.train.take(torch.arange(11))
        caplog.clear()
        fit(tmp_path / "c", data=replace(few, train=fewer), batch_size=4, epochs=1)
        assert "has 11 training samples" in caplog.text
        assert "--batch-size 2 --lr 0.0025" in caplog.text

    def test_types_are_checked_however_a_part_was_made(self, tmp_path):
        for part in (TrainConfig(epochs="9"), TrainConfig(epochs=2.5)):
            with pytest.raises(UserError, match="epochs takes a whole number"):
                replace(tiny_config(), train=part).check()
        with pytest.raises(UserError, match="image_size takes a whole number, not '64'"):
            lt.load("digits-lt", DataConfig(image_size="64"))
        assert lt.load("digits-lt", DataConfig(root=str(tmp_path))).name == "digits-lt"

    def test_weights_spoilt_by_the_last_step_are_not_saved(self, tmp_path, monkeypatch):
        """A loss is that of the weights before its step, so that it cannot tell."""
        step = Trainer.step

        def spoiling(replica, size):
            step(replica, size)
            if replica.cursor.item() == replica.division.steps and replica.state.progress > 0:
                replica.model.head.weight.data.fill_(float("inf"))

        monkeypatch.setattr(Trainer, "step", spoiling)
        with pytest.raises(UserError, match="weights became infinite or NaN at step 9"):
            fit(tmp_path, batch_size=8)
        saved = Run(tmp_path / "deconfound-tde").load_checkpoint()
        assert saved["epoch"] == 1

    def test_what_a_killed_start_leaves_is_no_obstacle(self, tmp_path):
        (tmp_path / "deconfound-tde").mkdir()
        (tmp_path / "deconfound-tde" / ".config.yaml.123").write_text("data: dig")
        assert fit(tmp_path).finished

    def test_a_folder_that_is_not_a_run_is_left_alone(self, tmp_path):
        (tmp_path / "deconfound-tde").mkdir()
        (tmp_path / "deconfound-tde" / "thesis.tex").write_text("years of work")
        with pytest.raises(UserError, match="not empty and not a run"):
            fit(tmp_path)
        assert (tmp_path / "deconfound-tde" / "thesis.tex").exists()

    def test_nan_stops_names_the_step_and_keeps_the_checkpoint(self, tmp_path):
        data = tiny_data(images=False)
        options = {"backbone": "identity", "augment": "none", "method": "baseline"}
        config = tiny_config(epochs=4, batch_size=8, **options)
        poison = data.train.inputs.clone()

        class Poisoned:
            """Spoils the data after the second epoch."""

            def begin(self, *args): ...
            def step(self, *args): ...

            def epoch(self, record):
                if record["epoch"] == 1:
                    poison[:] = float("nan")

        from longtail.data.base import Split

        poisoned = replace(data, train=Split(poison, data.train.labels))
        with pytest.raises(UserError, match=r"loss became nan at step 10 \(epoch 3, seed 0\)"):
            fit_all(
                config,
                ["baseline"],
                [0],
                out=tmp_path / "x",
                data=poisoned,
                progress=Poisoned(),
            )
        saved = Run(tmp_path / "x").load_checkpoint()
        assert saved["epoch"] == 2
        assert all(torch.isfinite(t).all() for t in saved["replica"]["model"].values())

    def test_data_without_a_part_to_evaluate_on(self, tmp_path):
        with pytest.raises(UserError, match="no test and no validation part"):
            fit(tmp_path, data=replace(tiny_data(), test=None))

    def test_images_need_a_network_and_embeddings_none(self, tmp_path):
        with pytest.raises(UserError, match="tiny holds images"):
            fit(tmp_path / "a", backbone="identity")
        with pytest.raises(UserError, match="tiny holds embeddings"):
            fit(tmp_path / "b", data=tiny_data(images=False))

    def test_other_data_than_the_run_was_trained_on(self, tmp_path):
        run = fit(tmp_path)
        with pytest.raises(UserError, match="now: each class has as many training images, but not"):
            lt.sweep(run, data=tiny_data(seed=1))


def test_result_json_stays_small_for_a_hundred_classes(tmp_path):
    data = tiny_data(counts=(4,) * 8)
    run = fit(tmp_path, data=data)
    lists = {k: v for k, v in run.result.items() if isinstance(v, list) and k != "confusions"}
    a_class = len(json.dumps(lists)) / 8
    the_rest = len(json.dumps(run.result)) - len(json.dumps(lists))
    assert the_rest + 100 * a_class < 20_000


@pytest.mark.parametrize("augment", ["none", "crop-flip", "resized-crop"])
def test_the_network_sees_crops_of_the_size_that_is_asked_for(augment, tmp_path, monkeypatch):
    from longtail.nn.backbones import Conv4

    seen = set()
    forward = Conv4.forward
    monkeypatch.setattr(
        Conv4, "forward", lambda s, x: (seen.add(tuple(x.shape[2:])), forward(s, x))[1]
    )
    config = tiny_config(augment=augment, crop_size=6, epochs=1)
    (run,) = fit_all(config, ["cosine"], [0], out=tmp_path, data=tiny_data())
    assert seen == {(6, 6)} and run.finished


def test_a_crop_that_is_larger_than_the_image_is_refused_or_enlarged(tmp_path):
    large = tiny_config(augment="crop-flip", crop_size=12, epochs=1)
    with pytest.raises(UserError, match=r"--crop-size 12 is larger .* 8x8 .*resized-crop enlarges"):
        fit_all(large, ["cosine"], [0], out=tmp_path / "a", data=tiny_data())
    assert not (tmp_path / "a").exists()
    larger = large.with_options(augment="resized-crop")
    (run,) = fit_all(larger, ["cosine"], [0], out=tmp_path / "b", data=tiny_data())
    assert run.finished
