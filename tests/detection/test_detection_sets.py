"""Loading detection data by folder or name, and missing files."""

import json
import sys

import numpy as np
import pytest
import torch
from perturbed import categories_in
from PIL import Image

from longtail.core.errors import UserError
from longtail.detection.data.dataset import Categories, load, read
from longtail.detection.data.masks import decode, encode, import_coco


def test_groups_by_training_images():
    images = (0, 1, 10, 11, 100, 101, 5000)
    categories = Categories(tuple(range(7)), ("",) * 7, images, images)
    rare, common, frequent = ("rare",) * 3, ("common",) * 2, ("frequent",) * 2
    assert categories.groups == rare + common + frequent


@pytest.mark.parametrize("file", ["lvis_v0_5_categories_with_counts", "lvis_v1_train_cat_info"])
def test_groups_are_those_of_lvis(shared, file):
    path = shared / "lvis" / f"{file}.json"
    info = sorted(json.loads(path.read_text()), key=lambda category: category["id"])
    letters = [group[0] for group in categories_in(path).groups]
    assert letters == [category["frequency"] for category in info]


def test_coco_small(shared):
    train, val = load("coco-small", shared)
    assert (len(train), len(val), sum(train.categories.instances)) == (500, 176, 4191)
    groups = train.categories.groups
    assert [groups.count(name) for name in ("rare", "common", "frequent")] == [26, 53, 1]
    image, target = val[0]
    assert image.shape[1:] == target["masks"].shape[1:]


def test_an_image_of_another_size_or_none(content, write):
    folder = write(content)
    content["images"][0]["width"] = 21
    (folder / "instances_train.json").write_text(json.dumps(content))
    data = read(folder / "instances_train.json", folder / "images")
    with pytest.raises(UserError, match=r"it is 20x10 and its annotations say 21x10"):
        data[0]
    (folder / "images" / "a.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"a.png cannot be read"):
        data[0]


def test_masks_are_not_decoded_at_a_size_that_is_not_the_images(content, write, monkeypatch):
    folder = write(content)
    content["images"][0].update(height=60_000, width=60_000)  # 3.6 gigabytes a mask
    (folder / "instances_train.json").write_text(json.dumps(content))
    data = read(folder / "instances_train.json", folder / "images")
    monkeypatch.setattr("longtail.detection.data.masks.decode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(UserError, match=r"a.png cannot be read .it is 20x10 and its"):
        data[0]


def test_missing_images_are_counted(content, write):
    folder = write(content)
    (folder / "images" / "b.png").unlink()
    with pytest.raises(UserError, match=r"1 of 2 images is missing, such as .*b\.png"):
        load(folder)


def test_a_digest_sees_masks_crowds_and_files(content, write):
    folder, path = write(content), "instances_train.json"
    thing, image = content["annotations"][0], content["images"][0]
    before = [split.digest for split in load(folder)]
    assert [split.digest for split in load(folder)] == before
    for entry, change in (
        (thing, {"segmentation": [[2, 3, 8, 3, 8, 7]]}),  # the box is the same
        (thing, {"iscrowd": 1}),
        (image, {"neg_category_ids": [4]}),
        (image, {"not_exhaustive_category_ids": [4]}),
    ):
        old = dict(entry)
        entry.update(change)
        (folder / path).write_text(json.dumps(content))
        train, val = load(folder)
        assert train.digest != before[0] and val.digest == before[1], change
        entry.clear()
        entry.update(old)
    (folder / path).write_text(json.dumps(content))
    assert load(folder)[0].digest == before[0]
    redrawn = Image.effect_noise((20, 10), 50).convert("RGB")
    redrawn.save(folder / "images" / "b.png")
    assert load(folder)[0].digest != before[0]


def test_other_categories_than_in_training(content, write):
    folder = write(content)
    content["categories"][1]["name"] = "bee"
    (folder / "instances_val.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"instances_val.json has other categories.*4 'ant'"):
        load(folder)


@pytest.mark.parametrize("name", ["lvis-v0.5", "lvis-v1"])
def test_presets_name_the_missing_files_and_their_folder(tmp_path, monkeypatch, name):
    version = name.removeprefix("lvis-")
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    for root, says in (
        (None, rf"FOLDER/{name}/ has "),
        (tmp_path, rf"{tmp_path / name} must have"),
    ):
        with pytest.raises(UserError) as caught:
            load(name, root)
        message = str(caught.value)
        assert says in message
        for wanted in (f"lvis_{version}_train.json", f"lvis_{version}_val.json", "train2017/"):
            assert wanted in message


@pytest.mark.parametrize("name", ["lvis-v0.5", "lvis-v1"])
def test_presets_are_found_by_their_own_files(content, write, tmp_path, name):
    folder = write(content).rename(tmp_path.with_name(name))
    for split in ("train", "val"):
        file = f"{name.replace('-', '_')}_{split}.json"
        (folder / f"instances_{split}.json").rename(folder / file)
    train, val = load(name, folder.parent)
    assert len(train) == len(val) == 2


def test_a_name_that_is_not_known():
    with pytest.raises(UserError, match=r"unknown detection data 'shape-lvis'.*'shapes-lvis'"):
        load("shape-lvis")


def test_the_extra_is_not_installed(content, write, monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UserError, match=r"faster_coco_eval: pip install 'longtail\[detection\]'"):
        load(write(content))


def test_masks_are_encoded_as_the_library_encodes_them():
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(40, 37, 53, dtype=torch.bool)
    for i in range(36):  # the first four stay empty
        noise = torch.rand(37, 53, generator=generator) < i / 35
        masks[i + 4] = noise if i % 2 else noise.cummax(dim=i // 2 % 2).values
    masks[5] = True
    expected = import_coco().mask.encode(np.asfortranarray(masks.byte().permute(1, 2, 0).numpy()))
    found = encode(masks)
    assert [each["counts"] for each in found] == [each["counts"] for each in expected]
    assert all(list(each["size"]) == [37, 53] for each in found)
    back = decode([each["counts"] for each in found], 37, 53)
    assert torch.equal(back, masks.byte()) and encode(masks[:0]) == []


@pytest.mark.parametrize("annotated_upright", [True, False])
def test_exif_rotation_follows_the_annotations(content, write, annotated_upright):
    folder = write(content)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter clockwise
    pixels = np.zeros((10, 20, 3), np.uint8)
    pixels[:, 10:] = 255  # white on the right as stored, at the bottom upright
    Image.fromarray(pixels).save(folder / "images" / "a.png", exif=exif)
    if annotated_upright:
        content["images"][0].update(height=20, width=10)
        (folder / "instances_train.json").write_text(json.dumps(content))
    image, target = read(folder / "instances_train.json", folder / "images")[0]
    assert image.shape[1:] == target["masks"].shape[1:]
    white = image[0, 10:] if annotated_upright else image[0, :, 10:]
    assert white.numel() == 100 and (white == 255).all() and image[0].sum() == 100 * 255


def test_images_without_annotations_are_upright(content, write):
    from longtail.detection.reopen import open_files

    folder = write(content)
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.open(folder / "images" / "a.png")
    stored.save(folder / "images" / "turned.jpg", exif=exif)
    files = open_files([folder / "images" / "turned.jpg"], Categories((1,), ("a",), (1,), (1,)))
    assert (files.pictures[0].height, files.pictures[0].width) == (20, 10)
    assert files[0][0].shape == (3, 20, 10)
