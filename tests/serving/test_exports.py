"""What leaves says what the run says: every method, every format, folded or with a dial."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

import longtail as lt
from helpers import files_in, tiny_config, tiny_data
from longtail import methods
from longtail.core import seals
from longtail.core.errors import UserError
from longtail.evaluation import metrics
from longtail.nn.heads import NormalisedHead
from longtail.runs import reopen as finished
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.serving import read as loading
from longtail.serving import write as exports
from longtail.serving.model import ServedModel
from longtail.serving.read import read_run
from longtail.serving.write import WRITERS

NAMES = methods.list_names()
CLASSES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    """A run of every method on tiny images."""
    out = tmp_path_factory.mktemp("runs")
    config = tiny_config(epochs=1, batch_size=20, tau=0.5)
    return dict(zip(NAMES, fit_all(config, NAMES, [0], out=out, data=tiny_data()), strict=True))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> dict[str, Run]:
    """Runs on embeddings, whose graphs are small."""
    out, names = tmp_path_factory.mktemp("vectors"), ["deconfound-tde", "oltr"]
    config, data = tiny_config(epochs=1, backbone="identity"), tiny_data(images=False)
    return dict(zip(names, fit_all(config, names, [0], out=out, data=data), strict=True))


def evaluated(run: Run, alpha: float | None = None) -> tuple[Tensor, Tensor]:
    """The test inputs of a run, and the logits that its own result was made from."""
    data = tiny_data(images=run.config.backbone != "identity")
    evaluation = finished.reopen(run, data).evaluation
    alpha = run.result["alpha"] if alpha is None else alpha
    return data.test.inputs, evaluation.scores.at(alpha or 0.0)


def same(got: Tensor, expected: Tensor) -> None:
    assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_one_report_shows_every_method(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "DRAWS", 20)
    page = lt.report(list(runs.values()), tmp_path / "report.html").read_text()
    assert all(name in page for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_leaves_as_it_was_evaluated(name, runs, tmp_path):
    run = runs[name]
    inputs, expected = evaluated(run)
    path = lt.export(run, "safetensors", tmp_path / "m.safetensors")
    model = lt.load_model(path)
    same(model.logits(inputs), expected)
    same(lt.load_model(run).logits(inputs), expected)
    assert list(model.classes) == CLASSES and model.alpha == run.result["alpha"]
    assert model.about.metrics["overall"] == run.result["overall"]
    assert model.about.counts == (24, 12, 4)
    with safe_open(path, "pt") as file:
        assert "head.mean_feature" not in file.keys()  # noqa: SIM118  folded: no direction is left


@pytest.mark.parametrize("name", ["cosine", "capsule-tde", "deconfound-tde"])
def test_a_normalised_head_is_folded_at_any_alpha(name, runs, tmp_path):
    inputs, expected = evaluated(runs[name], alpha=0.5)
    path = lt.export(runs[name], out=tmp_path / "m.safetensors", alpha=0.5)
    model = lt.load_model(path)
    same(model.logits(inputs), expected)
    assert model.about.blueprint.head["kind"] == "FoldedHead"
    assert model.about.metrics["alpha"] == 0.5
    assert model.about.metrics["few"] == runs[name].result["sweep"]["0.5"]["few"]
    with pytest.raises(UserError, match="alpha 0.5 is folded into this model"):
        model.alpha = 1.0


def test_the_dial_turns_where_it_was_left_free(runs, tmp_path):
    run = runs["deconfound-tde"]
    path = lt.export(run, out=tmp_path / "m.safetensors", alpha_input=True)
    for model in (lt.load_model(path), lt.load_model(run)):
        for alpha in (0.0, 0.7, 3.0, 1.5):
            model.alpha = alpha
            inputs, expected = evaluated(run, alpha)
            same(model.logits(inputs), expected)
        for wrong in (-0.5, float("nan"), float("inf")):
            with pytest.raises(UserError, match="must be a number from 0 up"):
                model.alpha = wrong


class TestOnnx:
    def test_it_takes_plain_pixels_in_batches_of_any_size(self, runs, tmp_path):
        run = runs["deconfound-tde"]
        path = lt.export(run, "onnx", tmp_path / "m.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs, expected = evaluated(run)
        for size in (1, 3, 15):
            (logits,) = session.run(["logits"], {"images": inputs[:size].numpy()})
            same(torch.from_numpy(logits), expected[:size])
        same(lt.load_model(path).logits(inputs), expected)
        about = json.loads(session.get_modelmeta().custom_metadata_map["longtail"])
        assert about["classes"] == CLASSES and about["counts"] == [24, 12, 4]
        assert about["alpha"] == 1.0 and about["metrics"]["overall"] == run.result["overall"]
        assert about["blueprint"]["mean"] == [0.5] * 3 and "8x8" in about["preprocessing"]
        assert about["version"] == run.result["versions"]["longtail"]
        assert str(Path(lt.__file__).parent).encode() not in path.read_bytes()

    @pytest.mark.parametrize("name", ["deconfound-tde", "oltr"])
    def test_embeddings_with_alpha_as_an_input_where_there_is_one(self, name, vectors, tmp_path):
        run, dial = vectors[name], name == "deconfound-tde"
        path = lt.export(run, "onnx", tmp_path / "m.onnx", alpha_input=dial)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [node.name for node in session.get_inputs()] == ["embeddings", "alpha"][: 1 + dial]
        model = lt.load_model(path)
        for alpha in (0.0, 1.5, 2.0) if dial else (None,):
            if dial:
                model.alpha = alpha
            inputs, expected = evaluated(run, alpha)
            same(model.logits(inputs), expected)
        other = replace(tiny_data(images=False), test=None)
        one, two = (lt.evaluate(each, other).to_json() for each in (run, path))
        found = [each.pop("reliability")["softmax"]["nll"] for each in (one, two)]
        assert found[0] == pytest.approx(found[1], rel=1e-4)
        assert two == one | {"model": "m.onnx"} and one["evaluated_on"] == "all"
        for purpose, use in {
            "saving a model": lambda: model.save_pretrained(tmp_path / "saved"),
            "another background": lambda: model.with_background("a"),
            "adding classes": lambda: lt.extend(path, {"new": inputs[:2]}),
        }.items():
            with pytest.raises(UserError, match=f"{purpose} needs the weights of the model"):
                use()

    def test_what_does_not_fit_one_file_is_refused(self, vectors, tmp_path, monkeypatch):
        monkeypatch.setattr(exports, "LARGEST_ONNX", 10)
        with pytest.raises(UserError, match="one ONNX file holds 2"):
            lt.export(vectors["oltr"], "onnx", tmp_path / "m.onnx")

    def test_what_is_missing_is_said_before_the_work(self, vectors, tmp_path, monkeypatch):
        monkeypatch.setattr(loading, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install longtail\[onnx\]"):
            lt.export(vectors["oltr"], "onnx", tmp_path / "m.onnx")


class TestTorchExport:
    @pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch about itself
    @pytest.mark.parametrize("name", ["oltr", "deconfound-tde"])
    def test_torch_runs_the_graph(self, name, runs, tmp_path):
        run, dial = runs[name], name == "deconfound-tde"
        path = lt.export(run, "torch-export", tmp_path / "m.pt2", alpha_input=dial)
        extra = {"longtail.json": ""}
        program = torch.export.load(path, extra_files=extra).module()
        assert json.loads(extra["longtail.json"])["classes"] == CLASSES
        inputs, expected = evaluated(run, 2.0)
        same(program(inputs, *[torch.tensor(2.0)] * dial), expected)
        same(program(inputs[:1], *[torch.tensor(2.0)] * dial), expected[:1])


def test_a_graph_that_says_something_else_is_not_written(vectors, tmp_path, monkeypatch):
    traced = torch.export.export

    def of_another_model(model: ServedModel, *sample, **options):
        return traced(read_run(vectors["deconfound-tde"]).fold(0.1), *sample, **options)

    monkeypatch.setattr(torch.export, "export", of_another_model)
    with pytest.raises(UserError, match=r"graph and the model differ by .* nothing was written"):
        lt.export(vectors["deconfound-tde"], "torch-export", tmp_path / "m.pt2", alpha=2.0)
    assert not files_in(tmp_path)


def test_a_graph_for_one_batch_size_only_is_refused(vectors):
    model = read_run(vectors["oltr"])
    with pytest.raises(UserError, match=r"gives \(1, 3\) for a batch of 2, the model \(2, 3\)"):
        exports._check(model, model, lambda inputs: model(inputs[:1]), "ONNX")


@pytest.mark.parametrize("to", ["safetensors", "torch-export"])
def test_a_file_is_compared_with_the_trained_model(to, vectors, tmp_path, monkeypatch):
    """A fault in folding is one of the file too, and what was written is read back."""
    folded = NormalisedHead.folded
    monkeypatch.setattr(NormalisedHead, "folded", lambda self, alpha: folded(self, alpha + 0.1))
    with pytest.raises(UserError, match=r"graph and the model differ by .* nothing was written"):
        lt.export(vectors["deconfound-tde"], to, tmp_path / f"m{WRITERS[to][0]}", alpha=2.0)
    assert not files_in(tmp_path)


def test_a_name_that_says_another_format_is_refused(vectors, tmp_path):
    with pytest.raises(UserError, match="m.onnx must end in .safetensors to hold safetensors"):
        lt.export(vectors["deconfound-tde"], "safetensors", tmp_path / "m.onnx")
    with pytest.raises(UserError, match="m.pth must end in one of .safetensors, .onnx, .pt2"):
        lt.export(vectors["deconfound-tde"], out=tmp_path / "m.pth")
    assert not files_in(tmp_path)


def test_the_description_decides_on_alpha_and_older_states_have_none(vectors):
    about = read_run(vectors["deconfound-tde"]).about
    state = read_run(vectors["deconfound-tde"]).state_dict()
    inputs, expected = evaluated(vectors["deconfound-tde"], 0.5)
    at_half = replace(about, alpha=0.5)
    assert float(state["head.alpha"]) == about.alpha == 1.0
    older = {name: value for name, value in state.items() if name != "head.alpha"}
    for weights in (state, older):
        model = ServedModel.load(at_half, weights, "the file")
        assert float(model.head.alpha) == 0.5
        same(model(inputs), expected)


def test_the_suffix_sets_the_format(vectors, tmp_path):
    path = lt.export(vectors["deconfound-tde"], out=tmp_path / "m.pt2")
    assert torch.export.load(path).graph


def test_without_alpha_a_model_is_at_its_own(vectors):
    model = read_run(vectors["deconfound-tde"])
    inputs, expected = evaluated(vectors["deconfound-tde"])
    assert model.about.alpha == 1.0 == float(model.head.alpha)
    same(model(inputs), expected)


class TestPretrained:
    def test_a_folder_goes_round(self, runs, tmp_path):
        run = runs["deconfound-tde"]
        model = lt.load_model(run)
        model.alpha = 0.75
        folder = model.save_pretrained(tmp_path / "saved")
        assert files_in(folder) == {"config.json", "model.safetensors", "README.md"}
        assert json.loads((folder / "config.json").read_text())["classes"] == CLASSES
        inputs, expected = evaluated(run, 0.75)
        for again in (lt.Predictor.from_pretrained(folder), lt.load_model(folder)):
            assert again.alpha == 0.75 and not again.about.dial
            same(again.logits(inputs), expected)
        same(lt.load_model(folder / "model.safetensors").logits(inputs), expected)

    def test_the_dial_may_stay(self, runs, tmp_path):
        lt.load_model(runs["cosine"]).save_pretrained(tmp_path / "saved", alpha_input=True)
        model = lt.Predictor.from_pretrained(tmp_path / "saved")
        model.alpha = 1.5
        inputs, expected = evaluated(runs["cosine"], 1.5)
        same(model.logits(inputs), expected)

    def test_the_dial_stays_where_it_stands(self, vectors, tmp_path):
        model = lt.load_model(vectors["deconfound-tde"])
        model.alpha = 0.75
        folder = model.save_pretrained(tmp_path / "saved", alpha_input=True)
        again = lt.Predictor.from_pretrained(folder)
        assert again.alpha == 0.75 and again.about.dial
        inputs, expected = evaluated(vectors["deconfound-tde"], 0.75)
        same(again.logits(inputs), expected)
        again.alpha = 1.0
        same(again.logits(inputs), evaluated(vectors["deconfound-tde"])[1])

    def test_nothing_is_fetched(self):
        with pytest.raises(UserError, match="not downloaded"):
            lt.Predictor.from_pretrained("someone/some-model")

    def test_a_run_is_not_written_over(self, runs):
        with pytest.raises(UserError, match="is the folder of a run"):
            lt.load_model(runs["cosine"]).save_pretrained(runs["cosine"].folder)


class TestCard:
    def test_it_says_what_a_user_must_know(self, runs, tmp_path):
        run = runs["deconfound-tde"]
        lt.export(run, out=tmp_path / "m.safetensors", alpha=0.6)
        text = (tmp_path / "m.safetensors.md").read_text()
        assert "# deconfound-tde on tiny" in text and "Alpha 0.6 is folded" in text
        assert f"{run.result['overall']:.1f}" in text and "at alpha 1" in text
        assert "It was not evaluated at the alpha of this file, 0.6" in text
        assert "40 images of 3 classes, 24 of the most frequent and 4 of the rarest" in text
        assert "arxiv.org/abs/2009.12991" in text and "Classes: `a`, `b`, `c`." in text

    def test_its_code_runs(self, vectors, tmp_path, monkeypatch):
        path = lt.export(vectors["oltr"], out=tmp_path / "m.safetensors")
        text = exports.card_path(path).read_text()
        monkeypatch.chdir(tmp_path)
        code = text.split("```python\n")[1].split("```")[0]
        exec(code, {"embeddings": np.zeros((2, 6), np.float32)})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"to": "onxx"}, "unknown format 'onxx'. Did you mean 'onnx'"),
        ({"alpha": 1.0, "alpha_input": True}, "pass one of them"),
        ({"alpha": -1.0}, "alpha -1 must be a number from 0 up"),
        ({"alpha": float("nan")}, "alpha nan must be"),
    ],
)
def test_what_cannot_be_exported_is_refused(words, said, runs, tmp_path):
    with pytest.raises(UserError, match=said):
        lt.export(runs["deconfound-tde"], out=tmp_path / "m.onnx", **words)
    assert not files_in(tmp_path)


@pytest.mark.parametrize("words", [{"alpha": 1.0}, {"alpha_input": True}])
def test_a_method_without_alpha_refuses_one(words, runs, tmp_path):
    with pytest.raises(UserError, match="baseline has no alpha"):
        lt.export(runs["baseline"], out=tmp_path / "m.onnx", **words)


def test_a_file_is_not_exported_again(runs, tmp_path):
    path = lt.export(runs["baseline"], out=tmp_path / "m.safetensors")
    with pytest.raises(UserError, match="m.safetensors is a file: pass a run, or a folder"):
        lt.export(path, out=tmp_path / "again.onnx")


def test_a_finished_run_that_lost_its_model_names_the_remedy(runs, tmp_path):
    folder = shutil.copytree(runs["baseline"].folder, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="model.safetensors is missing. Copy it again .* evaluates"):
        lt.export(folder, out=tmp_path / "m.onnx")


def test_a_runs_own_files_are_left_alone(runs, tmp_path):
    with pytest.raises(UserError, match="file of the run itself"):
        lt.export(runs["baseline"], out=runs["baseline"].folder / "model.safetensors")
    with pytest.raises(UserError, match="pass the folder of the run"):
        lt.load_model(runs["baseline"].folder / "model.safetensors")


@pytest.fixture(scope="module")
def files_of_oltr() -> dict[str, tuple]:
    """What the writers of the formats have made of the run of OLTR."""
    return {}


@pytest.fixture
def traced_once(files_of_oltr, monkeypatch) -> None:
    """Make each file of OLTR once: these tests ask whether it is written, not what it holds."""
    for to, (suffix, write) in WRITERS.items():

        def write_once(model: ServedModel, to=to, write=write) -> tuple:
            if to not in files_of_oltr:
                files_of_oltr[to] = write(model)
            return files_of_oltr[to]

        monkeypatch.setitem(WRITERS, to, (suffix, write_once))


@pytest.mark.parametrize("to", WRITERS)
def test_only_exports_are_replaced(to, vectors, tmp_path, monkeypatch, traced_once):
    run, path = vectors["oltr"], tmp_path / f"m{WRITERS[to][0]}"
    path.touch()
    for _ in range(2):
        lt.export(run, out=path)
    card, weights = exports.card_path(path), run.folder / "model.safetensors"
    monkeypatch.setitem(WRITERS, to, (path.suffix, lambda _: pytest.fail("began")))
    card.write_text("my notes")
    with pytest.raises(UserError, match=r"\.md was not written .*begins with 'my notes'.*delete"):
        lt.export(run, out=path)
    path.write_bytes(weights.read_bytes())
    with pytest.raises(UserError, match=r"was not written by longtail export \([\d,]+ bytes\)"):
        lt.export(run, out=path)
    assert path.read_bytes() == weights.read_bytes() and card.read_text() == "my notes"


@pytest.mark.parametrize("to", WRITERS)
def test_exports_without_a_seal_are_replaced(to, vectors, tmp_path, traced_once):
    path = lt.export(vectors["oltr"], out=tmp_path / f"m{WRITERS[to][0]}")
    sealed = path.read_bytes()
    assert sealed.count(seals.MARK) == 1
    path.write_bytes(sealed.replace(seals.MARK, b"-" * len(seals.MARK)))  # as of earlier versions
    assert lt.export(vectors["oltr"], out=path).read_bytes().count(seals.MARK) == 1


def test_runs_that_lack_something_say_so(runs, tmp_path):
    import shutil

    folder = shutil.copytree(runs["baseline"].folder, tmp_path / "run")
    (folder / "model.json").write_text("{}")
    with pytest.raises(UserError, match=r"model\.json is damaged: it has 2 bytes"):
        lt.load_model(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="does not say which model"):
        lt.load_model(folder)
    (folder / "model.json").unlink()
    with pytest.raises(UserError, match="--resume evaluates it again"):
        lt.load_model(folder)
    (folder / "result.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        lt.export(folder)


def test_the_metadata_of_safetensors_has_a_fixed_order(runs, tmp_path):
    for number in range(5):  # the library orders it by chance
        path = lt.export(runs["baseline"], out=tmp_path / f"{number}.safetensors")
        assert path.read_bytes() == (tmp_path / "0.safetensors").read_bytes()
    with safe_open(path, framework="pt") as file:
        assert sorted(file.metadata()) == ["format", "longtail", "sha256"]
