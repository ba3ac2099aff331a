"""Regions and the losses of their classifiers, compared with plain loops."""

import json
import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torchvision.ops import roi_align

from longtail.detection.config import HeadConfig
from longtail.detection.network.losses import region_losses
from longtail.detection.network.pyramid import LEVELS
from longtail.detection.network.regions import MaskHead, cut_masks, paste, pool, stack_levels
from longtail.detection.network.sigmoid import SigmoidHead, find_rare_classes


def test_a_region_is_pooled_from_the_level_of_its_size(exact):
    generator = torch.Generator().manual_seed(0)
    maps = {
        name: torch.rand(2, 3, 64 >> i, 64 >> i, generator=generator)
        for i, name in enumerate(LEVELS)
    }
    sides = torch.tensor([4.0, 20.0, 27.0, 30.0, 60.0, 100.0, 130.0, 250.0])
    boxes = torch.stack([torch.tensor([1.0, 2.0, 1 + s, 2 + s]) for s in sides])
    boxes[1::2] += 253 - boxes[1::2, 2:].repeat(1, 2)  # every second one near the far border
    boxes[3], boxes[6] = torch.tensor([[0.0, 226.0, 30, 256], [128.0, 0, 256, 132]])  # and on it
    image = torch.tensor([0, 1] * 4)
    found = pool(stack_levels(maps), boxes, image, 7, canonical=56.0)
    for i, box in enumerate(boxes.tolist()):
        side = math.sqrt((box[2] - box[0]) * (box[3] - box[1]))
        level = min(3, max(0, math.floor(2 + math.log2(side / 56))))
        region = torch.cat([image[i].float().view(1), boxes[i]])[None]
        scale = 1 / (4 * 2**level)
        expected = roi_align(maps[LEVELS[level]], region, 7, scale, 2, aligned=True)
        assert_close(found[i : i + 1], expected)


def bilinear(mask, x, y):
    """Value of a mask (nested lists) between the centres of its pixels, 0 outside."""
    height, width = len(mask), len(mask[0])
    x, y = x - 0.5, y - 0.5
    if x < -1 or x > width or y < -1 or y > height:
        return 0.0
    x, y = max(x, 0.0), max(y, 0.0)
    left, top = min(int(x), width - 1), min(int(y), height - 1)
    right, below = min(left + 1, width - 1), min(top + 1, height - 1)
    u, v = (x - left if left < right else 0.0), (y - top if top < below else 0.0)
    upper = (1 - u) * mask[top][left] + u * mask[top][right]
    lower = (1 - u) * mask[below][left] + u * mask[below][right]
    return (1 - v) * upper + v * lower


def test_cut_masks_are_those_of_a_loop():
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(2, 12, 16, generator=generator) < 0.5).float()
    boxes = torch.tensor([[1.0, 2.0, 9.5, 11.0], [0.0, 0.0, 16.0, 12.0]])
    found = cut_masks(masks, torch.tensor([1, 0]), boxes)
    for n, row in enumerate((1, 0)):
        plain, (x1, y1, x2, y2) = masks[row].tolist(), boxes[n].tolist()
        for i in range(28):
            for j in range(28):
                points = [
                    bilinear(plain, x1 + (j + a) * (x2 - x1) / 28, y1 + (i + b) * (y2 - y1) / 28)
                    for a in (0.25, 0.75)
                    for b in (0.25, 0.75)
                ]
                value = sum(points) / 4
                if abs(value - 0.5) > 1e-4:
                    assert found[n, i, j] == (value >= 0.5), (n, i, j)


def test_pasted_masks_are_interpolated_as_by_grid_sample():
    """One box is inside the image, one leaves it, one lies between two pixels' centres."""
    torch.manual_seed(0)
    masks = torch.rand(3, 28, 28)
    boxes = torch.tensor([[3.2, 4.1, 30.7, 20.4], [-5, -3, 60, 45], [7.1, 7.1, 7.3, 7.4]])
    x, y = torch.arange(50) + 0.5, torch.arange(40) + 0.5
    for mask, box, found in zip(masks, boxes, paste(masks, boxes, 40, 50), strict=True):
        across = 2 * (x - box[0]) / (box[2] - box[0]) - 1
        down = 2 * (y - box[1]) / (box[3] - box[1]) - 1
        grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1)
        value = F.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0]
        near = (value - 0.5).abs() < 1e-4  # where rounding decides
        assert torch.equal(found | near, (value >= 0.5) | near)
        assert near.sum() < 5


