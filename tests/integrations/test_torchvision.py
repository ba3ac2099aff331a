"""torchvision detectors: the script of the page, and the box predictor against formulas."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.roi_heads import fastrcnn_loss
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import longtail as lt
from longtail.integrations.torchvision import swap_box_predictor

TAIL = lt.Tail([200, 50, 3])


def detector(classes: int = 4) -> FasterRCNN:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8, padding=1), nn.ReLU())
    backbone.out_channels = 8
    return FasterRCNN(
        backbone,
        num_classes=classes,
        min_size=64,
        max_size=64,
        box_score_thresh=0.0,
        rpn_anchor_generator=AnchorGenerator(((24,),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=2, sampling_ratio=1),
    )


def scenes():
    boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0], [20.0, 20.0, 50.0, 50.0]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 3])}
    return [torch.rand(3, 64, 64) for _ in range(2)], [target, target]


def test_the_script_of_the_page_runs(run_page):
    names = run_page("torchvision")
    assert names["predictor"].head.mean_feature.any()
    assert any(len(boxes["labels"]) for boxes in names["found"])


@pytest.mark.parametrize("loss", ["cross-entropy", "eql"])
def test_a_detector_trains_and_its_copies_do_too(loss):
    model = detector()
    predictor = swap_box_predictor(model, TAIL, loss=loss, rare=20)
    images, targets = scenes()
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = predictor.head.mean_feature.clone()
        losses = each(images, copy.deepcopy(targets))
        sum(losses.values()).backward()
        head = each.roi_heads.box_predictor.head
        assert head.mean_feature.any() and head.weight.grad.isfinite().all()
        assert each is model or torch.equal(predictor.head.mean_feature, before)
    found = model.eval()(images)
    assert all(boxes["scores"].isfinite().all() for boxes in found)


def test_torchvisions_loss_of_the_scores_is_eql():
    predictor = swap_box_predictor(detector(), TAIL, loss="eql", rare=100)
    x, labels = torch.rand(7, 1024), torch.tensor([0, 1, 2, 3, 0, 1, 3])
    predictor.labels = labels
    scores, boxes = predictor(x)
    found, _ = fastrcnn_loss(scores, boxes, [labels], [torch.zeros(7, 4)])
    rare = torch.tensor([False, False, True, True])
    losses = []
    for z, y in zip(predictor.head.total(x), labels.tolist(), strict=True):
        kept = [j for j in range(4) if j == y or y == 0 or not rare[j]]
        losses.append(z[kept].logsumexp(0) - z[y])
    torch.testing.assert_close(found, torch.stack(losses).mean())


def test_the_mean_is_of_objects_and_scores_are_background_exempted():
    predictor = swap_box_predictor(detector(), TAIL, alpha=1.5, tau=8.0)
    head, x, labels = predictor.head, torch.rand(5, 1024), torch.tensor([0, 1, 0, 3, 2])
    predictor.labels = labels
    predictor(x)
    torch.testing.assert_close(head.mean_feature, x[labels > 0].mean(0))
    head.eval(), predictor.eval()
    expected = lt.background_exempt(head.total(x), head(x))
    torch.testing.assert_close(predictor(x)[0].softmax(-1), expected)
    torch.testing.assert_close(expected[:, 0], head.total(x).softmax(-1)[:, 0])


def test_refused_arguments():
    with pytest.raises(lt.UserError, match="scores 6 classes: build it for 4"):
        swap_box_predictor(detector(6), TAIL)
    model = detector()
    swap_box_predictor(model, TAIL)
    for wrong in (model, nn.Linear(2, 2)):  # swapped already, and not a detector
        with pytest.raises(lt.UserError, match="no box predictor of torchvision: give a FasterRC"):
            swap_box_predictor(wrong, TAIL)
    with pytest.raises(lt.UserError, match="unknown loss 'focal'"):
        swap_box_predictor(detector(), TAIL, loss="focal")
