"""Average precision against plain loops, and against LVIS's own code on its own annotations."""

import json

import numpy as np
import pytest
import torch
from loops import overlap
from perturbed import categories_in, perturbed

from longtail.core.errors import UserError
from longtail.detection.average_precision import Detections, lvis_json, measure, repeat_factors
from longtail.detection.data.annotations import Instance, Picture
from longtail.detection.data.dataset import Categories, DetectionSet, read
from longtail.detection.data.masks import encode

SIDE = 24


def average_precision(truths, claims, threshold):
    """AP of one class at one threshold, one detection at a time.

    Args:
        truths: image -> (boxes, whether the class is known absent, whether it is unfinished).
        claims: (score, image, box), of all images.
        threshold: IoU from which a detection may be right.
    """
    objects = sum(len(boxes) for boxes, _, _ in truths.values())
    if objects == 0:
        return None
    taken = set()
    outcomes = []
    for _, image, box in sorted(claims, key=lambda claim: -claim[0]):
        boxes, absent, unfinished = truths[image]
        if not boxes and not absent:
            continue  # the image says nothing of the class
        best, match = threshold, None
        for place, there in enumerate(boxes):
            if (image, place) not in taken and overlap(box, there) >= best:
                best, match = overlap(box, there), place
        if match is not None:
            taken.add((image, match))
            outcomes.append(True)
        elif not unfinished:
            outcomes.append(False)
    total = 0.0
    for step in range(101):  # the best precision at this recall or a higher one
        best = 0.0
        for length in range(1, len(outcomes) + 1):
            right = sum(outcomes[:length])
            if right / objects >= step / 100 - 1e-12:
                best = max(best, right / length)
        total += best
    return 100 * total / 101


def rectangle(box):
    mask = torch.zeros(1, SIDE, SIDE, dtype=torch.uint8)
    mask[0, box[1] : box[3], box[0] : box[2]] = 1
    return encode(mask)[0]


def random_box(random):
    left, top = random.randint(0, SIDE - 8, size=2)
    return [int(left), int(top), int(left + random.randint(3, 9)), int(top + random.randint(3, 9))]


def tiny(seed, *, images=6, classes=4, crowd=False):
    """Rectangles, so that masks and boxes overlap alike, and detections near some of them."""
    random = np.random.RandomState(seed)
    pictures, found = [], []
    for image in range(1, images + 1):
        labels = random.randint(1, classes + 1, size=random.randint(5))
        boxes = [random_box(random) for _ in labels]
        instances = tuple(
            Instance(
                int(label), (b[0], b[1], b[2] - b[0], b[3] - b[1]), rectangle(b)["counts"], crowd
            )
            for label, b in zip(labels, boxes, strict=True)
        )
        draw = random.rand(classes)
        absent = {k for k in range(1, classes + 1) if k not in labels and draw[k - 1] < 0.6}
        unfinished = {int(k) for k in labels if draw[k - 1] < 0.3}
        sizes = {"path": None, "height": SIDE, "width": SIDE}
        pictures.append(
            Picture(image, **sizes, absent=absent, unfinished=unfinished, instances=instances)
        )
        claimed = [
            [max(0, min(side + int(random.randint(-1, 2)), SIDE)) for side in box] for box in boxes
        ]
        claimed += [random_box(random) for _ in range(4)]
        guesses = [*labels, *random.randint(1, classes + 1, size=4)]
        found.append(
            Detections(
                image_id=image,
                boxes=torch.tensor(claimed, dtype=torch.float32),
                scores=torch.tensor(random.permutation(len(claimed)) / 20 + image / 1000),
                labels=torch.tensor(np.array(guesses)),
                masks=[rectangle(box) for box in claimed],
            )
        )
    counts = (200, 50, 5, 0)[:classes]
    categories = Categories(tuple(range(10, 10 + classes)), ("",) * classes, counts, counts)
    return DetectionSet(tuple(pictures), categories, {}), found


def by_loops(data, found, label, threshold):
    truths = {}
    for picture in data.pictures:
        boxes = [each.bbox for each in picture.instances if each.label == label]
        corners = [(x, y, x + w, y + h) for x, y, w, h in boxes]
        truths[picture.id] = (corners, label in picture.absent, label in picture.unfinished)
    claims = [
        (float(score), each.image_id, box.tolist())
        for each in found
        for score, box, guess in zip(each.scores, each.boxes, each.labels, strict=True)
        if int(guess) == label
    ]
    return average_precision(truths, claims, threshold)


@pytest.mark.parametrize("seed", range(4))
def test_equals_plain_loops(seed):
    data, found = tiny(seed)
    thresholds = [0.5 + 0.05 * step for step in range(10)]
    table = [[by_loops(data, found, label, t) for t in thresholds] for label in (1, 2, 3, 4)]
    expected = [None if None in row else sum(row) / 10 for row in table]
    result = measure(data, found)
    for suffix in ("", "_bbox"):
        assert result[f"per_class{suffix}"] == pytest.approx(expected)
        measured = [value for value in expected if value is not None]
        assert result[f"AP{suffix}"] == pytest.approx(sum(measured) / len(measured))
        for name, column in (("AP50", 0), ("AP75", 5)):
            there = [row[column] for row in table if None not in row]
            assert result[f"{name}{suffix}"] == pytest.approx(sum(there) / len(there))
        assert result[f"AP_f{suffix}"] == pytest.approx(expected[0])
        assert result[f"AP_c{suffix}"] == pytest.approx(expected[1])
        rare = [value for value in expected[2:] if value is not None]
        assert result[f"AP_r{suffix}"] == pytest.approx(sum(rare) / len(rare))
    assert {key for key in measure(data, found, masks=False)} == {
        key for key in result if key.endswith("_bbox")
    }


