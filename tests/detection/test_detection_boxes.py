"""Boxes of a batch at once against plain loops and torchvision's functions for one image."""

import math

import pytest
import torch
from loops import overlap
from torch.testing import assert_close
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.ops import box_iou, nms

from longtail.detection.data.sampling import make_keys, uniform
from longtail.detection.network import boxes as box


def random_boxes(*shape, seed=0, side=40.0):
    generator = torch.Generator().manual_seed(seed)
    corner = side * torch.rand(*shape, 2, generator=generator)
    return torch.cat(
        [corner, corner + 1 + side / 2 * torch.rand(*shape, 2, generator=generator)], -1
    )


def test_overlap_is_that_of_loops_and_of_torchvision():
    a, b = random_boxes(2, 5), random_boxes(2, 3, seed=1)
    found = box.iou(a, b)
    for i in range(2):
        assert_close(found[i], box_iou(a[i], b[i]))
        for j in range(5):
            for k in range(3):
                assert found[i, j, k].item() == pytest.approx(
                    overlap(a[i, j].tolist(), b[i, k].tolist()), abs=1e-6
                )
    assert box.iou(torch.zeros(1, 4), torch.zeros(1, 4)).item() == 0  # no area, no NaN


@pytest.mark.parametrize("high", [0.5, 0.6, 0.7])  # the stages
def test_a_stage_assigns_what_a_loop_assigns(high):
    boxes, truth = random_boxes(3, 60), random_boxes(3, 4, seed=1)
    boxes[:, :4] = truth + 0.5  # some that surely match
    present = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4])
    which, kind = box.match(boxes, truth, present, high=high, low=high)
    for i in range(3):
        for j in range(60):
            values = [overlap(boxes[i, j].tolist(), truth[i, g].tolist()) for g in range(4)]
            there = {g: v for g, v in enumerate(values) if present[i, g]}
            best = max(there, key=there.__getitem__, default=None)
            foreground = best is not None and there[best] >= high
            assert kind[i, j] == int(foreground)
            if foreground:
                assert which[i, j] == best
    assert (kind[0] == 1).any() and not (kind[2] == 1).any()


def test_anchors_are_assigned_as_torchvision_assigns_them(monkeypatch):
    anchors, truth = random_boxes(2, 80), random_boxes(2, 3, seed=2)
    monkeypatch.setattr(box, "CHUNK", 1)  # one image at a time gives the same
    which, kind = box.match(
        anchors, truth, torch.ones(2, 3, dtype=torch.bool), high=0.7, low=0.3, rescue=True
    )
    for i in range(2):
        expected = Matcher(0.7, 0.3, allow_low_quality_matches=True)(box_iou(truth[i], anchors[i]))
        names = {Matcher.BELOW_LOW_THRESHOLD: 0, Matcher.BETWEEN_THRESHOLDS: -1}
        assert kind[i].tolist() == [names.get(e, 1) for e in expected.tolist()]
        assert all(w == e for w, e in zip(which[i], expected, strict=True) if e >= 0)


def test_sampling_keeps_to_its_share_and_fills_with_background():
    kind = torch.tensor([[1] * 6 + [0] * 20 + [-1] * 4, [0] * 3 + [-1] * 27])
    chance = uniform(torch.tensor([5, 6]), "regions", 30)
    index, drawn = box.sample(kind, chance, 8, 0.25)
    picked = [kind[i][index[i][drawn[i]]].tolist() for i in range(2)]
    assert sorted(picked[0]) == [0] * 6 + [1] * 2
    assert picked[1] == [0] * 3  # what there is, and no more
    for i in range(2):
        assert len(set(index[i][drawn[i]].tolist())) == drawn[i].sum()


def greedy(boxes, present, threshold):
    """As torchvision does it for one image, best first."""
    kept, own = torch.zeros(len(boxes), dtype=torch.bool), present.nonzero()[:, 0]
    falling = torch.arange(len(own), 0, -1).float()
    kept[own[nms(boxes[own], falling, threshold)]] = True
    return kept


@pytest.mark.parametrize("chunk", [1, box.CHUNK])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_suppression_is_greedy(threshold, chunk, monkeypatch):
    monkeypatch.setattr(box, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(3)
    boxes = random_boxes(3, 120)
    present = torch.rand(3, 120, generator=generator) < 0.9
    kept = box.suppress(boxes, present, threshold)
    for i in range(3):
        assert torch.equal(kept[i], greedy(boxes[i], present[i], threshold))


def test_codes_are_those_of_the_formula_and_come_back():
    boxes, truth = random_boxes(2, 5), random_boxes(2, 5, seed=1)
    coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
    codes = box.encode(coder, truth, boxes)
    flat = [part.view(-1, 4).tolist() for part in (boxes, truth, codes)]
    for a, t, code in zip(*flat, strict=True):
        wide, tall = a[2] - a[0], a[3] - a[1]
        expected = [
            10 * ((t[0] + t[2]) / 2 - (a[0] + a[2]) / 2) / wide,
            10 * ((t[1] + t[3]) / 2 - (a[1] + a[3]) / 2) / tall,
            5 * math.log((t[2] - t[0]) / wide),
            5 * math.log((t[3] - t[1]) / tall),
        ]
        assert code == pytest.approx(expected, abs=1e-4)
    assert_close(box.decode(coder, codes, boxes), truth)


def test_boxes_are_cut_at_their_own_image():
    boxes = torch.tensor([[[-5.0, -5, 50, 50]], [[2, 3, 8, 90]]])
    cut = box.clip(boxes, torch.tensor([[20, 30], [40, 10]]))
    assert cut.tolist() == [[[0, 0, 30, 20]], [[2, 3, 8, 40]]]


def test_chance_depends_on_the_image_and_the_step_alone():
    device = torch.device("cpu")
    both = uniform(make_keys(0, 3, [11, 12], device), "anchors", 1000)
    assert torch.equal(both[1:], uniform(make_keys(0, 3, [12], device), "anchors", 1000))
    assert torch.equal(both[:, :10], uniform(make_keys(0, 3, [11, 12], device), "anchors", 10))
    others = [
        make_keys(0, 4, [11], device),
        make_keys(1, 3, [11], device),
        make_keys(0, 3, [13], device),
    ]
    others = [uniform(key, "anchors", 1000) for key in others]
    others.append(uniform(make_keys(0, 3, [11], device), "regions", 1000))
    for other in others:
        assert abs(torch.corrcoef(torch.cat([both[:1], other]))[0, 1]) < 0.1
    assert both.min() >= 0 and both.max() < 1
    assert both.mean().item() == pytest.approx(0.5, abs=0.03)
    assert both.std().item() == pytest.approx(12**-0.5, abs=0.02)
