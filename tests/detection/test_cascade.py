"""The cascade: scoring, selection of detections, and updates of the head's direction."""

import pytest
import torch
from loops import overlap
from torch.testing import assert_close

import longtail as lt
from helpers import float64
from longtail.detection.data.batches import Sample, collate, flip_batch
from longtail.detection.data.dataset import Categories
from longtail.detection.network.cascade import CascadeStage, compute_scores, select
from longtail.detection.network.detector import build_detector
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, LinearHead
from small_detector import small_config

# an untrained detector scores its classes nearly alike, and rounding might order them
pytestmark = pytest.mark.usefixtures("exact")

CATEGORIES = Categories((1, 2, 5), ("a", "b", "c"), (200, 50, 3), (400, 60, 3))


def sample(objects: int, height: int = 64, width: int = 64, seed: int = 0) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    corner = (24 * torch.rand(objects, 2, generator=generator)).round()
    extent = 10 + (12 * torch.rand(objects, 2, generator=generator)).round()
    boxes = torch.cat([corner, corner + extent], dim=1)
    masks = torch.zeros(objects, height, width, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    pixels = torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8)
    labels = torch.randint(1, 4, (objects,), generator=generator)
    return Sample(pixels, boxes, labels, masks)


def batch(*objects: int):
    made = collate([sample(n, seed=i) for i, n in enumerate(objects)])
    return made._replace(keys=torch.arange(len(objects)) * 977)


@pytest.fixture(scope="module")
def detector():
    config = small_config("x", method="deconfound-tde")
    with float64():
        return build_detector(config, CATEGORIES, fresh=False)


def score(stage, x, tde, alpha):
    return compute_scores([stage.compute_effects(x, tde, alpha)], tde)


@pytest.mark.parametrize("head", [LinearHead, CosineHead, CapsuleHead, DeconfoundHead])
def test_scores_of_a_stage(head):
    torch.manual_seed(0)
    stage = CascadeStage(0, 8, head(6, 4), 3, group_norm=True)
    x = torch.rand(9, 6)
    off = score(stage, x, "off", 1.5)
    assert_close(off.sum(1), torch.ones(9))
    if head is LinearHead:
        assert torch.equal(off, score(stage, x, "background-exempt", 1.5))
        return
    stage.head.observe(x)
    total, indirect = stage.head.total(x), stage.head.indirect(x)
    for one, other in zip(stage.head.effects(x), (total, indirect), strict=True):
        assert_close(one, other)
    plain = score(stage, x, "plain", 1.5)
    exempt = score(stage, x, "background-exempt", 1.5)
    assert_close(off, total.softmax(-1))
    assert_close(plain, (total - 1.5 * indirect).softmax(-1))
    assert_close(exempt, lt.background_exempt(total, total - 1.5 * indirect, 0))
    assert_close(exempt.sum(1), torch.ones(9))  # one softmax: nothing is squeezed twice
    assert_close(exempt[:, 0], off[:, 0])
    assert_close(score(stage, x, "background-exempt", 0.0), off)


@pytest.mark.parametrize("tde", ["off", "plain", "background-exempt"])
def test_stages_are_averaged_by_probabilities_or_by_logits(tde):
    generator = torch.Generator().manual_seed(0)
    total, direct = torch.randn(2, 3, 5, 4, generator=generator)  # three stages each
    effects = [(z, None if tde == "off" else d) for z, d in zip(total, direct, strict=True)]

    def score(z, d):
        return lt.background_exempt(z, d) if tde == "background-exempt" else d.softmax(-1)

    if tde == "off":
        direct = total
    each = [score(z, d) for z, d in zip(total, direct, strict=True)]
    assert_close(compute_scores(effects, tde), sum(each) / 3)
    found = compute_scores(effects, tde, average="logits")
    assert_close(found, score(sum(total) / 3, sum(direct) / 3))