def test_evaluated_in_parts_is_the_same(monkeypatch):
    data, found = tiny(0)
    whole = measure(data, found)
    monkeypatch.setattr("longtail.detection.average_precision.CLASSES_AT_ONCE", 3)
    assert measure(data, found) == whole


def test_a_crowd_is_neither_found_nor_missed():
    data, found = tiny(0, crowd=True)
    assert measure(data, found)["AP"] is None


def test_no_detections_and_no_objects():
    data, found = tiny(0)
    result = measure(data, [])
    assert result["AP"] == 0 and result["AP_bbox"] == 0
    empty = DetectionSet(
        tuple(Picture(p.id, p.path, SIDE, SIDE, None, frozenset(), ()) for p in data.pictures),
        data.categories,
        {},
    )
    assert measure(empty, found)["AP"] is None
    assert measure(empty, [])["per_class"] == [None] * 4


def test_where_everything_is_annotated_every_other_detection_is_wrong():
    """As in COCO, whose images do not list what is absent."""
    data, found = tiny(2)
    whole = [
        Picture(p.id, p.path, SIDE, SIDE, None, frozenset(), p.instances) for p in data.pictures
    ]
    exhaustive = DetectionSet(tuple(whole), data.categories, {})
    listed = [
        Picture(p.id, p.path, SIDE, SIDE, frozenset({1, 2, 3, 4}), frozenset(), p.instances)
        for p in data.pictures
    ]
    assert measure(exhaustive, found) == measure(
        DetectionSet(tuple(listed), data.categories, {}), found
    )
    assert measure(exhaustive, found)["AP"] < measure(data, found)["AP"]


# by the package lvis 0.5.3 on the same detections
OFFICIAL = {
    **{"AP": 47.17512285820623, "AP50": 62.32931487824433, "AP75": 50.6068646675002},
    **{"AP_r": 45.0, "AP_c": 47.650353606789245, "AP_f": 47.09913669720444},
    **{"AP_bbox": 23.694791706828212, "AP50_bbox": 56.18017520042127},
    **{"AP75_bbox": 17.897260373332553, "AP_r_bbox": 25.0, "AP_c_bbox": 21.098166483314998},
    **{"AP_f_bbox": 24.176512137093777},
    **{"AP_s": 51.464041700445186, "AP_m": 45.93398970897668, "AP_l": 57.242939821932495},
    **{"AR": 56.83558337911536, "AR_s": 56.690530019822916, "AR_m": 54.699204742625795},
    **{"AR_l": 60.77467218771566, "AP_s_bbox": 27.120619401120727, "AR_bbox": 30.51068990392713},
    **{"AP_m_bbox": 22.18479317856598, "AP_l_bbox": 30.074735734443003},
}


def test_agrees_with_lvis(shared):
    categories = categories_in(shared / "lvis" / "lvis_v0_5_categories_with_counts.json")
    path = shared / "lvis" / "lvis_val_100.json"
    data = read(path, path.parent, categories=categories)
    found = list(perturbed(data, seed=2))
    assert max(len(each.scores) for each in found) > 300
    result = measure(data, found)
    assert {key: result[key] for key in OFFICIAL} == pytest.approx(OFFICIAL, abs=1e-6)


def test_result_file_for_the_server():
    data, found = tiny(1)
    entries = json.loads(json.dumps(lvis_json(data, found)))
    assert len(entries) == sum(len(each.scores) for each in found)
    best = int(found[0].scores.argmax())
    left, top, right, bottom = found[0].boxes[best].tolist()
    assert entries[0]["image_id"] == 1
    assert entries[0]["category_id"] == 9 + int(found[0].labels[best])
    assert entries[0]["bbox"] == [left, top, right - left, bottom - top]
    assert entries[0]["segmentation"]["counts"] == found[0].masks[best]["counts"].decode()
    assert entries[0]["score"] == float(found[0].scores.max())


def test_at_most_300_of_an_image():
    data, _ = tiny(0)
    many = Detections(1, torch.rand(400, 4), torch.rand(400), torch.ones(400).long(), [])
    entries = lvis_json(data, [many])
    assert len(entries) == 300
    assert min(entry["score"] for entry in entries) >= many.scores.sort().values[99]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": 99}, "image 99: it is not in this data set"),
        ({"image_id": 2}, "image 2: it is not in this data set, or came twice"),
        ({"labels": torch.zeros(1).long()}, "class 0: classes are 1 to 4"),
        ({"masks": []}, "1 detections and 0 masks"),
        ({"scores": torch.tensor([torch.nan])}, "image 1 has a detection whose score is not a fin"),
    ],
)
def test_detections_that_do_not_fit(changes, message):
    data, found = tiny(0)
    whole = {"image_id": 1, "boxes": torch.ones(1, 4), "scores": torch.ones(1)}
    whole |= {"labels": torch.ones(1).long(), "masks": [rectangle([0, 0, 5, 5])]}
    with pytest.raises(UserError, match=message):
        measure(data, [found[1], Detections(**{**whole, **changes})])


def test_repeat_factors_in_three_steps():
    data, _ = tiny(3)
    counts = [0, 0, 0, 0]
    for picture in data.pictures:
        for label in {each.label for each in picture.instances}:
            counts[label - 1] += 1
    data.categories = Categories(data.categories.ids, data.categories.names, counts, counts)
    expected = []
    for picture in data.pictures:
        factor = 1.0
        for each in picture.instances:
            frequency = counts[each.label - 1] / len(data)
            factor = max(factor, (0.5 / frequency) ** 0.5)
        expected.append(factor)
    assert repeat_factors(data, threshold=0.5).tolist() == pytest.approx(expected)
    assert max(expected) > 1
    assert repeat_factors(data).tolist() == [1.0] * len(data)
