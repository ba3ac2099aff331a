"""Weights of timm's and torchvision's layouts, fitted into networks of other sizes and channels."""

import argparse
import re
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from torch import nn
from torchvision import models

from longtail.core.errors import UserError
from longtail.nn import backbones, weights
from longtail.nn.checkpoints import read_state
from longtail.nn.libraries import HeadlessNetwork
from longtail.nn.published import infer_backbone

SHARED = Path(__file__).parents[3] / "shared" / "weights"


def load(name: str, path: Path, channels: int = 3, size: tuple[int, int] = (64, 64)):
    """A backbone with the weights of a file, and what was loaded."""
    backbone = backbones.build(name, channels, size).eval()
    return backbone, weights.load_into(backbone, name, str(path))


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "convnext_atto"])
def test_a_file_of_timm_gives_the_features_of_its_network(name, tmp_path):
    whole = timm.create_model(name).eval()
    safetensors.torch.save_file(whole.state_dict(), tmp_path / "x.safetensors")
    backbone, fitted = load(name, tmp_path / "x.safetensors")
    images = torch.rand(2, 3, 64, 64)
    expected = whole.forward_head(whole.forward_features(images), pre_logits=True)
    assert torch.equal(backbone(images), expected)
    total = sum(p.numel() for p in backbone.parameters())
    assert fitted.parameters == (total, total)
    assert str(fitted).startswith(f"loaded all {total:,} parameters of {name} from x.safetensors")
    assert re.search(r"left out its classifier \((\w+\.)+bias, (\w+\.)+weight\)", str(fitted))
    assert not fitted.fresh and not fitted.resized


def test_a_file_of_torchvision_gives_the_features_before_its_last_layer(tmp_path):
    whole = models.mobilenet_v3_small().eval()
    torch.save(whole.state_dict(), tmp_path / "x.pth")
    backbone, fitted = load("torchvision/mobilenet_v3_small", tmp_path / "x.pth")
    images = torch.rand(2, 3, 64, 64)
    assert backbone.dim == 1024 and backbone.stride == 32
    assert torch.allclose(whole.classifier[3](backbone(images)), whole(images), atol=1e-5)
    assert fitted.left_out == ("classifier.3.weight", "classifier.3.bias")
    backbone.train()
    assert not any(m.p for m in backbone.modules() if isinstance(m, nn.Dropout))


@pytest.mark.parametrize("name", ["torchvision/googlenet", "torchvision/inception_v3"])
def test_the_auxiliary_classifiers_of_torchvision_are_left_out(name):
    backbone = backbones.build(name, 3, (96, 96)).train()
    assert backbone(torch.rand(2, 3, 96, 96)).shape == (2, backbone.dim)


def test_position_embeddings_take_the_size_of_the_images(tmp_path):
    at_its_size = timm.create_model("vit_tiny_patch16_224")
    torch.save(at_its_size.state_dict(), tmp_path / "x.pth")
    backbone, fitted = load("vit_tiny_patch16_224", tmp_path / "x.pth", size=(32, 48))
    assert backbone.inner.pos_embed.shape == (1, 1 + 2 * 3, 192) and backbone.stride == 16
    assert backbone(torch.rand(1, 3, 32, 48)).shape == (1, 192)
    assert fitted.parameters[0] == fitted.parameters[1]
    # resizing keeps a constant embedding, and leaves that of the class token alone
    state = at_its_size.state_dict()
    state["pos_embed"] = torch.full_like(state["pos_embed"], 0.25)
    torch.save(state, tmp_path / "flat.pth")
    flat, _ = load("vit_tiny_patch16_224", tmp_path / "flat.pth", size=(32, 48))
    assert torch.allclose(flat.inner.pos_embed, torch.tensor(0.25), atol=1e-5)


def test_position_embeddings_of_torchvision_take_the_size_too(tmp_path):
    options = dict(patch_size=16, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8)
    large = models.VisionTransformer(image_size=64, **options)
    small = models.VisionTransformer(image_size=32, **options)
    torch.save(large.state_dict(), tmp_path / "x.pth")
    backbone = HeadlessNetwork("torchvision/vit", small, "heads.head")
    fitted = weights.load_into(backbone, "torchvision/vit", str(tmp_path / "x.pth"))
    assert fitted.parameters[0] == fitted.parameters[1] and not fitted.resized
    assert backbone(torch.rand(1, 3, 32, 32)).shape == (1, 8)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("name", ["resnet10t", "torchvision/shufflenet_v2_x0_5"])
def test_other_channels_adapt_as_timm_does(name, channels, tmp_path):
    library, _, short = name.rpartition("/")
    whole = models.get_model(short) if library else timm.create_model(short)
    torch.save(whole.state_dict(), tmp_path / "x.pth")
    backbone, fitted = load(name, tmp_path / "x.pth", channels)
    first = "conv1.0.weight"
    colour, own = whole.state_dict()[first], backbone.inner.state_dict()[first]
    for channel in range(channels):  # one channel takes the sum, more repeat the colours
        part = colour.sum(1) if channels == 1 else colour[:, channel % 3] * 3 / channels
        assert torch.allclose(own[:, channel], part, atol=1e-6)
    assert fitted.parameters[0] == fitted.parameters[1]
    assert backbone(torch.rand(2, channels, 64, 64)).shape == (2, backbone.dim)


