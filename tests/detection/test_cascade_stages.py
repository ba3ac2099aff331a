"""The three stages compared with loops over stages, images and boxes: losses and detections."""

import math

import pytest
import torch
from loops import code, moved, overlap
from torch.testing import assert_close

from longtail.detection.data.batches import DetectionBatch, number_masks
from longtail.detection.network import cascade as cascades
from longtail.detection.network.cascade import (
    MASK_MULTIPLE,
    Cascade,
    _pick_first,
    compute_logits,
    compute_scores,
    select,
)
from longtail.detection.network.proposals import ProposalBatch
from longtail.detection.network.regions import cut_masks, pool, stack_levels
from longtail.nn.heads import DeconfoundHead

# the loops and the package assign, sort and suppress alike, however they round
pytestmark = pytest.mark.usefixtures("exact")

STAGES = (  # least overlap, scales of the codes, weight of the losses
    (0.5, (10.0, 10.0, 5.0, 5.0), 1.0),
    (0.6, (20.0, 20.0, 10.0, 10.0), 0.5),
    (0.7, (30.0, 30.0, 15.0, 15.0), 0.25),
)
SIDE, CANONICAL = 64, 56.0
TRUTH = [
    [[4.0, 6.0, 24.0, 30.0], [20.0, 20.0, 52.0, 44.0]],
    [[30.0, 8.0, 60.0, 40.0], [0.0, 0.0, 0.0, 0.0]],  # one object; the other is padding
]
LABELS = [[3, 1], [2, 0]]
OFF = ([1.0, 0, 1, 0], [2.0, 2, 3, 1], [4.0, 2, 2, 5], [5.0, 3, 5, 4], [-9.0, 8, -7, 9])
"""How far proposals lie off a true box: from much overlap to too little."""


@pytest.fixture
def cascade():
    torch.manual_seed(2)
    made = Cascade(
        lambda: DeconfoundHead(6, 4, 2),
        width=8,
        mask_classes=3,
        group_norm=True,
        rois=100,  # more than four times what there are: all are drawn
        canonical=CANONICAL,
        loss="cross-entropy",
        rare=torch.zeros(4, dtype=torch.bool),
        focal_gamma=2.0,
    )
    for stage in made.each:  # moves that matter, each stage its own
        torch.nn.init.normal_(stage.move.weight, std=0.3)
        torch.nn.init.normal_(stage.move.bias, std=0.3)
        stage.head.observe(torch.rand(5, 6))
    return made


@pytest.fixture
def maps():
    generator = torch.Generator().manual_seed(1)
    sizes = {str(i): SIDE // 4 >> i for i in range(4)}
    return {k: torch.rand(2, 8, n, n, generator=generator) for k, n in sizes.items()}


@pytest.fixture
def batch():
    masks = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(2)) < 0.5
    return DetectionBatch(
        images=torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8),
        sizes=torch.tensor([[SIDE, SIDE], [SIDE - 6, SIDE - 2]]),
        boxes=torch.tensor(TRUTH),
        labels=torch.tensor(LABELS),
        masks=masks.byte(),  # noise: every mask another one
        rows=number_masks([2, 1]),
        keys=torch.tensor([5, 6]),
    )


@pytest.fixture
def proposed():
    """Ten and five boxes near true ones; the second image is padded with what must not count."""
    each = [
        [[side + o for side, o in zip(box, off, strict=True)] for box in boxes for off in OFF]
        for boxes in (TRUTH[0], TRUTH[1][:1])
    ]
    padding = [[0.0, 0.0, 30.0, 30.0]] * 5
    present = torch.tensor([[True] * 10, [True] * 5 + [False] * 5])
    return ProposalBatch(torch.tensor([each[0], each[1] + padding]), present, {})


def feature(stage, maps, box, image):
    """(1, D) of one region."""
    return stage.features(
        pool(stack_levels(maps), torch.tensor([box]), torch.tensor([image]), 7, CANONICAL)
    )


def entropy(z, y):
    return math.log(sum(math.exp(value) for value in z)) - z[y]


def smooth(a, b):
    wrong = abs(a - b)
    return wrong**2 / 2 if wrong < 1 else wrong - 0.5


def mask_error(stage, maps, box, image, label, true_mask):
    """Mean binary cross-entropy over the 28 x 28 cells of one region."""
    regions = pool(stack_levels(maps), torch.tensor([box]), torch.tensor([image]), 14, CANONICAL)
    logits = stage.mask(regions, torch.tensor([label]))[0].flatten().tolist()
    aim = cut_masks(true_mask[None].float(), torch.tensor([0]), torch.tensor([box]))
    pairs = zip(logits, aim.flatten().tolist(), strict=True)
    return sum(math.log1p(math.exp(z)) - y * z for z, y in pairs) / 28**2