def test_a_mask_that_is_cut_and_pasted_is_the_mask():
    y, x = torch.arange(40)[:, None] + 0.5, torch.arange(50) + 0.5
    disc = (((x - 22) ** 2 + (y - 18) ** 2) < 15**2).float()
    box = torch.tensor([[7.0, 3.0, 37.0, 33.0]])
    cut = cut_masks(disc[None], torch.tensor([0]), box)
    back = paste(cut, box, 40, 50)[0]
    both = (back & (disc > 0)).sum() / (back | (disc > 0)).sum()
    assert both > 0.93
    assert not back[:, 38:].any() and not back[35:].any()
    assert paste(torch.zeros(0, 28, 28), torch.zeros(0, 4), 4, 5).shape == (0, 4, 5)


def test_a_mask_head_gives_the_mask_of_the_asked_class():
    torch.manual_seed(0)
    head = MaskHead(8, 5, group_norm=True).double()
    regions, labels = torch.rand(3, 8, 14, 14).double(), torch.tensor([1, 5, 2])
    found = head(regions, labels)
    features = head.layers(regions)
    for n, label in enumerate(labels.tolist()):
        every = torch.stack([(features[n] * w[:, None, None]).sum(0) for w in head.weight])
        assert_close(found[n], every[label - 1] + head.bias[label - 1])
    assert MaskHead(8, 1, group_norm=False)(regions[:0].float(), labels[:0]).shape == (0, 28, 28)


def binary_losses(z, y, rare):
    """Cross-entropy, focal loss and EQL of one region, class by class; 0 is the background."""
    focal = eql = 0.0
    for j in range(1, len(z)):
        p = 1 / (1 + math.exp(-z[j] if j == y else z[j]))  # of the right decision on class j
        focal += (0.25 if j == y else 0.75) * -((1 - p) ** 2) * math.log(p)
        eql += 0.0 if y and j != y and rare[j] else -math.log(p)
    softmax = math.log(sum(math.exp(v) for v in z)) - z[y]
    return {"cross-entropy": softmax, "focal": focal, "eql": eql}


def test_losses_of_the_classifiers_are_those_of_loops():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    rare = find_rare_classes((500, 101, 100, 3), at_most=100)
    assert rare.tolist() == [False, False, False, True, True]
    rows = zip(z.tolist(), y.tolist(), strict=True)
    expected = [binary_losses(*row, rare.tolist()) for row in rows]
    for kind in ("cross-entropy", "focal", "eql"):
        found = region_losses(kind, z, y, rare, 2.0).tolist()
        assert found == pytest.approx([each[kind] for each in expected], rel=1e-9)
    # foreground of other classes does not push a rare class down, background does
    z.requires_grad_()
    region_losses("eql", z, y, rare, 2.0).sum().backward()
    assert z.grad[1, 3] == 0 and z.grad[1, 4] == 0 and z.grad[3, 4] == 0
    assert z.grad[0, 3] > 0 and z.grad[1, 2] > 0 and z.grad[3, 3] < 0
    assert not z.grad[:, 0].any()  # the background has no decision of its own


def test_a_sigmoid_head_starts_at_its_prior():
    head = SigmoidHead(8, 5, prior=0.01)
    assert_close(head(torch.zeros(2, 8)).sigmoid(), torch.full((2, 5), 0.01))
    assert head.bias.requires_grad


def test_a_sure_focal_loss_has_a_finite_gradient():
    z = torch.full((1, 3), 200.0, requires_grad=True)
    region_losses("focal", z, torch.tensor([1]), torch.zeros(3, dtype=torch.bool), 0.5).backward()
    assert z.grad.isfinite().all()


def test_eql_spares_the_915_classes_of_lvis(shared):
    info = json.loads((shared / "lvis" / "lvis_v0_5_categories_with_counts.json").read_text())
    images = tuple(each["image_count"] for each in info)
    assert sum(n <= 100 for n in images) == 915
    for total in (56_740, 57_263):  # annotated images of LVIS v0.5, and all of them
        assert find_rare_classes(images, HeadConfig().eql_share * total).sum() == 915
