"""Rules, stages and steps of the methods, and the table of methods."""

import functools
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import longtail as lt
import reference
from helpers import tiny_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors
from longtail import methods
from longtail.core.config import Config, TrainConfig
from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.methods import table as listing
from longtail.methods.base import Batch, Model, RuleInputs
from longtail.methods.decouple import ScaledHead
from longtail.methods.oltr import MemoryHead
from longtail.nn import backbones
from longtail.nn.heads import LinearHead
from longtail.nn.losses import State, cross_entropy
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

close = functools.partial(assert_close, rtol=1e-10, atol=1e-10)
COUNTS = ClassCounts((50, 9, 2))


def state(progress: float = 0.0) -> State:
    """The state of a step at `progress`."""
    scalars = (torch.tensor(progress), torch.tensor(0.1), torch.tensor(0.9))
    return State(*scalars, COUNTS.tensor(), torch.Generator().manual_seed(0))


def trained_head() -> tuple[LinearHead, torch.Tensor, torch.Tensor]:
    """A head in float64, features (9, 4) and their labels."""
    generator = torch.Generator().manual_seed(0)
    head = LinearHead(4, 3).double()
    head.weight.data = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    features = torch.rand(9, 4, generator=generator, dtype=torch.float64)
    return head, features, torch.tensor([0] * 5 + [1] * 3 + [2])