@pytest.mark.parametrize(
    "prefix", ["module.", "model.", "backbone.", "_orig_mod.", "model.module."]
)
@pytest.mark.parametrize("wrapper", ["", "state_dict", "model", "model_ema", "state_dict_ema"])
def test_prefixes_and_wrappers_are_taken_off(prefix, wrapper, tmp_path):
    state = timm.create_model("test_resnet").state_dict()
    named = {prefix + name: value for name, value in state.items()}
    arguments = argparse.Namespace(lr=0.1)  # as timm's own checkpoints hold them
    noise = {name: torch.zeros_like(value) for name, value in state.items()}
    other = {"state_dict": noise} if wrapper.endswith("_ema") else {}
    content = {"epoch": 3, "args": arguments, **other, wrapper: named} if wrapper else named
    torch.save(content, tmp_path / "x.bin")
    backbone, fitted = load("test_resnet", tmp_path / "x.bin")
    assert fitted.parameters[0] == fitted.parameters[1]
    own = backbone.inner.state_dict()
    assert all(torch.equal(own[name], state[name]) for name in own)


def test_the_model_of_a_run_is_a_file_of_weights_too(tmp_path):
    trained = backbones.build("conv4", 3)
    names = {f"backbone.{name}": value for name, value in trained.state_dict().items()}
    torch.save({**names, "head.weight": torch.rand(3, 128)}, tmp_path / "model.pth")
    backbone, fitted = load("conv4", tmp_path / "model.pth")
    assert fitted.left_out == ("head.weight",)
    assert all(map(torch.equal, backbone.parameters(), trained.parameters()))


def test_half_precision_is_loaded_as_float32(tmp_path):
    torch.save(timm.create_model("test_resnet").half().state_dict(), tmp_path / "x.pth")
    backbone, fitted = load("test_resnet", tmp_path / "x.pth")
    assert fitted.parameters[0] == fitted.parameters[1]
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}


# ----------------------------------------------------------------------------------- bad files


def test_weights_of_another_network_are_refused_with_the_first_differences(tmp_path):
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "resnet10t-0123abcd.pth")
    with pytest.raises(UserError) as caught:
        load("mobilenetv3_small_050", tmp_path / "resnet10t-0123abcd.pth")
    text = str(caught.value)
    assert "fit 0 % of the parameters of mobilenetv3_small_050, and 90 % are needed" in text
    assert "the file's name suggests --backbone resnet10t" in text
    assert re.search(r"First differences: \S+: [\dx]+ in the file, ([\dx]+|absent) here", text)


def test_the_network_may_lack_a_tenth_of_its_weights(tmp_path):
    state = timm.create_model("test_resnet").state_dict()
    stem = {name: value for name, value in state.items() if name != "bn1.weight"}
    torch.save(stem, tmp_path / "x.pth")
    _, fitted = load("test_resnet", tmp_path / "x.pth")
    assert fitted.fresh == ("bn1.weight",)
    assert "not in the file, so they start at random (bn1.weight)" in str(fitted)
    backbone = backbones.build("test_resnet", 3)
    own, kept, missing = dict(backbone.inner.named_parameters()), dict(state), 0
    total = sum(p.numel() for p in own.values())
    for name in sorted(own, key=lambda n: -own[n].numel()):
        if missing <= total / 10:
            del kept[name]
            missing += own[name].numel()
    torch.save(kept, tmp_path / "less.pth")
    with pytest.raises(UserError, match=f"fit {100 * (total - missing) / total:.0f} % of the"):
        load("test_resnet", tmp_path / "less.pth")


def test_a_damaged_value_is_refused(tmp_path):
    state = timm.create_model("test_resnet").state_dict()
    state["bn1.weight"][0] = torch.nan
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"NaN in bn1\.weight: it is damaged"):
        load("test_resnet", tmp_path / "x.pth")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_cut_or_corrupt_file_is_refused(suffix, damage, tmp_path):
    path, state = tmp_path / f"x.{suffix}", timm.create_model("test_resnet").state_dict()
    torch.save(state, path) if suffix == "pth" else safetensors.torch.save_file(state, path)
    content = path.read_bytes()
    path.write_bytes({"cut": content[:5000], "noise": b"\x07" * 5000, "empty": b""}[damage])
    with pytest.raises(UserError, match="cut short|truncated"):
        load("test_resnet", path)


@pytest.mark.parametrize("name", ["missing.pth", "."])
def test_a_file_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(UserError, match="does not exist|is a folder"):
        load("test_resnet", tmp_path / name)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_a_lightning_checkpoint_with_foreign_objects_runs_no_code(tmp_path):
    state = {f"model.{n}": v for n, v in timm.create_model("test_resnet").state_dict().items()}
    hidden = {"state_dict": state, "hyper_parameters": {"net": Evil(tmp_path / "created")}}
    torch.save(hidden, tmp_path / "x.ckpt")
    with pytest.raises(UserError, match=r"would execute code.*torch\.save\(model\.state_dict"):
        load("test_resnet", tmp_path / "x.ckpt")
    assert not (tmp_path / "created").exists()
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "plain.ckpt")
    assert len(read_state(tmp_path / "plain.ckpt")) == len(state)


@pytest.mark.skipif(not SHARED.exists(), reason="needs the real weights of ../shared/weights")
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "torchvision/mobilenet_v2"])
def test_real_files_fit_their_networks_wholly(name):
    (path,) = SHARED.glob(f"{name.rpartition('/')[2]}*")
    assert infer_backbone(path) == name
    for channels in (3, 1):
        _, fitted = load(name, path, channels)
        assert fitted.parameters[0] == fitted.parameters[1]
        assert len(fitted.left_out) == 2 and not fitted.fresh and not fitted.resized
