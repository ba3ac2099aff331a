"""Runs that start from weights: what they need, what they keep, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision import models

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail import methods
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.nn import weights
from longtail.runs.folder import Run
from longtail.runs.plan import Job, resolve
from longtail.serving.embeddings import read_origin
from longtail.training.model import build_model, use_inputs_of_weights

FEW_STEPS = {"epochs": 2, "batch_size": 7, "lr": 1e-3, "warmup": 0, "device": "cpu"}


def fit(out: str, **options) -> Run:
    """Fine-tune on the photographs."""
    chosen = {"backbone": "test_efficientnet", "weights": "test_efficientnet.pth", "image_size": 48}
    return lt.fit("photos", "deconfound-tde", out=out, **{**FEW_STEPS, **chosen, **options})


def test_a_run_needs_its_weights_only_at_the_start(folder):
    run = fit("run")
    assert run.result["files"]["weights"] == "test_efficientnet.pth"
    assert json.loads((folder / "run/env.json").read_text())["weights"]
    (folder / "test_efficientnet.pth").unlink()
    pictures = sorted(map(str, (folder / "photos/test").rglob("*.png")))
    rows = [np.asarray(Image.open(p).resize((48, 48), Image.Resampling.BICUBIC)) for p in pictures]
    inputs = np.stack(rows).transpose(0, 3, 1, 2)
    model = lt.load_model(run, device="cpu")
    mean = timm.get_pretrained_cfg("test_efficientnet").mean
    assert model.about.blueprint.mean == mean and "(bicubic)" in model.about.preprocessing
    shipped = lt.load_model(lt.export(run, "safetensors"), device="cpu")
    logits = model.logits(inputs)
    assert torch.allclose(shipped.logits(inputs), logits, atol=1e-5)
    # a file is decoded and resized as the training images were
    probabilities = logits.softmax(1).amax(1).tolist()
    read = [prediction.probability for prediction in model.predict(pictures)]
    assert read == pytest.approx(probabilities, abs=1e-6)
    assert lt.evaluate(run).overall == pytest.approx(run.result["overall"], abs=1e-3)
    again = fit("run", resume=True)
    assert again.result == run.result
    (folder / "run/result.json").unlink()
    assert fit("run", resume=True).result["training_id"] == run.result["training_id"]
    with pytest.raises(UserError, match=r"--weights test_efficientnet\.pth does not exist"):
        fit("run", overwrite=True)


def test_the_first_step_starts_from_the_weights(folder):
    run, file = fit("run", lr=1e-12, weight_decay=0.0), torch.load("test_efficientnet.pth")
    trained = run.load_model()
    stem = "backbone.model.conv_stem.weight"
    assert torch.allclose(trained[stem], file["conv_stem.weight"], atol=1e-6)
    fresh = fit("fresh", lr=1e-12, weight_decay=0.0, weights=None).load_model()
    assert torch.allclose(fresh["head.weight"], trained["head.weight"], atol=1e-6)
    assert not torch.allclose(fresh[stem], trained[stem], atol=1e-3)


def test_the_training_depends_on_the_content_of_the_weights_not_on_their_place(folder):
    def recipe_id(weights: str | None) -> str:
        config = tiny_config(backbone="test_efficientnet", weights=weights)
        return Job(*resolve(config), Run("nowhere")).recipe_id(tiny_data())

    (folder / "elsewhere").mkdir()
    content = (folder / "test_efficientnet.pth").read_bytes()
    (folder / "elsewhere" / "copy.pth").write_bytes(content)
    torch.manual_seed(1)
    torch.save(timm.create_model("test_efficientnet").state_dict(), "other.pth")
    same = {recipe_id("test_efficientnet.pth"), recipe_id("elsewhere/copy.pth")}
    assert len(same) == 1
    others = {recipe_id("other.pth"), recipe_id("pretrained"), recipe_id(None)}
    assert len(same | others) == 4


def test_other_weights_under_the_same_name_are_not_resumed(folder):
    fit("run")
    torch.manual_seed(1)
    torch.save(timm.create_model("test_efficientnet").state_dict(), "test_efficientnet.pth")
    with pytest.raises(UserError, match="run started from other weights than"):
        fit("run", resume=True)


def test_forgotten_weights_are_asked_for(folder):
    run = fit("run")
    job = Job(*resolve(replace(run.config, weights=None)), run)
    job.check_weights(overwrite=True)
    with pytest.raises(UserError, match="run started from weights: repeat its --weights"):
        job.check_weights(overwrite=False)


@pytest.mark.parametrize("name", ["test_vit", "torchvision/shufflenet_v2_x0_5"])
def test_transformers_and_networks_of_torchvision_are_rebuilt(name, folder):
    library, _, short = name.rpartition("/")
    whole = models.get_model(short) if library else timm.create_model(short)
    torch.save(whole.state_dict(), "x.pth")
    run = fit("run", backbone=name, weights="x.pth", epochs=1)
    (folder / "x.pth").unlink()
    images = lt.load("photos", image_size=48, interpolation=run.config.files.interpolation)
    opened = lt.evaluate(run)
    model = lt.load_model(run, device="cpu")
    right = model.logits(images.test.inputs).argmax(1) == images.test.labels
    assert opened.overall == pytest.approx(100 * right.double().mean().item())


def test_loaded_data_takes_mean_and_deviation_of_the_weights(folder):
    config = tiny_config(backbone="test_efficientnet", weights="test_efficientnet.pth")
    data = tiny_data()
    adapted = use_inputs_of_weights(config, data)
    inputs = timm.get_pretrained_cfg("test_efficientnet")
    assert (adapted.mean, adapted.std) == (inputs.mean, inputs.std) and adapted.train is data.train
    assert use_inputs_of_weights(tiny_config(), data) is data
    loaded = lt.load("photos", image_size=48)
    chosen = {"backbone": "test_efficientnet", "weights": "test_efficientnet.pth", **FEW_STEPS}
    run = lt.fit(loaded, "cosine", out="r", **chosen)
    assert run.config.files.interpolation == "bilinear"  # as they were loaded
    assert lt.load_model(run).about.blueprint.mean == inputs.mean
    assert lt.evaluate(run, data=loaded).overall == pytest.approx(run.result["overall"], abs=1e-3)


def test_only_a_fresh_start_reads_the_weights(folder):
    config = tiny_config(backbone="test_efficientnet", weights="gone.pth")
    build_model(config, methods.build("cosine"), tiny_data())
    with pytest.raises(UserError, match=r"--weights gone\.pth does not exist"):
        build_model(config, methods.build("cosine"), tiny_data(), fresh=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "gone.pth"}, r"--weights gone\.pth does not exist"),
        ({"backbone": "resnet10t"}, "fit 0 % .* suggests --backbone test_efficientnet"),
        (
            {"image_size": 8, "crop_size": 8},
            "images of 8x8 pixels are smaller than the stride of test_efficientnet, 32",
        ),
        ({"backbone": "conv4", "weights": "pretrained"}, "conv4 has no published weights"),
    ],
)
def test_bad_weights_are_refused_before_a_folder_is_written(options, message, folder):
    with pytest.raises(UserError, match=message):
        fit("run", **options)
    assert not (folder / "run").exists()


def test_embeddings_take_no_weights(folder):
    with pytest.raises(UserError, match="holds embeddings, which need none"):
        lt.fit(
            tiny_data(images=False), out="r", backbone="identity", weights="test_efficientnet.pth"
        )


def test_small_images_without_weights_are_only_warned_about(folder, caplog):
    fit("run", weights=None, image_size=16, epochs=1)
    assert "smaller than the stride of test_efficientnet, 32 pixels" in caplog.text


# ------------------------------------------------------------------------------ the same words


def test_pretrained_and_a_file_are_refused():
    with pytest.raises(UserError, match="both given"):
        cli.parse(["train", "photos", "--pretrained", "--weights=a.pth"])


def test_pretrained_is_short_for_weights_pretrained():
    train = cli.parse(["train", "photos", "--pretrained", "--backbone", "resnet10t"]).__self__
    assert train.config.weights == "pretrained" and train.config.backbone == "resnet10t"
    embed = cli.parse(["embed", "--data", "photos", "--pretrained"]).__self__
    assert embed.weights == "pretrained" and embed.folder is None
    detect = cli.parse(["detect", "train", "shapes-lvis", "--pretrained"]).__self__
    assert detect.config.start == "pretrained"
    file = cli.parse(["detect", "train", "shapes-lvis", "--weights", "x.pth"]).__self__
    assert file.config.start == "x.pth"


def test_published_weights_are_trained_on(folder, monkeypatch):
    whole = timm.create_model("test_efficientnet")
    monkeypatch.setattr(weights, "fetch_state", lambda name: whole.state_dict())
    run = fit("run", weights="pretrained", epochs=1)
    assert run.config.weights == "pretrained" and run.result["files"]["weights"] == "pretrained"


def test_weights_embed_images_without_a_run(folder, capsys):
    cli.main(
        ["embed", "--data", "photos", "--weights", "test_efficientnet.pth", "--image-size", "48"]
    )
    with np.load("features.npz") as file:
        features = torch.from_numpy(file["x_test"]).float()
    network = timm.create_model("test_efficientnet", num_classes=0).eval()
    state = torch.load("test_efficientnet.pth")
    network.load_state_dict({n: v for n, v in state.items() if n in network.state_dict()})
    config = timm.get_pretrained_cfg("test_efficientnet")
    images = lt.load("photos", image_size=48, interpolation="bicubic").test.inputs / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (config.mean, config.std))
    with torch.no_grad():
        assert torch.allclose(features, network((images - mean) / std), atol=2e-2)
    origin = read_origin(Path("features.npz"))
    assert origin["network"] == "test_efficientnet" and origin["weights"] == "test_efficientnet.pth"
    for words, message in (
        (["--data", "photos"], "pass the folder of a run, or --weights FILE"),
        (["--weights", "test_efficientnet.pth"], "which images? Pass --data"),
        (["--data", "photos", "--pretrained"], "pass --backbone"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["embed", *words])
        assert message in capsys.readouterr().err
