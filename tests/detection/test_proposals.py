"""The proposal network."""

import torch
from torch.testing import assert_close

from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import DetectionBatch
from longtail.detection.network.cascade import FOREGROUND
from longtail.detection.network.proposals import Proposals


def test_anchors_are_exact_whatever_the_precision_of_the_maps(monkeypatch):
    torch.manual_seed(0)
    proposals = Proposals(8, 10, 4.0).eval()
    seen = []
    best = proposals._select
    monkeypatch.setattr(proposals, "_select", lambda *a: seen.append(a[2]) or best(*a))
    batch = DetectionBatch(
        images=torch.zeros(1, 3, 256, 1344, dtype=torch.uint8),
        sizes=torch.tensor([[256, 1344]]),
        boxes=torch.zeros(1, 1, 4),
        labels=torch.zeros(1, 1, dtype=torch.long),
        masks=torch.zeros(0, 256, 1344, dtype=torch.uint8),
        rows=torch.zeros(1, 1, dtype=torch.long),
        keys=torch.zeros(1, dtype=torch.long),
    )
    maps = {str(i): torch.rand(1, 8, 64 >> i, 336 >> i) for i in range(5)}
    with torch.no_grad():
        proposals(maps, batch)
        with torch.autocast("cpu", torch.bfloat16):  # as a pyramid without norm layers gives them
            proposals({name: level.bfloat16() for name, level in maps.items()}, batch)
    exact, half = seen
    assert half.dtype == torch.float32
    assert_close(half, exact, rtol=0, atol=0)
    # on the finest level centres are four pixels apart, three anchors at each
    middle = (exact[:, :2] + exact[:, 2:]) / 2
    assert_close(middle[3 * 335], torch.tensor([4.0 * 335, 0.0]))


def test_the_least_that_is_allowed_still_trains():
    """Below it every anchor of a level may be a point, or no region foreground."""

    def areas(scale):
        (finest, *_) = Proposals(8, 10, scale).anchors.cell_anchors
        return [(right - left) * (bottom - top) for left, top, right, bottom in finest.tolist()]

    scale, rois = (DetectionConfig.ranges[name][0] for name in ("anchor_scale", "rois"))
    assert min(areas(scale)) > 0 and min(areas(scale - 0.01)) == 0
    assert int(rois * FOREGROUND) == 1 and int((rois - 1) * FOREGROUND) == 0