def apply_rule(name: str, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logits of the trained head, those after the rule, and the features."""
    head, features, labels = trained_head()
    before = head.weight.clone()
    rule = methods.build(name, options).rule
    assert rule is not None
    logits = rule(RuleInputs(head, features, labels, None, COUNTS))(features)
    assert torch.equal(head.weight, before) and not logits.requires_grad
    return head(features).detach(), logits, features


class TestRules:
    @pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
    def test_logit_adjustment_is_its_formula_and_tau_0_changes_nothing(self, tau):
        plain, logits, _ = apply_rule("logit-adjustment", tau=tau)
        expected = [reference.adjusted(z, COUNTS.images, tau) for z in plain.tolist()]
        close(logits, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)
        if tau == 0:
            assert torch.equal(logits, plain)

    @pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
    def test_tau_norm_is_equation_10_and_tau_0_changes_nothing(self, tau):
        plain, logits, features = apply_rule("decouple-tau-norm", tau=tau)
        weight, n = trained_head()[0].weight.tolist(), reference.tau_norm(tau)
        expected = [reference.normalised(x, weight, 1.0, 1, n) for x in features.tolist()]
        close(logits, torch.tensor(expected, dtype=torch.float64))
        if tau == 0:
            assert torch.equal(logits, plain)

    def test_ncm_is_the_nearest_class_mean_by_cosine(self):
        _, logits, features = apply_rule("decouple-ncm")
        rows, labels = features.tolist(), trained_head()[2].tolist()
        means = []
        for c in range(3):
            own = [x for x, y in zip(rows, labels, strict=True) if y == c]
            means.append([sum(values) / len(own) for values in zip(*own, strict=True)])
        for x, z in zip(rows, logits.tolist(), strict=True):
            cosines = [reference.cos(x, mean) for mean in means]
            assert z.index(max(z)) == cosines.index(max(cosines))
            close(torch.tensor(z), torch.tensor([16 * c for c in cosines]), rtol=1e-4, atol=1e-4)

    def test_they_share_the_baselines_training_and_leave_its_checkpoint_as_it_was(self, tmp_path):
        names = ["baseline", "decouple-joint", "decouple-ncm", "decouple-tau-norm"]
        names.append("logit-adjustment")
        runs = fit_all(tiny_config(tau=0.5), names, [0], out=tmp_path, data=tiny_data())
        assert len({run.result["training_id"] for run in runs}) == 1
        baseline, joint, *posthoc = runs
        assert all(same_tensors(baseline, run) for run in runs)
        assert not any((run.folder / "last.pt").exists() for run in runs[1:])
        assert joint.result["per_class"] == baseline.result["per_class"]
        assert [run.result["tau"] for run in posthoc] == [None, 0.5, 0.5]


class TestChoices:
    def test_tau_is_chosen_on_held_out_data(self, tmp_path):
        data = replace(tiny_data(), val=tiny_data(seed=0).test)
        config = tiny_config()
        (run,) = fit_all(config, ["decouple-tau-norm"], [0], out=tmp_path, data=data)
        assert run.result["alpha_rule"] == "held-out likelihood"
        assert run.result["tau"] in listing_grid() and listing_grid()[::10] == (0.0, 1.0, 2.0)
        assert not (run.folder / "tuning").exists()
        assert lt.evaluate(run, data=data).to_json() == run.result

    def test_without_held_out_data_one_tuning_run_chooses(self, tmp_path, caplog):
        (run,) = fit_all(tiny_config(), ["decouple-tau-norm"], [0], out=tmp_path, data=tiny_data())
        assert run.result["alpha_rule"] == "held-out likelihood"
        assert run.result["tau"] in listing_grid()
        assert (run.folder / "tuning" / "last.pt").exists()
        assert "tau auto: the data has no validation part" in caplog.text
        assert "so it takes one more run" in caplog.text

    @pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2, 1)])
    def test_with_nothing_to_hold_out_the_weights_stay(self, counts, tmp_path):
        data, config = tiny_data(counts=counts), tiny_config(batch_size=3)
        (run,) = fit_all(config, ["decouple-tau-norm"], [0], out=tmp_path, data=data)
        assert run.result["tau"] == 0.0 and run.result["alpha_rule"] == "least"

    def test_logit_adjustment_takes_auto_too(self, tmp_path):
        config = tiny_config(tau="auto")
        (run,) = fit_all(config, ["logit-adjustment"], [0], out=tmp_path, data=tiny_data())
        assert 0 <= run.result["tau"] <= 2 and run.result["alpha_rule"] == "held-out likelihood"


def listing_grid() -> tuple[float, ...]:
    choice = methods.build("decouple-tau-norm").choice
    assert choice is not None
    return choice.grid


class TestStages:
    @pytest.mark.parametrize("name", ["decouple-crt", "decouple-lws", "decouple-oltr", "oltr"])
    def test_the_first_stage_is_the_baselines_weight_for_weight(self, name, tmp_path):
        config, data = tiny_config(epochs=2), tiny_data()
        (run,) = fit_all(config, [name], [0], out=tmp_path / "two", data=data)
        first = replace(config, options=dict(methods.build(name).first_options))
        (baseline,) = fit_all(first, ["baseline"], [0], out=tmp_path / "one", data=data)
        losses = [[record["loss"] for record in r.metrics] for r in (run, baseline)]
        assert losses[0][:2] == losses[1]
        two_stage, one_stage = run.load_model(), baseline.load_model()
        backbone = [key for key in one_stage if key.startswith("backbone.")]
        frozen = all(torch.equal(two_stage[key], one_stage[key]) for key in backbone)
        assert frozen == (name != "oltr")
        kept = torch.equal(two_stage["head.weight"], one_stage["head.weight"])
        assert kept == (name == "decouple-lws")

    def test_crt_starts_a_new_classifier_with_a_bias_of_zero(self):
        method = methods.build("decouple-crt")
        torch.manual_seed(0)
        model = Model(backbones.build("identity", 4), method.head(4, 3))
        before = model.head.weight.detach().clone()
        model.head.bias.data.fill_(0.5)
        method.stages[1].prepare(model, torch.rand(6, 4), torch.arange(6) % 3, COUNTS)
        assert not (model.head.weight == before).any() and not model.head.bias.any()

    def test_lws_is_equation_10(self):
        head = ScaledHead(4, 3).double()
        head.scale.data = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
        _, features, _ = trained_head()
        n = reference.lws([1 / g for g in head.scale.tolist()])
        weight = head.weight.tolist()
        expected = [reference.normalised(x, weight, 1.0, 1, n) for x in features.tolist()]
        close(head(features).detach(), torch.tensor(expected, dtype=torch.float64))
        head.bias.data = torch.tensor([0.2, -0.4, 0.1], dtype=torch.float64)
        shifted = [
            [z + g * b for z, g, b in zip(row, [0.5, 1.0, 2.0], [0.2, -0.4, 0.1], strict=True)]
            for row in expected
        ]
        close(head(features).detach(), torch.tensor(shifted, dtype=torch.float64))

    def test_ldam_drw_weighs_classes_only_in_its_last_part(self):
        first, second = methods.build("ldam-drw").stages
        fall = TrainConfig().milestones[0]  # the first of the learning rate
        assert (first.share, second.share) == (fall, pytest.approx(1 - fall))
        options = [stage.loss.keywords.get("beta", 0.0) for stage in (first, second)]
        assert options == [0.0, 0.9999]


class TestMixup:
    def mixed(self, concentration: float) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.arange(4.0).view(4, 1, 1, 1)
        mix = methods.build("mixup", {"concentration": concentration}).stages[0].mix
        assert mix is not None
        return mix(inputs, torch.tensor([0, 1, 2, 0]), state())

    def test_images_and_targets_are_mixed_alike(self):
        inputs, target = self.mixed(1.0)
        part = target[1, 1].item()  # of image 1 in itself; the rest is image 0
        assert 0 < part < 1
        assert inputs.flatten().tolist() == pytest.approx(
            [3 * (1 - part), part, 2 * part + (1 - part), 3 * part + 2 * (1 - part)]
        )
        assert_close(target[0], torch.tensor([1.0, 0.0, 0.0]))  # both are of class 0
        assert_close(target.sum(1), torch.ones(4))

    @pytest.mark.parametrize("concentration", [0.2, 1.0, 4.0])
    def test_the_part_is_of_a_beta_distribution(self, concentration):
        mix = methods.build("mixup", {"concentration": concentration}).stages[0].mix
        assert mix is not None
        source, now = torch.ones(2, 1), state()
        source[1] = 0.0
        parts = torch.stack([mix(source, torch.tensor([0, 1]), now)[0][0, 0] for _ in range(4000)])
        assert parts.mean().item() == pytest.approx(0.5, abs=0.03)
        assert parts.var().item() == pytest.approx(1 / (4 * (2 * concentration + 1)), rel=0.1)


class TestBBN:
    def step(self, progress: float) -> tuple[Model, list[Batch], torch.Tensor]:
        torch.manual_seed(0)
        backbone = backbones.build("resnet32-dual", 3)
        model = Model(backbone, methods.build("bbn").head(backbone.dim, 3)).eval()
        model.head.bias.data = torch.tensor([0.5, -1.0, 0.25])
        images = torch.rand(2, 2, 3, 8, 8)
        labels = torch.tensor([[0, 1], [2, 2]])
        batches = [Batch(*pair) for pair in zip(images, labels, strict=True)]
        (stage,) = methods.build("bbn").stages
        return model, batches, stage.step(model, cross_entropy, batches, state(progress))

    @pytest.mark.parametrize("progress", [0.0, 0.5, 0.9])
    def test_the_step_is_the_papers_cumulative_learning(self, progress):
        model, (uniform, reverse), loss = self.step(progress)
        with torch.no_grad():
            first = model.backbone(uniform.inputs)[:, :64].tolist()
            second = model.backbone(reverse.inputs)[:, 64:].tolist()
        halves = model.head.weight[:, :64].tolist(), model.head.weight[:, 64:].tolist()
        labels = uniform.target.tolist(), reverse.target.tolist()
        bias = model.head.bias.tolist()
        expected = reference.bilateral(first, second, 1 - progress**2, *halves, bias, *labels)
        assert loss.item() == pytest.approx(expected, rel=1e-4)

    def test_at_the_start_only_the_uniform_branch_learns(self):
        model, _, loss = self.step(0.0)
        loss.backward()
        uniform, reverse = model.backbone.branches
        assert uniform.conv1.weight.grad.abs().max() > 0
        assert reverse.conv1.weight.grad.abs().max() == 0

    def test_at_the_test_both_branches_weigh_half(self):
        model, (uniform, _), _ = self.step(0.5)
        half = torch.tensor([0.5, 0.5])
        twice = model(uniform.inputs, uniform.inputs, scale=2 * half)
        assert_close(model(uniform.inputs).logits, twice.logits)

    def test_it_needs_images(self, tmp_path):
        config, data = tiny_config(backbone="identity"), tiny_data(images=False)
        with pytest.raises(UserError, match="bbn works only with the backbone resnet32-dual"):
            fit_all(config, ["baseline", "bbn"], [0], out=tmp_path / "x", data=data)
        assert not (tmp_path / "x").exists()  # raised before any training


class TestOLTR:
    def head(self) -> tuple[MemoryHead, torch.Tensor]:
        torch.manual_seed(0)
        head = MemoryHead(4, 3).double()
        _, features, labels = trained_head()
        head.memory.data.copy_(methods.base.compute_centroids(features, labels, 3))
        head.bias.data = torch.tensor([0.2, -0.4, 0.1], dtype=torch.float64)
        return head, features

    def test_logits_are_a_squashed_cosine_of_the_meta_embedding(self):
        head, features = self.head()
        features = features + 0.3  # a class of one image would be its own centroid
        close(head(features), F.linear(features, head.weight, head.bias))
        head.remembers = True
        parts = head.memory, head.weight, head.bias, head.selector.weight
        lists = [v.tolist() for v in parts]
        bias, weight = head.selector.bias.tolist(), head.classifier.weight.tolist()
        expected = []
        for x in features.tolist():
            meta = reference.meta_embedding(x, *lists, bias, 10.0)
            expected.append(reference.normalised(meta, weight, 16.0, 1, reference.capsule))
        close(head(features), torch.tensor(expected, dtype=torch.float64))

    def test_a_feature_on_its_centroid_is_finite(self):
        head, _ = self.head()
        head.remembers = True
        on_top = head.memory.detach().clone().requires_grad_()
        head(on_top).sum().backward()
        assert torch.isfinite(on_top.grad).all()

    def test_only_the_centroid_loss_trains_the_memory(self):
        head, features = self.head()
        head.remembers = True
        head(features + 0.3).sum().backward()
        assert head.memory.grad is None and head.bias.grad is not None
        frozen, trained = methods.build("decouple-oltr"), methods.build("oltr")
        model = Model(backbones.build("identity", 4), head)
        for method, trains in ((frozen, False), (trained, True)):
            found = {id(parameter) for parameter in method.stages[1].trains(model)}
            assert (id(head.memory) in found) == trains and id(head.bias) in found

    def test_whether_there_is_a_memory_is_saved_with_it(self):
        head, features = self.head()
        head.remembers = True
        other = MemoryHead(4, 3).double()
        other.load_state_dict(head.state_dict())
        close(other(features), head(features))

    def test_the_network_attends_from_the_second_stage_on(self, tmp_path):
        config, data = tiny_config(epochs=1, save_seconds=0), tiny_data()
        with pytest.raises(Kill):
            out = tmp_path / "killed"
            fit_all(config, ["oltr"], [0], out=out, data=data, progress=KillAfter(1))
        (run,) = fit_all(config, ["oltr"], [0], out=tmp_path / "run", data=data)
        first, both = Run(out).load_checkpoint()["replica"]["model"], run.load_model()
        name = "backbone.attention."
        assert not first[f"{name}_extra_state"] and not first[f"{name}project.weight"].any()
        assert both[f"{name}_extra_state"] and both[f"{name}project.weight"].any()
        assert not torch.equal(both[f"{name}mask.weight"], first[f"{name}mask.weight"])

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("decouple-oltr", {}),
            ("oltr", {"freeze": True}),
            ("oltr", {"backbone": "identity", "augment": "none"}),
        ],
    )
    def test_features_that_are_not_trained_have_no_attention(self, name, options, tmp_path):
        data, config = tiny_data(images="backbone" not in options), tiny_config(epochs=1, **options)
        (run,) = fit_all(config, [name], [0], out=tmp_path, data=data)
        assert not any("attention" in key for key in run.load_model())

    @pytest.mark.parametrize("name", ["decouple-oltr", "oltr"])
    def test_weight_norms_are_those_of_the_classifier_of_the_second_stage(self, name, tmp_path):
        (run,) = fit_all(tiny_config(epochs=1), [name], [0], out=tmp_path, data=tiny_data())
        norms = torch.tensor(run.result["weight_norm"])
        state = run.load_model()
        torch.testing.assert_close(norms, state["head.classifier.weight"].norm(dim=1))
        assert not torch.allclose(norms, state["head.weight"].norm(dim=1))

    def test_a_network_without_a_map_is_refused_before_any_training(self, tmp_path):
        config = tiny_config(backbone="test_vit", crop_size=160, augment="resized-crop")
        said = "oltr attends to the last feature map of a network, and --backbone test_vit gives"
        with pytest.raises(UserError, match=said):
            fit_all(config, ["baseline", "oltr"], [0], out=tmp_path / "x", data=tiny_data())
        assert not (tmp_path / "x").exists()

    def test_a_finished_run_of_a_version_without_attention_is_evaluated(
        self, tmp_path, monkeypatch
    ):
        data, name = tiny_data(), "longtail.methods.oltr.replace"
        with monkeypatch.context() as patch:
            patch.setattr(name, lambda method, **changes: method)  # as it was once
            (run,) = fit_all(tiny_config(), ["oltr"], [0], out=tmp_path, data=data)
        assert not any("attention" in key for key in run.load_model())
        assert lt.evaluate(run, data=data).to_json() == run.result


def test_weight_norms_of_lws_have_its_scales(tmp_path):
    (run,) = fit_all(tiny_config(epochs=1), ["decouple-lws"], [0], out=tmp_path, data=tiny_data())
    state = run.load_model()
    expected = state["head.scale"].abs() * state["head.weight"].norm(dim=1)
    assert_close(torch.tensor(run.result["weight_norm"]), expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(state["head.scale"], torch.ones(3))


class TestTable:
    def test_the_page_has_a_linked_row_and_a_section_for_every_method(self):
        page = listing.markdown()
        lines = page.splitlines()
        assert page.startswith("# Methods\n") and page.endswith("\n")
        for name in methods.registry():
            (place,) = (i for i, line in enumerate(lines) if line == f"## {name}")
            assert lines[place + 2] == methods.describe(name)
            (row,) = (line for line in lines if line.startswith(f"| [{name}](#{name}) |"))
            assert row.count("|") == len(listing.HEADER) + 1
            section = lines[place + 1 :]
            section = section[: next((i for i, s in enumerate(section) if s[:3] == "## "), None)]
            options = [line.split()[1].strip("`-") for line in section if line.startswith("- ")]
            assert options == [o.replace("_", "-") for o in methods.options_of(name)]
        assert "[Tang et al. 2020](https://arxiv.org/abs/2009.12991)" in page
        assert page.count("Departs from its authors: The modulated attention") == 1
        assert page.count(listing.ATTENTION) == 1

    def test_the_page_in_the_docs_is_up_to_date(self):
        page = Path(__file__).parents[2] / "docs/methods.md"
        again = "run: longtail methods --out docs/methods.md"
        assert page.read_text(encoding="utf-8") == listing.markdown(), again

    def test_every_meaning_is_that_of_an_option(self):
        options = {f"{n} {option}" for n in methods.registry() for option in methods.options_of(n)}
        known = options | {pair.split()[1] for pair in options}
        assert set(listing.MEANINGS) <= known

    def test_a_new_method_with_our_head_needs_no_entry(self, monkeypatch):
        monkeypatch.setitem(methods.registry(), "new", methods.registry()["deconfound"])
        meanings = {flag: meaning for flag, _, meaning in listing.describe_options("new")}
        assert meanings["--gamma"] == "added to the norm of each class weight"

    def test_rows_say_what_the_methods_are(self):
        rows = {row[0]: row[1:] for row in map(listing.row, listing.by_year())}
        assert set(rows) == set(methods.registry())
        assert rows["baseline"] == ["-", "1", "-", "-", "-", "-", "-"]
        assert rows["ldam-drw"][1:] == ["0.6 + 0.4", "yes", "training", "yes", "yes", "CDE"]
        assert rows["decouple-crt"][1:3] == ["1 + 0.1", "yes"]
        assert rows["decouple-ncm"][3] == rows["logit-adjustment"][3] == "inference"
        assert rows["deconfound-tde"][3:] == ["training and inference", "-", "yes", "TDE"]

    def test_every_method_but_the_baselines_names_its_paper(self):
        unnamed = [name for name in methods.registry() if methods.build(name).paper is None]
        assert unnamed == ["baseline", "bce"]

    def test_no_option_of_a_method_hides_one_of_the_training(self):
        config = Config()
        parts = (config, config.train, config.files, config.machine)
        taken = {field.name for part in parts for field in fields(part)}
        taken |= {"out", "seeds", "recipe", "resume", "overwrite"}
        for name in methods.registry():
            assert not taken & set(methods.options_of(name)), name


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "class-balanced",
            {"beta": 1.0},
            "class-balanced: --beta 1 must be at least 0 and below 1",
        ),
        ("deconfound-tde", {"alpha": -1.0}, "alpha -1 must be a number from 0 up"),
        ("ldam-drw", {"defer": 1.0}, "defer 1 must be above 0 and below 1"),
        ("mixup", {"concentration": 0.0}, "concentration 0 must be above 0"),
        ("ldam-drw", {"beta": 1.0}, "beta 1 must be at least 0 and below 1"),
        ("ldam-drw", {"beta": -1.0}, "beta -1 must be at least 0 and below 1"),
        ("ldam-drw", {"scale": 0.0}, "scale 0 must be above 0"),
        ("decouple-crt", {"share": -1.0}, "share -1 must be above 0"),
        ("decouple-lws", {"share": 0.0}, "share 0 must be above 0"),
        ("decouple-oltr", {"share": 0.0}, "share 0 must be above 0"),
        ("eql", {"ignore": 7.0}, "ignore 7 must be at least 0 and at most 1"),
        ("oltr", {"tau": -3.0}, "tau -3 must be above 0"),
        ("focal", {"gamma": -2.0}, "gamma -2 must be at least 0"),
        ("deconfound-tde", {"heads": 0}, "heads 0 must be at least 1"),
        ("logit-adjustment", {"tau": -1.0}, "tau -1 must be at least 0"),
        ("asymmetric", {"gamma_neg": -1.0}, "--gamma-neg -1 must be at least 0"),
        ("decouple-tau-norm", {"tau": "much"}, "--tau takes a number or auto, not 'much'"),
        ("focal", {"gamma": "auto"}, "--gamma takes a number, not 'auto'"),
    ],
)
def test_bad_options_raise(name, options, message):
    with pytest.raises(UserError, match=message):
        methods.build(name, options)
