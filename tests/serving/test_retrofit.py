"""A trained classifier in its TDE version: direction, alpha, the drop-in checkpoint, honesty."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import longtail as lt
from helpers import PHOTOS, files_in, join_parts, photos, tiny_data
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.data.base import Data, Split
from longtail.evaluation.label_shift import LEAST_IMAGES
from longtail.nn import split as networks
from longtail.serving.retrofit import IMAGENET_MEAN, IMAGENET_STD
from longtail.serving.verification import verify_all

COUNTS = (200, 60, 12, 4)


def features(counts, seed: int, pull: float = 1.5, noise: float = 1.2) -> Split:
    """Classes around patterns, all shifted by a common mean."""
    random = np.random.RandomState(seed)
    patterns = np.random.RandomState(7).randn(len(counts), 12)
    labels = np.repeat(np.arange(len(counts)), counts)
    x = patterns[labels] + noise * random.randn(len(labels), 12) + pull
    return Split(torch.tensor(x, dtype=torch.float32), torch.from_numpy(labels))


def data_of(train: Split, val: Split | None, test: Split | None) -> Data:
    return join_parts(train, val, test, 4)


def linear(train: Split, path) -> nn.Linear:
    """A layer trained as always, and saved."""
    torch.manual_seed(0)
    layer = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(layer(train.inputs), train.labels).backward()
        optimizer.step()
    torch.save(
        {"state_dict": {f"_orig_mod.module.head.{k}": v for k, v in layer.state_dict().items()}},
        path,
    )
    return layer


@pytest.fixture
def made(tmp_path):
    train, val, test = features(COUNTS, 0), features((30,) * 4, 1), features((50,) * 4, 2)
    layer = linear(train, tmp_path / "head.pt")
    return data_of(train, val, test), layer, tmp_path


def test_alpha_is_chosen_on_validation_data_and_helps(made):
    data, layer, folder = made
    found = lt.retrofit(folder / "head.pt", data, out=folder / "tde")
    assert (found.chosen_on, found.evaluated_on) == ("val", "test")
    assert found.rule == "held-out likelihood"
    assert (
        float(found.head.alpha) == lt.choose_alpha(found.head, data.val.inputs, data.val.labels) > 0
    )
    assert found.gain > 0 and found.verdict.startswith("It helps")
    worse = replace(found, before=found.after, after=found.before)
    assert worse.verdict.startswith("It does not help; keep the original")
    before = (layer(data.test.inputs).argmax(1) == data.test.labels).double().mean()
    assert found.before.overall == pytest.approx(100 * before.item())

    mean = data.train.inputs.mean(0)
    d = mean / mean.norm()
    for x in data.test.inputs[:20]:  # Eq. 8 with K = 1 and gamma = 0, a class at a time
        scores = []
        for w in layer.weight.detach():
            pull = found.head.alpha * (x @ d) / x.norm() * (w @ d) / w.norm()
            scores.append(16 * ((w @ x) / (w.norm() * x.norm()) - pull))
        torch.testing.assert_close(found.head(x).detach(), torch.stack(scores), atol=1e-4, rtol=0)

    stored = json.loads((folder / "tde" / "result.json").read_text())
    assert stored["alpha"] == found.head.alpha and len(stored["sweep"]) == 13
    with pytest.raises(UserError, match="not empty"):
        lt.retrofit(folder / "head.pt", data, out=folder / "tde")


def test_the_new_checkpoint_is_the_same_network(made):
    data, layer, folder = made
    found = lt.retrofit(folder / "head.pt", data, out=folder / "tde")
    checked = verify_all(folder / "tde")
    assert checked.verified == 2 and not checked.unverified and not checked.damage
    state = safetensors.torch.load_file(folder / "tde" / "checkpoint.safetensors")
    layer.load_state_dict({k.removeprefix("head."): v for k, v in state.items()})
    logits = layer(data.test.inputs)
    assert (logits.argmax(1) == found.head(data.test.inputs).argmax(1)).all()
    assert 1 < logits.std() < 16
    kept = safetensors.torch.load_file(folder / "tde" / "model.safetensors")
    assert torch.equal(kept["head.mean_feature"], data.train.inputs.mean(0))


def test_an_export_leaves_the_new_checkpoint_alone(made):
    data, _, folder = made
    lt.retrofit(folder / "head.pt", data, out=folder / "tde")
    path = folder / "tde" / "checkpoint.safetensors"
    before = path.read_bytes()
    with pytest.raises(UserError, match="file of the run itself"):
        lt.export(folder / "tde", out=path)
    assert path.read_bytes() == before


def test_without_validation_data_a_part_of_training_chooses_and_that_is_said(made):
    data, _, folder = made
    found = lt.retrofit(folder / "head.pt", replace(data, val=None))
    assert (found.chosen_on, found.evaluated_on) == ("train", "test")
    assert "which the network has seen" in found.verdict
    alone = lt.retrofit(folder / "head.pt", replace(data, val=None, test=None))
    assert alone.evaluated_on == "train" and alone.head.alpha == found.head.alpha
    assert torch.equal(found.head.mean_feature, data.train.inputs.mean(0))


def test_the_verdict_is_cautious_if_alpha_was_chosen_on_the_evaluated_part(made):
    data, _, folder = made
    assert "optimistic" not in lt.retrofit(folder / "head.pt", data).verdict
    for fewer in ({"test": None}, {"test": None, "val": None}):
        found = lt.retrofit(folder / "head.pt", replace(data, **fewer))
        assert "chosen and evaluated on the same images, so this is optimistic" in found.verdict


def test_a_layer_saved_alone_and_its_own_model_file(made):
    data, layer, folder = made
    torch.save(layer.state_dict(), folder / "alone.pt")
    found = lt.retrofit(folder / "alone.pt", data, out=folder / "tde")
    assert set(found.state) == {"weight", "bias"} and not found.state["bias"].any()
    assert found.head.alpha == lt.retrofit(folder / "head.pt", data).head.alpha
    again = lt.retrofit(folder / "tde" / "model.safetensors", data)
    assert set(again.state) == {
        *("head.weight", "head.mean_feature", "head.alpha", "class_means"),
        *("held_out_features", "held_out_labels"),
    }
    assert again.head.alpha == found.head.alpha


def test_the_features_of_the_validation_part_are_stored(made, tmp_path):
    data, _, folder = made
    lt.retrofit(folder / "head.pt", data, out=tmp_path / "with")
    held = lt.load_model(tmp_path / "with").model.stored.held_out
    assert torch.equal(held.features, data.val.inputs.half())
    assert torch.equal(held.labels, data.val.labels)
    lt.retrofit(folder / "head.pt", replace(data, val=None), out=tmp_path / "without")
    assert lt.load_model(tmp_path / "without").model.stored.held_out is None


def test_the_test_part_chooses_nothing(made):
    data, _, folder = made
    found = lt.retrofit(folder / "head.pt", data)
    spoiled = replace(data, test=Split(data.test.inputs, data.test.labels.flip(0)))
    assert lt.retrofit(folder / "head.pt", spoiled).head.alpha == found.head.alpha


def test_it_says_when_it_does_not_help(tmp_path):
    balanced = [features((40,) * 4, seed, noise=0.01) for seed in range(3)]
    linear(balanced[0], tmp_path / "head.pt")
    found = lt.retrofit(tmp_path / "head.pt", data_of(*balanced))
    assert found.head.alpha == 0 and found.gain == 0  # all is right already: ties to the smallest
    assert found.verdict.startswith("TDE does not help: alpha 0 is best on the val part")
    centred = [Split(s.inputs - s.inputs.mean(0), s.labels) for s in balanced]
    found = lt.retrofit(tmp_path / "head.pt", data_of(*centred))
    assert found.rule == "no direction" and found.head.alpha == 0
    assert "no common direction" in found.verdict


# ------------------------------------------------------------------------------------ networks


class Small(nn.Module):
    """Stands in for a network of timm or torchvision."""

    def __init__(self, after: bool = False):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(6, 3)
        self.after = after

    def forward(self, x):
        logits = self.fc(self.stem(x).flatten(1))
        return logits + 1 if self.after else logits


def known(monkeypatch, network: nn.Module) -> None:
    """As if timm had it."""
    monkeypatch.setattr(networks, "find_full_names", lambda name: ["timm/small"])
    monkeypatch.setattr(networks, "create_network", lambda *_, **__: network)


@pytest.mark.parametrize("pixels", ["imagenet", "data"])
def test_features_of_a_network_are_those_before_its_last_layer(tmp_path, monkeypatch, pixels):
    torch.manual_seed(0)
    network, data = Small().eval(), tiny_data()
    safetensors.torch.save_file(network.state_dict(), tmp_path / "n.safetensors")
    known(monkeypatch, Small())
    found = lt.retrofit(tmp_path / "n.safetensors", data, model="small", pixels=pixels)
    mean, std = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    if pixels == "data":
        mean, std = data.mean, data.std
    mean, std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    logits = network((data.test.inputs / 255 - mean) / std)
    right = 100 * (logits.argmax(1) == data.test.labels).double().mean().item()
    assert found.before.overall == pytest.approx(right)
    assert set(found.state) == set(network.state_dict())


def test_a_checkpoint_in_half_precision_stays_in_half_precision(tmp_path, monkeypatch):
    torch.manual_seed(0)
    torch.save(Small().half().state_dict(), tmp_path / "n.pt")
    known(monkeypatch, Small())
    found = lt.retrofit(tmp_path / "n.pt", tiny_data(), model="small")
    assert {value.dtype for value in found.state.values()} == {torch.float16}


def test_a_network_that_does_more_after_its_last_layer_is_refused(tmp_path, monkeypatch):
    torch.save(Small().state_dict(), tmp_path / "n.pt")
    known(monkeypatch, Small(after=True))
    with pytest.raises(UserError, match="more after its last linear layer"):
        lt.retrofit(tmp_path / "n.pt", tiny_data(), model="small")


@pytest.mark.parametrize("home", ["timm", "torchvision"])
def test_real_names_through_the_door(home, tmp_path, capsys):
    """Where both have a name, the weights tell whose it is."""
    import timm
    import torchvision

    name = "resnet10t" if home == "timm" else "shufflenet_v2_x0_5"
    make = timm.create_model if home == "timm" else torchvision.models.get_model
    torch.save(make(name, num_classes=3).state_dict(), tmp_path / "n.pth")
    images = np.random.RandomState(0).randint(255, size=(24, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=images, y=np.repeat([0, 1, 2], [16, 5, 3]))
    words = ["retrofit", str(tmp_path / "n.pth"), "--data", str(tmp_path / "x.npz")]
    cli.main([*words, "--model", name, "-o", str(tmp_path / "tde")])
    said = capsys.readouterr().out
    assert "original" in said and "TDE, alpha" in said and "which the network has seen" in said
    assert files_in(tmp_path / "tde") == {
        *("model.safetensors", "config.json", "README.md"),
        *("checkpoint.safetensors", "result.json"),
    }
    assert lt.load_model(tmp_path / "tde").about.blueprint.backbone == f"{home}/{name}"


@torch.no_grad()
def test_from_a_checkpoint_to_predictions_and_a_file(tmp_path, monkeypatch, capsys):
    """The folder is a model: its logits are Eq. 8 on the network's own features, at any alpha."""
    import timm

    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos")
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=3).eval()
    torch.save(network.state_dict(), "n.pth")
    rows = [w / w.norm() for w in network.fc.weight]
    network.fc = nn.Identity()
    cli.main(["retrofit", "n.pth", "--model", "test_resnet", "--data", "photos", "-o", "tde"])
    cli.main(["export", "tde", "--to", "onnx", "--alpha", "1"])
    capsys.readouterr()
    cli.main(["predict", "tde", "photos/test/bee", "--alpha", "1", "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def feature(path):
        pixels = torch.tensor(np.asarray(Image.open(path)) / 255, dtype=torch.float32)
        scaled = (pixels - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
        return network(scaled.permute(2, 0, 1)[None])[0]

    seen = [feature(path) for path in Path("photos/train").rglob("*.png")]
    d = sum(seen) / sum(seen).norm()
    shipped = lt.load_model("retrofit.onnx")
    assert [line["image"] for line in lines] == ["photos/test/bee/0.png", "photos/test/bee/1.png"]
    for line in lines:
        x = feature(line["image"])
        x = x / x.norm()
        logits = torch.stack([16 * (w @ x - (x @ d) * (w @ d)) for w in rows])  # alpha 1
        expected = dict(zip(PHOTOS, logits.softmax(0).tolist(), strict=True))
        said = {found["class"]: found["probability"] for found in line["top"]}
        assert said == pytest.approx(expected, abs=1e-4)
        (prediction,) = shipped.predict([line["image"]])
        assert dict(prediction.top) == pytest.approx(expected, abs=1e-4)

    card = Path("tde/README.md").read_text()
    verdict = json.loads(Path("tde/result.json").read_text())["verdict"]
    assert "`n.pth`, without further training" in card and verdict in card
    assert "epoch" not in card and "None" not in card and str(tmp_path) not in card
    with pytest.raises(UserError, match="a file of the run itself"):
        lt.export("tde", out="tde/model.safetensors")


def test_a_model_of_features_says_that_it_takes_no_images(made, capsys):
    data, _, folder = made
    found = lt.retrofit(folder / "head.pt", data, out=folder / "tde")
    model = lt.load_model(folder / "tde")
    model.alpha = 0.5
    found.head.alpha = 0.5
    torch.testing.assert_close(
        model.logits(data.test.inputs), found.head(data.test.inputs).detach()
    )
    with pytest.raises(SystemExit):
        cli.main(["predict", str(folder / "tde"), __file__])
    assert "takes embeddings, not images" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["timm/nothing", "torchvision/resnet10t", "timm/test_resnet"])
def test_an_unknown_network_raises_an_error(name, made):
    data, _, folder = made
    lt.retrofit(folder / "head.pt", data, out=folder / "tde")
    about = json.loads((folder / "tde" / "config.json").read_text())
    about["blueprint"] |= {"backbone": name, "shape": [3, 8, 8], "seen": [8, 8]}
    about["blueprint"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    (folder / "tde" / "config.json").write_text(json.dumps(about))
    weights = folder / "tde" / "model.safetensors"
    # without the description that it is compared with
    safetensors.torch.save_file(safetensors.torch.load_file(weights), weights)
    with pytest.raises(UserError, match="network 'nothing'|no network|weights of another model"):
        lt.load_model(folder / "tde")


# ----------------------------------------------------------------------------------- bad files


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_a_checkpoint_never_runs_code(tmp_path):
    for name, save in (("evil.pt", torch.save), ("evil.pth", _pickled)):
        save({"weight": Evil(tmp_path / "written")}, tmp_path / name)
        with pytest.raises(UserError, match="would execute code"):
            lt.retrofit(tmp_path / name, tiny_data(images=False))
    assert not (tmp_path / "written").exists()


def _pickled(content, path):
    path.write_bytes(pickle.dumps(content))


def test_mistakes(made):
    data, _, folder = made
    whole = (folder / "head.pt").read_bytes()
    (folder / "short.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "short.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    torch.save({"epoch": 3}, folder / "empty.pt")
    for name, said in (
        ("nowhere.pt", "does not exist"),
        ("short.pt", "cut short"),
        ("short.safetensors", "truncated"),
        ("empty.pt", "holds no weights"),
    ):
        with pytest.raises(UserError, match=said):
            lt.retrofit(folder / name, data)
    narrow = replace(data, train=Split(data.train.inputs[:, :8], data.train.labels))
    with pytest.raises(UserError, match="no linear layer from 8 features to 4 classes"):
        lt.retrofit(folder / "head.pt", narrow)
    with pytest.raises(UserError, match="which network"):
        lt.retrofit(folder / "head.pt", tiny_data())
    with pytest.raises(UserError, match="unknown network 'resnet5'. Did you mean"):
        lt.retrofit(folder / "head.pt", tiny_data(), model="resnet5")
    with pytest.raises(UserError, match="does not fit resnet10t"):
        lt.retrofit(folder / "head.pt", tiny_data(), model="resnet10t")


def test_the_command_needs_data(capsys):
    with pytest.raises(SystemExit):
        cli.main(["retrofit", "x.pt"])
    assert "Pass them as --data" in capsys.readouterr().err


def test_images_that_it_has_not_seen_calibrate_it(made):
    data, _, folder = made
    lt.retrofit(folder / "head.pt", data, out=folder / "held-out")
    lt.retrofit(folder / "head.pt", replace(data, val=None), out=folder / "seen")
    calibrated, plain = (lt.load_model(folder / name) for name in ("held-out", "seen"))
    assert calibrated.trust.images == len(data.val) and plain.trust is None
    rows = data.test.inputs
    assert lt.extend(plain, {"new": rows[:3]}).model.classes == (*data.classes, "new")
    assert len(lt.adapt(calibrated, rows).prior) == len(data.classes)
    assert calibrated.predict(rows[:1], sets=0.9)[0].answer_set


def test_too_few_images_that_it_has_not_seen_calibrate_nothing(made):
    data, _, folder = made
    few = replace(data, val=data.val.take(torch.arange(LEAST_IMAGES - 1)))
    lt.retrofit(folder / "head.pt", few, out=folder / "few")
    assert lt.load_model(folder / "few").trust is None
