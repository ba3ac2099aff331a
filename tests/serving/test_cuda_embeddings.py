"""Classifiers on embeddings and features of a run, where there is CUDA."""

import numpy as np
import pytest
import torch
from PIL import Image

import longtail as lt
from longtail.data.decoding import image_store
from longtail.data.decoding.workers import can_fork
from longtail.serving import user_inputs
from longtail.serving.predictor import BATCH, Predictor
from longtail.training.batches import stream_batches

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


def agree(one: lt.Prediction, other: lt.Prediction) -> bool:
    """Whether two predictions agree up to the precision of the device."""
    near = one.probability == pytest.approx(other.probability, abs=0.02)
    return near and (one.name == other.name or other.probability - other.top[1][1] < 0.04)


def test_predictions_made_ahead_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "batch_size", BATCH)
    run = lt.fit("digits-lt", "deconfound-tde", out=tmp_path / "run", epochs=2, device="cuda")
    images = lt.load("digits-lt").test.inputs.repeat(3, 1, 1, 1)[: 5 * BATCH + 7]
    pictures = [image[0].numpy() for image in images]
    pictures[BATCH + 1] = "missing.png"
    model = lt.load_model(run, device="cuda")
    assert model._gpu.index == torch.cuda.current_device()  # the same in every thread
    assert torch.equal(model.logits(images[:9].cuda()), model.logits(images[:9]))
    there, here = (list(lt.load_model(run, device=d).stream(pictures)) for d in ("cuda", "cpu"))
    assert there[BATCH + 1] == here[BATCH + 1] == "it does not exist"
    for one, other in zip(there, here, strict=True):
        if not isinstance(one, str):
            assert agree(one, other)


@pytest.mark.skipif(not can_fork(), reason="processes that decode files start by forking")
def test_files_that_processes_decode_keep_their_order(tmp_path, monkeypatch):
    run = lt.fit("digits-lt", "deconfound-tde", out=tmp_path / "run", epochs=2, device="cuda")
    files = [str(tmp_path / f"{number}.png") for number in range(40)]
    for file, image in zip(files, lt.load("digits-lt").test.inputs, strict=False):
        Image.fromarray(image[0].numpy()).save(file)
    files[21] = str(tmp_path / "missing.png")
    here = list(lt.load_model(run, device="cpu").stream(files))
    monkeypatch.setattr(image_store, "MIN_FOR_PROCESSES", 10)
    monkeypatch.setattr(Predictor, "batch_size", 16)
    model, streamed = lt.load_model(run, device="cuda"), []

    def watch(*args):
        streamed.append(args)
        return stream_batches(*args)

    monkeypatch.setattr(user_inputs, "stream_batches", watch)
    there = list(model.stream(files))
    assert len(streamed) == 1 and there[21] == here[21] == "it does not exist"
    for one, other in zip(there, here, strict=True):
        if not isinstance(one, str):
            assert agree(one, other)