def test_sigmoid_scores_are_averaged_too():
    z = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    effects = [(each, None) for each in z]
    assert_close(compute_scores(effects, "off", sigmoid=True), z.sigmoid().mean(0))
    found = compute_scores(effects, "off", sigmoid=True, average="logits")
    assert_close(found, z.mean(0).sigmoid())


def test_a_detector_with_sigmoids_trains_and_detects():
    config = small_config("x", method="focal", average="logits")
    made = build_detector(config, CATEGORIES, fresh=False, images=1000)
    assert made.cascade.average == "logits"
    losses = made.train()(batch(3, 0))
    torch.stack(list(losses.values())).sum().backward()
    for stage in made.cascade.each:
        assert stage.head.bias.grad[1:].any() and not stage.head.bias.grad[0]
    with torch.no_grad():
        found = made.eval()(batch(2, 1))
    assert found.labels.max() <= 3 and found.scores.max() < 0.1  # still near the prior


def select_by_a_loop(boxes, scores, count, threshold):
    """(score, box, class) of one image: from the best on, unless near one of its class before."""
    plain, kept = boxes.tolist(), []
    pairs = [
        (score, p, c + 1) for p, own in enumerate(scores.tolist()) for c, score in enumerate(own)
    ]
    for score, p, c in sorted(pairs, reverse=True):
        own = [before for before in kept if before[2] == c]
        if score > threshold and all(overlap(plain[p], plain[q]) <= 0.5 for _, q, _ in own):
            kept.append((score, p, c))
    return kept[:count]


def assert_chosen(found, boxes, scores, count, threshold):
    for i, (own, best, labels) in enumerate(zip(*found, strict=True)):
        kept = select_by_a_loop(boxes[i], scores[i], count, threshold)
        there = labels > 0
        assert there.sum() == len(kept)
        assert best[there].tolist() == pytest.approx([k[0] for k in kept])
        assert labels[there].tolist() == [k[2] for k in kept]
        assert_close(own[there], torch.stack([boxes[i, k[1]] for k in kept]))


def test_choice_of_detections_is_that_of_a_loop():
    generator = torch.Generator().manual_seed(0)
    corner = 20 * torch.rand(2, 30, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(2, 30, 2, generator=generator)], -1)
    scores = torch.rand(2, 30, 4, generator=generator)
    scores[1] *= 0.02  # few above the threshold
    assert_chosen(select(boxes, scores, 10, 0.015), boxes, scores, 10, 0.015)


def test_many_proposals_of_one_object_leave_room_for_other_classes():
    """As on LVIS: the best classes of a lone object have a score in every box around it."""
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([100.0, 100, 400, 400]) + 3 * torch.randn(1, 60, 4, generator=generator)
    boxes[:, -1] = torch.tensor([500.0, 500, 520, 520])
    falling = torch.linspace(4, 0, 90) + 0.1 * torch.randn(1, 60, 90, generator=generator)
    scores = falling.softmax(-1)
    found = select(boxes, scores, 50, 1e-4)
    assert_chosen(found, boxes, scores, 50, 1e-4)
    assert (found[2] > 0).all() and len(set(found[2][0].tolist())) > 20


def test_nan_scores_are_not_detections():
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])[None]
    scores = torch.tensor([[0.9, float("nan")], [float("nan"), 0.2]])[None]
    _, best, labels = select(boxes, scores, 3, 1e-4)
    assert labels[0].tolist() == [1, 2, 0] and best[0, :2].tolist() == pytest.approx([0.9, 0.2])
    assert (select(boxes, torch.full((1, 2, 2), float("nan")), 3, 1e-4)[2] == 0).all()


def test_one_class_gives_as_many_as_are_asked_for():
    place = 20.0 * torch.arange(40)[:, None].repeat(1, 2)
    boxes = torch.cat([place, place + 10], -1)[None]
    scores = torch.linspace(0.9, 0.1, 40)[None, :, None]
    assert_chosen(select(boxes, scores, 30, 1e-4), boxes, scores, 30, 1e-4)
    assert_chosen(select(boxes, scores, 99, 0.5), boxes, scores, 99, 0.5)


