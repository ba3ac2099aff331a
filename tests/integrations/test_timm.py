"""timm: the script of the page, and what timm does with the network."""

import pytest
import timm
import torch
from timm.data import resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

import longtail as lt
from longtail.integrations.timm import create_model


def test_the_script_of_the_page_runs(run_page, capsys):
    names = run_page("timm")
    assert isinstance(names["head"], lt.DeconfoundHead)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("many", "medium", "few", "alpha"))


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet", "test_convnext"])
def test_a_network_stays_one_of_timm(name, tmp_path):
    model = create_model(name, 4, head_options={"tau": 8.0, "heads": 4})
    head = model.get_classifier()
    assert isinstance(head, lt.DeconfoundHead) and (head.tau, head.heads) == (8.0, 4)
    assert resolve_data_config({}, model=model)["input_size"][0] == 3
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9, weight_decay=0.1)
    ema = ModelEmaV3(model, decay=0.5)
    images, labels = torch.rand(4, 3, 160, 160), torch.arange(4)
    model.train().set_grad_checkpointing()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    ema.update(model)
    mean = ema.module.get_classifier().mean_feature
    assert mean.any() and torch.allclose(2 * mean, head.mean_feature)  # half way from zero
    model.eval()
    features = model.forward_head(model.forward_features(images), pre_logits=True)
    assert torch.allclose(head(features), model(images), atol=1e-5)
    other = create_model(name, 4, head_options={"tau": 8.0, "heads": 4}).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))
    model.reset_classifier(3)
    assert model(images).shape == (4, 3)


def test_a_checkpoint_is_of_this_network_or_of_timms_own(tmp_path):
    plain = timm.create_model("test_resnet", num_classes=4)
    torch.save({"state_dict": plain.state_dict()}, tmp_path / "plain.pth.tar")
    start = create_model("test_resnet", 4, checkpoint_path=tmp_path / "plain.pth.tar")
    assert torch.equal(start.conv1[0].weight, plain.conv1[0].weight)
    images = torch.rand(2, 3, 32, 32)
    start.train()(images)
    torch.save({"state_dict": start.state_dict()}, tmp_path / "ours.pth.tar")
    again = create_model("test_resnet", 4, checkpoint_path=str(tmp_path / "ours.pth.tar"))
    assert again.get_classifier().mean_feature.any()
    assert torch.equal(again.eval()(images), start.eval()(images))


def test_a_loss_takes_soft_targets_as_timms_own_does():
    logits, target = torch.randn(6, 3), torch.rand(6, 3).softmax(1)
    loss = lt.Tail([9, 5, 2]).loss("cross-entropy")
    torch.testing.assert_close(loss(logits, target), SoftTargetCrossEntropy()(logits, target))


def test_linear_is_timms_own_layer_and_other_heads_are_refused():
    model = create_model("test_resnet", 4, head="linear")
    assert type(model) is type(timm.create_model("test_resnet"))
    assert isinstance(model.get_classifier(), torch.nn.Linear)
    assert create_model("test_resnet").get_classifier().classes == 1000  # as timm's train.py does
    with pytest.raises(lt.UserError, match="unknown head 'deconfond'. Did you mean 'deconfound'?"):
        create_model("test_resnet", 4, head="deconfond")
    with pytest.raises(lt.UserError, match="head_options are for the head deconfound"):
        create_model("test_resnet", 4, head="linear", head_options={"tau": 8.0})
    with pytest.raises(lt.UserError, match="has no linear layer with 0 outputs"):
        create_model("test_resnet", 0)


def test_a_network_with_two_classifiers_is_refused():
    name = "deit_tiny_distilled_patch16_224"
    with pytest.raises(lt.UserError, match=f"{name} has two classifiers, .* use a network with"):
        create_model(name, 3, depth=1)
    assert len(create_model(name, 3, head="linear", depth=1).get_classifier()) == 2
