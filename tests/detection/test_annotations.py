"""Damaged and unusual annotation files: entries are left out and counted, or an error is raised."""

import json
import logging

import pytest
import torch
from faster_coco_eval import mask as library

from longtail.core.errors import UserError
from longtail.detection.average_precision import Detections, measure
from longtail.detection.data.annotations import CROWD, EMPTY, NO_AREA, POLYGON
from longtail.detection.data.dataset import load, read
from longtail.detection.pictures import convert_target

WHOLE = torch.zeros(10, 20, dtype=torch.uint8)
WHOLE[3:7, 2:8] = 1  # the object of the tiny file
PLAIN = {"image_id": 7, "category_id": 9, "bbox": [2, 3, 6, 4]}


def split(folder):
    return read(folder / "instances_train.json", folder / "images")


def test_ids_become_classes_and_boxes_have_two_corners(content, write):
    train, val = load(write(content))
    assert (train.categories.ids, train.categories.names) == ((4, 9), ("ant", "cat"))
    assert (train.categories.images, train.categories.instances) == ((0, 1), (0, 1))
    assert val.categories is train.categories
    image, target = train[0]
    assert (image.shape, image.dtype) == ((3, 10, 20), torch.uint8)
    assert image[:, 0, 0].tolist() == [250, 7, 0]
    assert target["boxes"].tolist() == [[2, 3, 8, 7]] and target["boxes"].dtype == torch.float32
    assert target["labels"].tolist() == [2] and target["labels"].dtype == torch.int64
    assert torch.equal(target["masks"], WHOLE[None])
    assert target["image_id"] == 7 and train.dropped == {}


def test_an_image_without_annotations_is_kept(content, write):
    image, target = split(write(content))[1]
    assert image.shape == (3, 10, 20)
    shapes = [tuple(target[key].shape) for key in ("boxes", "labels", "masks")]
    assert shapes == [(0, 4), (0,), (0, 10, 20)]
    assert target["labels"].dtype == torch.int64 and target["masks"].dtype == torch.uint8


def column_runs():
    """Uncompressed run lengths of the object, counted down the columns."""
    runs, last = [0], 0
    for value in WHOLE.T.flatten().tolist():
        if value != last:
            runs.append(0)
            last = value
        runs[-1] += 1
    return runs


@pytest.mark.parametrize("form", ["uncompressed", "compressed", "two polygons"])
def test_every_form_of_a_mask(content, write, form):
    runs = {"size": [10, 20], "counts": column_runs()}
    if form == "uncompressed":
        segmentation = runs
    elif form == "compressed":
        code = library.frPyObjects(runs, 10, 20)
        segmentation = {"size": code["size"], "counts": code["counts"].decode()}
    else:
        segmentation = [[2, 3, 5, 3, 5, 7, 2, 7], [5, 3, 8, 3, 8, 7, 5, 7]]
    content["annotations"][0]["segmentation"] = segmentation
    _, target = split(write(content))[0]
    assert torch.equal(target["masks"], WHOLE[None])


ODD = {
    "boxes that are not four numbers": {"bbox": [2, 3, float("nan"), 4]},
    "annotations of an image that is not listed": {"image_id": 8},
    "annotations of a category that is not listed": {"category_id": 5},
    "masks of another size than their image": {"segmentation": {"size": [9, 9], "counts": [81]}},
    "polygons that are not lists of at least three points": {"segmentation": [[2, 3, 8, 3]]},
    "polygons with a point far outside any image": {"segmentation": [[2, 3, 8, 3, 1e13, 7]]},
    "objects without a mask": {"segmentation": []},
}


@pytest.mark.parametrize("reason", ODD)
def test_unusable_annotations_are_left_out_and_logged(content, write, caplog, reason):
    good = content["annotations"][0]
    content["annotations"] += [{**good, **ODD[reason]}, {**good, **ODD[reason]}]
    with caplog.at_level(logging.WARNING):
        data = split(write(content))
    assert data.dropped == {reason: 2}
    assert f"left out 2 {reason}" in caplog.text
    assert len(data[0][1]["labels"]) == 1
    assert data.categories.instances == (0, 1)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("cat", "annotations that are not JSON objects"),
        ({"image_id": [7]}, "annotations of an image that is not listed"),
        ({"image_id": 7, "category_id": {}}, "annotations of a category that is not listed"),
        ({**PLAIN, "bbox": "2"}, "boxes that are not four numbers"),
        (
            {**PLAIN, "bbox": [-(10**400), 0, 2 * 10**400, 5]},
            "boxes that are not four numbers",
        ),
        (
            {**PLAIN, "bbox": [-1e300, 0, 2e300, 5]},
            "boxes that are not four numbers",
        ),
        (
            {**PLAIN, "segmentation": [[10**400, 3, 8, 3, 8, 7]]},
            "polygons that are not lists of at least three points",
        ),
    ],
)
def test_entries_of_another_type_are_left_out(content, write, entry, reason):
    content["annotations"].append(entry)
    data = split(write(content))
    assert data.dropped == {reason: 1} and len(data[0][1]["labels"]) == 1


