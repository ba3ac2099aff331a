"""Boxes as plain numbers (x1, y1, x2, y2): slow, obvious, and what the package must equal."""

import math


def overlap(a, b):
    """Intersection over union; 0 for no area."""
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    tall = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    whole = sum((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)) - wide * tall
    return wide * tall / whole if whole else 0.0


def centred(box):
    """Centre, width, height."""
    wide, tall = box[2] - box[0], box[3] - box[1]
    return box[0] + wide / 2, box[1] + tall / 2, wide, tall


def code(truth, box, scales):
    """What moves `box` onto `truth`: (dx, dy, dw, dh), times the scales."""
    (tx, ty, tw, th), (x, y, w, h) = centred(truth), centred(box)
    plain = ((tx - x) / w, (ty - y) / h, math.log(tw / w), math.log(th / h))
    return [value * scale for value, scale in zip(plain, scales, strict=True)]


def moved(code, box, scales, height, width):
    """`box` moved by a code and cut at the border of its image."""
    dx, dy, dw, dh = (value / scale for value, scale in zip(code, scales, strict=True))
    x, y, w, h = centred(box)
    x, y, w, h = x + dx * w, y + dy * h, w * math.exp(dw), h * math.exp(dh)
    corners = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
    return [
        min(max(value, 0.0), limit)
        for value, limit in zip(corners, (width, height) * 2, strict=True)
    ]
