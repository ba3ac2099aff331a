"""The generated stand-in for LVIS, and pictures of detections."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.core.errors import UserError
from longtail.detection.average_precision import Detections, measure
from longtail.detection.data.dataset import load
from longtail.detection.data.shapes import generate as shapes
from longtail.detection.data.shapes.objects import OUTLINES, TEXTURES
from longtail.detection.data.shapes.recipes import LVIS_IMAGES, ThousandShapesRecipe
from longtail.detection.data.shapes.scenes import Style
from longtail.detection.pictures import convert_target, draw, join_pictures

TINY = shapes.ShapesRecipe(train=24, val=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shapes")
    shapes.write(place, TINY)
    return place


def test_frequencies_of_the_whole_set():
    counts = shapes.ShapesRecipe().count_train_images()
    assert (counts.max(), counts.min(), len(counts)) == (960, 4, 80)
    groups = [sum(counts > 100), sum((counts > 10) & (counts <= 100)), sum(counts <= 10)]
    assert groups == [20, 36, 24]
    assert shapes.ShapesRecipe().count_val_images().min() == 16


def test_each_shape_is_frequent_in_one_texture_and_rare_in_another():
    ranked = shapes.ShapesRecipe().rank_categories()
    assert sorted(ranked) == list(shapes.ShapesRecipe().categories)
    for first in range(0, 80, 16):
        assert {name.split()[1] for name in ranked[first : first + 16]} == set(OUTLINES)
    assert {name.split()[0] for name in ranked[:16]} == set(TEXTURES)


def test_a_thousand_categories_are_as_rare_as_those_of_lvis(shared):
    info = json.loads((shared / "lvis" / "lvis_v1_train_cat_info.json").read_text())
    real = sorted((each["image_count"] for each in info), reverse=True)
    assert tuple(real[::100]) == LVIS_IMAGES
    groups = [[n <= 10, 10 < n <= 100, n > 100] for n in real]
    parts = 1000 * np.mean(groups, axis=0)
    counts = ThousandShapesRecipe().count_train_images()
    assert (len(counts), counts.min(), counts.max()) == (1000, 1, 330)
    own = [sum(counts <= 10), sum((counts > 10) & (counts <= 100)), sum(counts > 100)]
    assert own == [279, 385, 336] and own == pytest.approx(parts, abs=3)
    assert ThousandShapesRecipe().count_val_images().min() == 8


def test_each_family_has_frequent_and_rare_colours():
    recipe = ThousandShapesRecipe()
    ranked, counts = recipe.rank_categories(), recipe.count_train_images()
    assert sorted(ranked) == list(recipe.categories) and len(set(ranked)) == 1000
    for family in recipe.families:
        own = [n for name, n in zip(ranked, counts, strict=True) if name.endswith(f" {family}")]
        assert len(own) == 10 and min(own) <= 10 and max(own) > 100


def test_processes_draw_what_one_process_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "CHUNK", 2)
    recipe = ThousandShapesRecipe(train=3, val=3, style=Style(size=48, small=4, large=9))
    for name, fork in (("one", False), ("two", True)):
        monkeypatch.setattr(shapes, "can_fork", lambda fork=fork: fork)
        shapes.write(tmp_path / name, recipe)
    train, val = load(tmp_path / "one")
    assert len(train.categories.ids) == 1000 and (len(train), len(val)) == (3, 3)
    one, two = (
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))]
        for name in ("one", "two")
    )
    assert one == two


def test_categories_of_one_scene_occur_together():
    """Of two that are at home in one scene, an image with the first has the second more often."""
    recipe = shapes.ShapesRecipe()
    counts = np.full(80, 200)
    contents = list(shapes.draw_contents(counts, 2000, recipe, np.random.RandomState(0)))
    present = np.zeros((2000, 80))
    for image, ranks in enumerate(contents):
        present[image, ranks] = 1
    assert (present.sum(axis=0) == 200).all()
    homes = recipe.make_random("homes").randint(recipe.scenes, size=80)
    together = present.T @ present
    same = (homes[:, None] == homes) & ~np.eye(80, dtype=bool)
    assert together[same].mean() > 1.5 * together[homes[:, None] != homes].mean()


def test_the_loader_reads_every_annotation(folder):
    train, val = load(folder)
    assert (len(train), len(val)) == (24, 8)
    assert train.dropped == val.dropped == {}
    content = json.loads((folder / "instances_train.json").read_text())
    assert tuple(c["image_count"] for c in content["categories"]) == train.categories.images
    forms = {type(each["segmentation"]) for each in content["annotations"]}
    assert forms == {list, dict}  # seen whole, and hidden in part
    for split in (train, val):
        for place in range(len(split)):
            image, target = split[place]
            assert image.shape == (3, 160, 160)
            for box, mask in zip(target["boxes"], target["masks"], strict=True):
                rows, columns = torch.nonzero(mask, as_tuple=True)
                around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                assert (box - torch.tensor(around)).abs().max() <= 3


def test_masks_of_one_image_do_not_overlap_much(folder):
    """Masks leave out the pixels that hide an object; polygons only touch."""
    train, _ = load(folder)
    for place in range(len(train)):
        masks = train[place][1]["masks"]
        twice = (masks.sum(dim=0) > 1).sum()
        assert twice <= 0.03 * masks.sum() + 2


def test_images_list_absent_and_unfinished_categories(folder):
    content = json.loads((folder / "instances_train.json").read_text())
    there = {image["id"]: set() for image in content["images"]}
    for each in content["annotations"]:
        there[each["image_id"]].add(each["category_id"])
    for image in content["images"]:
        absent = set(image["neg_category_ids"])
        assert 20 < len(absent) < 60 and not absent & there[image["id"]]
        assert set(image["not_exhaustive_category_ids"]) <= there[image["id"]]


def test_the_seed_decides(tmp_path):
    again = replace(TINY, train=9, val=6, style=Style(size=48, small=4, large=10))
    for name, recipe in (("one", again), ("two", again), ("other", replace(again, seed=1))):
        shapes.write(tmp_path / name, recipe)
    one, two, other = (
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))]
        for name in ("one", "two", "other")
    )
    assert one == two != other


def test_drawn_once(tmp_path, monkeypatch):
    monkeypatch.setitem(shapes.RECIPES, "shapes-lvis", lambda: replace(TINY, train=9, val=6))
    first = shapes.draw_set("shapes-lvis", tmp_path)
    assert first.parent == tmp_path and first.name.startswith("shapes-lvis-")
    kept = (first / "instances_val.json").stat().st_mtime_ns
    train, val = load("shapes-lvis", tmp_path)
    assert (len(train), len(val)) == (9, 6)
    assert (first / "instances_val.json").stat().st_mtime_ns == kept
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_two_processes_draw_at_once(tmp_path, monkeypatch):
    def slower(place, recipe):
        place.mkdir()
        monkeypatch.setattr(shapes, "write", quick)
        shapes.draw_set("shapes-lvis", tmp_path)  # the other one, meanwhile

    def quick(place, recipe):
        place.mkdir()
        (place / "whole").touch()

    monkeypatch.setattr(shapes, "write", slower)
    folder = shapes.draw_set("shapes-lvis", tmp_path)
    assert (folder / "whole").exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"shapes-lvis-\w+ cannot be written"):
        shapes.draw_set("shapes-lvis", tmp_path / "file")


def test_the_truth_has_full_average_precision(folder):
    train, val = load(folder)
    result = measure(val, [convert_target(val[place][1]) for place in range(len(val))])
    assert result["AP"] == pytest.approx(100)
    assert result["AP_bbox"] == pytest.approx(100)
    assert train.categories == val.categories


def test_a_picture_shows_what_is_sure_enough(folder):
    train, _ = load(folder)
    image, target = train[0]
    found = convert_target(target)
    plain = draw(image, found, train.categories, least_score=1.1)
    assert plain.size == (640, 640)
    assert np.array_equal(plain, Image.fromarray(image.permute(1, 2, 0).numpy()).resize((640, 640)))
    full = np.asarray(draw(image, found, train.categories)).astype(int)
    changed = np.abs(full - np.asarray(plain)).sum(axis=2) > 0
    inside = target["masks"].amax(dim=0).bool().repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert changed[inside.numpy()].mean() > 0.95
    assert changed[~inside.numpy()].mean() < 0.35  # boxes, names, smooth edges
    row = join_pictures([plain, plain], ["before", "after"])
    assert row.width == 1286 and row.height > 640


def test_a_picture_of_boxes_alone_at_the_border(folder):
    train, _ = load(folder)
    boxes = torch.tensor([[-5.0, -5, 40, 30], [150, 150, 170, 170]])
    found = Detections(1, boxes, torch.tensor([0.9, 0.4]), torch.tensor([1, 80]), [])
    picture = draw(train[0][0], found, train.categories)
    assert picture.size == (640, 640)