@pytest.mark.parametrize("box", [[2, 3, 0, 4], [30, 3, 6, 4], [2, -4, 6, 4]])
def test_a_box_without_area_is_evaluated_and_not_trained_on(content, write, box):
    flat = {**content["annotations"][0], "bbox": box}
    content["annotations"] += [flat, flat]
    data = split(write(content))
    assert data.dropped == {NO_AREA: 2} and len(data[0][1]["labels"]) == 1
    assert data.categories.instances == (0, 3)
    sure = measure(data, [convert_target(data[0][1])])
    assert sure["AP"] == sure["AP_bbox"] == pytest.approx(100 * 34 / 101)  # one object of three


def test_the_groups_are_the_files_own(content, write):
    def read_groups(*letters):
        for category, letter in zip(content["categories"], letters, strict=True):
            category["frequency"] = letter
        return split(write(content)).categories.groups

    assert read_groups("f", "c") == ("common", "frequent")  # in the order of their ids
    assert read_groups("f", "x") == ("rare", "rare")  # by their images


def test_a_part_of_a_mask_that_encloses_nothing_is_counted(content, write):
    content["annotations"][0]["segmentation"].append([2, 3, 8, 3])
    data = split(write(content))
    assert data.dropped == {POLYGON: 1}
    assert torch.equal(data[0][1]["masks"], WHOLE[None])


@pytest.mark.parametrize("counts", [[30, 4], [30, -5, 175], ["a"], "PQ5", "", None])
def test_run_lengths_that_are_not_whole(content, write, counts):
    content["annotations"][0]["segmentation"] = {"size": [10, 20], "counts": counts}
    assert split(write(content)).dropped == {"run lengths that do not add up to their image": 1}


def test_a_box_that_leaves_the_image_is_cut(content, write):
    content["annotations"][0]["bbox"] = [-3, 3, 40, 40]
    _, target = split(write(content))[0]
    assert target["boxes"].tolist() == [[0, 3, 20, 10]]


def test_crowds_are_no_targets_but_are_kept_for_the_measure(content, write):
    crowd = {**content["annotations"][0], "iscrowd": 1}
    content["annotations"].append(crowd)
    data = split(write(content))
    assert data.dropped == {CROWD: 1}
    assert data.categories.instances == (0, 1)
    assert len(data[0][1]["labels"]) == 1
    assert [each.crowd for each in data.pictures[0].instances] == [False, True]


def test_an_object_whose_mask_covers_nothing_is_no_target_but_is_kept_for_the_measure(
    content, write
):
    outside = {"segmentation": [[30, 3, 36, 3, 36, 7, 30, 7]]}
    content["annotations"].append({**content["annotations"][0], **outside})
    data = split(write(content))
    assert data.dropped == {EMPTY: 1}
    assert data.categories.instances == (0, 2)
    assert len(data[0][1]["labels"]) == 1
    # of two objects the masks of one can be found, and the boxes of both
    one, _ = data.pictures[0].instances
    code = {"size": [10, 20], "counts": one.counts}
    left, top, across, down = one.bbox
    box = torch.tensor([[left, top, left + across, top + down]])
    scores, labels = torch.tensor([0.9, 0.8]), torch.tensor([2, 2])
    found = Detections(7, box.repeat(2, 1), scores, labels, [code] * 2)
    measured = measure(data, [found])
    assert measured["AP_bbox"] == 100 and measured["AP"] == pytest.approx(100 * 51 / 101)


@pytest.mark.parametrize("keep", [0.999, 0.5, 0.0])
def test_a_truncated_file(content, write, keep):
    path = write(content) / "instances_train.json"
    text = path.read_text()
    path.write_text(text[: int(keep * len(text))])
    with pytest.raises(UserError, match=r"instances_train.json is not readable JSON: .*again"):
        read(path, path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("annotations"), "has no list 'annotations'"),
        (lambda c: c.update(images=[]), "has no image or no category"),
        (lambda c: c["images"].append(c["images"][0]), "has the image id 7 twice"),
        (lambda c: c["categories"][0].pop("id"), "lists one category without an id"),
        (lambda c: c["images"][0].pop("width"), "has no valid height and width of image 7"),
        (lambda c: c["images"][0].update(width="20"), "has no valid height and width of image 7"),
        (lambda c: c["images"][0].update(width=10**10), "from 1 to 65,536 pixels"),
        (lambda c: c["images"].append("a.png"), "lists one image without an id"),
        (lambda c: c["images"][0].update(file_name=3), "has neither file_name nor coco_url"),
        (lambda c: c["images"][0].update(neg_category_ids=4), "neg_category_ids of image 7"),
    ],
)
def test_senseless_files_are_refused(content, write, change, message):
    folder = write(content)
    change(content)
    path = folder / "changed.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read(path, folder / "images")


def test_lvis_lists_absent_and_unfinished_classes(content, write):
    content["images"][0]["neg_category_ids"] = [4, 77]
    content["images"][0]["not_exhaustive_category_ids"] = [9]
    first, second = split(write(content)).pictures
    assert (first.absent, first.unfinished) == ({1}, {2})
    assert (second.absent, second.unfinished) == (None, frozenset())


@pytest.mark.parametrize("place", ["b.png", "val2017/b.png"])
def test_lvis_v1_names_its_images_by_their_address(content, write, place):
    folder = write(content)
    for image in content["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/val2017/{image.pop('file_name')}"
    path = folder / "instances_train.json"
    path.write_text(json.dumps(content))
    (folder / "images" / place).parent.mkdir(exist_ok=True)
    (folder / "images" / "b.png").rename(folder / "images" / place)
    assert split(folder)[1][0].shape == (3, 10, 20)