def expected_losses(cascade, maps, proposed, batch):
    """By loops; also how many regions each stage takes for foreground."""
    present = proposed.present.tolist()
    drawn = proposed.boxes.tolist()
    regions = [(i, drawn[i][p]) for i in range(2) for p in range(10) if present[i][p]]
    regions += [(i, TRUTH[i][g]) for i in range(2) for g in range(2) if LABELS[i][g]]
    losses, found = {}, []
    for s, (least, scales, weight) in enumerate(STAGES):
        stage, after = cascade.each[s], []
        classes = boxes = masks = 0.0
        foreground = 0
        for i, box in regions:
            true = [(overlap(box, TRUTH[i][g]), g) for g in range(2) if LABELS[i][g]]
            best, g = max(true)
            label = LABELS[i][g] if best >= least else 0
            x = feature(stage, maps, box, i)
            move = stage.move(x)[0].tolist()
            classes += entropy(compute_logits(stage.head, x)[0].tolist(), label)
            if label:
                foreground += 1
                aim = code(TRUTH[i][g], box, scales)
                boxes += sum(smooth(a, b) for a, b in zip(move, aim, strict=True))
                true_mask = batch.masks[2 * i + g]  # two masks of the first image, then one
                masks += mask_error(stage, maps, box, i, label, true_mask)
            after.append((i, moved(move, box, scales, *batch.sizes[i].tolist())))
        losses[f"class{s}"] = weight * classes / len(regions)
        losses[f"box{s}"] = weight * boxes / len(regions)
        losses[f"mask{s}"] = weight * masks / foreground
        found.append(foreground)
        regions = after
    return losses, found


def test_losses_of_the_stages_are_those_of_a_loop(cascade, maps, proposed, batch):
    with torch.no_grad():
        expected, foreground = expected_losses(cascade, maps, proposed, batch)
        losses = cascade.compute_losses(maps, proposed, batch)
    assert len(set(foreground)) == 3 and min(foreground) > 0  # the stages differ
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tde", ["off", "plain", "background-exempt"])
def test_detections_of_the_stages_are_those_of_a_loop(
    cascade, maps, proposed, batch, tde, monkeypatch
):
    monkeypatch.setattr(cascades, "MOST_LOGITS", 3 * 4 * 7)  # seven of the twenty regions at a time
    cascade.tde, cascade.alpha = tde, 1.5
    cascade.detections, cascade.score_threshold = 12, 0.01
    found = cascade.detect(maps, proposed, batch.sizes)
    last, mean = torch.zeros(2, 10, 4), torch.zeros(2, 10, 3)
    with torch.no_grad():
        for i in range(2):
            for p in range(10):
                box = proposed.boxes[i, p].tolist()
                for stage, (_, scales, _) in zip(cascade.each, STAGES, strict=True):
                    x = feature(stage, maps, box, i)
                    if proposed.present[i, p]:
                        own = compute_scores([stage.compute_effects(x, tde, 1.5)], tde)
                        mean[i, p] += own[0, 1:] / 3
                    move = stage.move(x)[0].tolist()
                    box = moved(move, box, scales, *batch.sizes[i].tolist())
                last[i, p] = torch.tensor(box)  # does not depend on how classes are scored
        boxes, scores, labels = select(last, mean, 12, 0.01)
        assert (labels > 0).any(1).all()
        assert_close(found.boxes, boxes, rtol=1e-9, atol=1e-9)
        assert_close(found.scores, scores, rtol=1e-9, atol=1e-12)
        assert torch.equal(found.labels, labels)
        for i, m in (labels > 0).nonzero().tolist():
            regions = pool(stack_levels(maps), boxes[i, m, None], torch.tensor([i]), 14, CANONICAL)
            each = [stage.mask(regions, labels[i, m, None]).sigmoid() for stage in cascade.each]
            assert_close(found.masks[i, m], (sum(each) / 3)[0], rtol=1e-9, atol=1e-12)


def test_masks_of_an_image_are_its_first_and_their_number_is_round():
    chosen = torch.tensor([[True, False, True, True], [False] * 4, [False, True, False, False]])
    image, place, there = _pick_first(chosen, 2)
    assert len(image) == len(place) == MASK_MULTIPLE
    real = list(zip(image[there].tolist(), place[there].tolist(), strict=True))
    assert real == [(0, 0), (0, 2), (2, 1)]
    assert there.tolist() == [True] * 3 + [False] * (MASK_MULTIPLE - 3)
    assert [len(part) for part in _pick_first(chosen & False, 2)] == [0, 0, 0]


def test_only_the_first_masks_of_an_image_count(cascade, maps, batch):
    cascade.rois = 8  # two masks an image
    boxes = torch.tensor([[box] * 4 for box in ([4.0, 6, 24, 30], [30.0, 8, 60, 40])])
    boxes = boxes + torch.arange(4.0)[:, None]
    foreground = torch.tensor([[True, False, True, True], [False, False, False, True]])
    labels, rows = torch.tensor([[3] * 4, [2] * 4]), torch.tensor([[0] * 4, [2] * 4])
    stage = cascade.each[0]
    with torch.no_grad():
        found = cascade._mask_loss(
            stage, stack_levels(maps), boxes, foreground, labels, batch.masks.float(), rows
        )
        each = [
            mask_error(stage, maps, boxes[i, r].tolist(), i, int(labels[i, r]), batch.masks[2 * i])
            for i, r in ((0, 0), (0, 2), (1, 3))  # not (0, 3)
        ]
    assert found.item() == pytest.approx(sum(each) / 3, rel=1e-9)
