"""ONNX files give calibrated probabilities, and the answers of the model they come from."""

import pytest
import torch

import longtail as lt
from longtail.nn.heads import DeconfoundHead, LinearHead
from longtail.serving.calibrated import CalibratedModel
from longtail.serving.write import export, save_pretrained
from simulated import simulate
from trusted import HELD_OUT, predictor, trusted_model

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    served = trusted_model(DeconfoundHead(16, 8), means=False)
    save_pretrained(served, folder / "model")
    return served, export(folder / "model", "onnx", folder / "m.onnx")


def test_a_second_output_has_the_calibrated_probabilities(exported):
    served, path = exported
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_outputs()] == ["logits", "probabilities"]
    rows = HELD_OUT.features[:7].float()
    logits, p = map(torch.from_numpy, session.run(None, {"embeddings": rows.numpy()}))
    trust = predictor(served).trust
    torch.testing.assert_close(p, trust.calibration.apply(logits).exp())


def test_a_file_answers_as_its_model_does(exported):
    served, path = exported
    rows = simulate([4] * 8, seed=8).features.float()  # a held-out image may lie on a threshold
    options = {"sets": 0.9, "abstain": 2, "false_alarms": 0.1}
    ours, theirs = (
        model.predict(rows, **options) for model in (predictor(served), lt.load_model(path))
    )
    for one, two in zip(ours, theirs, strict=True):
        assert (one.name, one.answer_set, one.answered, one.unknown) == (
            *(two.name, two.answer_set, two.answered, two.unknown),
        )
        assert one.probability == pytest.approx(two.probability, abs=1e-4)
    stored = lt.load_model(path).about.trust
    assert stored["sets"].keys() >= {"0.9"} and stored["calibration"]["prior"]
    assert stored["novelty"]["thresholds"]["energy"]


def test_a_model_without_calibration_gives_the_softmax():
    graph = CalibratedModel(trusted_model(LinearHead(16, 8), trust=False))
    logits, p = graph(HELD_OUT.features[:3].float())
    torch.testing.assert_close(p, logits.softmax(1))