@pytest.mark.parametrize("objects", [(3, 0, 2), (0, 0)])
def test_every_weight_gets_a_finite_gradient(detector, monkeypatch, objects):
    detector.zero_grad(set_to_none=True)
    monkeypatch.setattr(detector.cascade, "rois", 500)  # so many that padding is among them
    detector.train()
    losses = detector(flip_batch(batch(*objects)))
    names = ["class", "box", "mask"]
    assert set(losses) == {"objectness", "proposal_box"} | {
        f"{n}{i}" for n in names for i in range(3)
    }
    torch.stack(list(losses.values())).sum().backward()
    for name, parameter in detector.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_the_direction_follows_the_foreground_alone(detector):
    detector.train()
    heads = [stage.head for stage in detector.cascade.each]
    seen = []
    for head in heads:
        head.reset_parameters()
        head.observe = _recording(head, seen)
    detector(batch(3, 2))
    for head in heads:
        del head.observe
    assert len(seen) == 3  # each stage its own
    for head, (x, keep) in zip(heads, seen, strict=True):
        assert not keep.all()
        expected = x[keep].float().mean(0) if keep.any() else torch.zeros(head.dim)
        assert_close(head.mean_feature, expected)
    assert seen[0][1].any()
    before = [head.mean_feature.clone() for head in heads]
    detector(batch(0, 0))  # no foreground: nothing changes
    for head, mean in zip(heads, before, strict=True):
        assert torch.equal(head.mean_feature, mean)


def _recording(head, seen):
    def observe(x, keep=None):
        seen.append((x.detach(), keep))
        type(head).observe(head, x, keep)

    return observe


def test_scoring_changes_without_training(detector):
    detector.eval()
    config = small_config("x", method="deconfound-tde", detections=40)
    for stage in detector.cascade.each:
        stage.head.mean_feature.copy_(torch.rand(stage.head.dim))
    found = {}
    for method, alpha in (("deconfound", 1.5), ("deconfound-tde", 0.0), ("deconfound-tde", 1.5)):
        detector.set_scoring(config.with_options(method=method, alpha=alpha))
        with torch.no_grad():
            found[method, alpha] = detector(batch(3, 2))
    off, zero, tde = found.values()
    assert_close(off.scores, zero.scores)
    assert not torch.allclose(off.scores, tde.scores)
    assert off.masks.shape == (2, 40, 28, 28) and off.labels.max() <= 3
    assert (off.scores[:, :-1] >= off.scores[:, 1:]).all()


def test_eql_spares_the_classes_of_few_images():
    config = small_config("x", method="eql", eql_share=0.05)
    made = build_detector(config, CATEGORIES, fresh=False, images=1000)  # 200, 50 and 3 of them
    assert made.cascade.rare.tolist() == [False, False, True, True]


def test_images_boxes_and_masks_are_mirrored_together():
    made = collate([sample(2), sample(1, 64, 50, seed=1), sample(0)])
    made = made._replace(keys=torch.tensor([3, 1, 2]))
    turned = flip_batch(made)
    again = flip_batch(turned)
    for part in ("images", "boxes", "masks", "labels"):
        assert torch.equal(getattr(again, part), getattr(made, part)), part
    moved = (turned.boxes != made.boxes).any(-1).any(-1)
    assert moved.any()
    for i in range(2):
        for g in range(int((made.labels[i] > 0).sum())):
            x1, y1, x2, y2 = turned.boxes[i, g].int().tolist()
            mask = turned.masks[turned.rows[i, g]]
            assert mask[y1:y2, x1:x2].all() and mask.sum() == (x2 - x1) * (y2 - y1)
    assert not turned.images[1, :, :, 50:].any()  # the padding stays where it was
