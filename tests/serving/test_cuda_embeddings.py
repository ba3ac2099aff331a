"""Classifiers on embeddings and features of a run, where there is CUDA."""

import numpy as np
import pytest
import torch

import longtail as lt
from longtail.serving.predictor import BATCH

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_classifier_moves_between_devices():
    random = np.random.RandomState(0)
    y = np.repeat(np.arange(3), (60, 20, 8))
    X = np.maximum(random.randn(3, 8)[y] + 0.5 * random.randn(len(y), 8) + 0.5, 0)
    fitted = lt.DeconfoundTDEClassifier(random_state=0, device="cuda").fit(X, y)
    there = fitted.predict_proba(X)
    np.testing.assert_allclose(fitted.set_params(device="cpu").predict_proba(X), there, atol=1e-8)


def test_features_made_there_serve_here(tmp_path):
    run = lt.fit("digits-lt", "baseline", out=tmp_path / "run", epochs=2, device="cuda")
    data = lt.load(str(lt.embed(run, tmp_path / "f.npz")))
    head = run.load_model()["head.weight"]
    torch.save({"head.weight": head}, tmp_path / "head.pt")
    found = lt.retrofit(tmp_path / "head.pt", data)
    assert found.before.overall == pytest.approx(run.result["overall"], abs=2)


def test_predictions_made_ahead_keep_their_order(tmp_path):
    run = lt.fit("digits-lt", "deconfound-tde", out=tmp_path / "run", epochs=2, device="cuda")
    images = lt.load("digits-lt").test.inputs.repeat(3, 1, 1, 1)[: 5 * BATCH + 7]
    pictures = [image[0].numpy() for image in images]
    pictures[BATCH + 1] = "missing.png"
    model = lt.load_model(run, device="cuda")
    assert torch.equal(model.logits(images[:9].cuda()), model.logits(images[:9]))
    there, here = (list(lt.load_model(run, device=d).stream(pictures)) for d in ("cuda", "cpu"))
    assert there[BATCH + 1] == here[BATCH + 1] == "it does not exist"
    for one, other in zip(there, here, strict=True):
        if not isinstance(one, str):
            assert one.probability == pytest.approx(other.probability, abs=0.02)
