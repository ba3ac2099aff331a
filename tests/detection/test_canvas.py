"""The canvas of an image under group normalisation does not depend on other images."""

import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import float64
from longtail.core.config import MachineConfig
from longtail.detection.data import batches, feeds
from longtail.detection.data.batches import PreparedImages
from longtail.detection.data.dataset import Categories
from longtail.detection.data.feeds import ResidentFeed, StreamedFeed, choose_feed
from longtail.detection.network.detector import build_detector
from longtail.detection.predict import open_feed, predict
from longtail.detection.reopen import OpenDetector, open_files
from longtail.detection.train import fit
from longtail.training.launch import launch
from small_detector import small_config, small_data

CATEGORIES = Categories((1, 2), ("a", "b"), (9, 9), (9, 9))
CPU = torch.device("cpu")
SIZES = ((48, 48), (96, 40), (40, 60), (33, 90), (48, 64))
"""Heights and widths."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Noise, an image of each size."""
    folder, random = tmp_path_factory.mktemp("mixed"), np.random.RandomState(0)
    paths = [folder / f"{i}.png" for i in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        Image.fromarray(random.randint(0, 255, (*size, 3), np.uint8)).save(path)
    return open_files(paths, CATEGORIES)


def as_they_are(data, least=(0, 0)) -> PreparedImages:
    """Images that are not resized."""
    prepared = PreparedImages(data, 1, 1, least)
    prepared.compute_size = lambda i: SIZES[i]
    return prepared


def test_an_image_is_on_the_larger_of_the_least_canvas_and_its_own(data):
    prepared = as_they_are(data, (64, 64))
    expected = []
    for height, width in SIZES:
        own = [32, 32]
        while own[0] < height:
            own[0] += 32
        while own[1] < width:
            own[1] += 32
        expected.append((max(own[0], 64), max(own[1], 64)))
    assert [prepared.fit_canvas([i]) for i in range(5)] == expected
    assert expected == [(64, 64), (96, 64), (64, 64), (64, 96), (64, 64)]
    assert prepared.fit_canvas(range(5)) == (96, 96)


def test_only_images_of_one_canvas_are_side_by_side(data):
    prepared, free = as_they_are(data, (64, 64)), as_they_are(data)
    assert prepared.split_batches([0, 2, 4, 1, 3, 0], 2) == [[0, 2], [4], [1], [3], [0]]
    assert free.split_batches([0, 2, 4, 1, 3, 0], 4) == [[0, 2, 4, 1], [3, 0]]  # as they come
    assert as_they_are(data, (96, 96)).split_batches([0, 1, 2, 3, 4], 9) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("least", "kind"), [((0, 0), StreamedFeed), ((64, 64), StreamedFeed), ((96, 128), ResidentFeed)]
)
def test_batches_do_not_depend_on_the_memory_that_is_free(data, least, kind, monkeypatch):
    prepared, alike = (
        PreparedImages(data, 48, 96, least),
        PreparedImages(data.select([0, 0]), 48, 96, least),
    )
    first, second = choose_feed(prepared, CPU, 1), choose_feed(alike, CPU, 1)
    assert isinstance(first, kind) and isinstance(second, ResidentFeed)
    monkeypatch.setattr(feeds, "HOST_BYTES", 0)
    for source, images in ((first, range(5)), (second, range(2))):
        order = source.data.split_batches(images, 2)
        poor = choose_feed(source.data, CPU, 1)
        assert isinstance(poor, StreamedFeed)
        for one, other in zip(source.read(order), poor.read(order), strict=True):
            assert all(map(torch.equal, one, other))


def test_a_resident_set_is_held_once(data, monkeypatch):
    """The padded copies of an image are freed while the set is still being read."""
    made, most, pad = [], [], batches._pad_to_canvas

    def padded(*given):
        made.append(weakref.ref(found := pad(*given)))
        most.append(sum(each() is not None for each in made))
        return found

    monkeypatch.setattr(batches, "_pad_to_canvas", padded)
    ResidentFeed(PreparedImages(data, 48, 96, (96, 128)), CPU, 1)
    assert len(made) == 2 * len(data) and max(most) <= 2 + 2  # image and masks, of two at a time


def test_batches_are_the_same_streamed_and_resident(data):
    prepared = PreparedImages(data, 48, 96, (96, 128))  # that of a training set it is part of
    order = [[1, 0], [4, 2]]
    pairs = zip(
        ResidentFeed(prepared, CPU, 1).read(order),
        StreamedFeed(prepared, CPU, 0).read(order),
        strict=True,
    )
    for resident, streamed in pairs:
        assert resident.images.shape == (2, 3, 96, 128)
        for name, one, other in zip(resident._fields, resident, streamed, strict=True):
            assert torch.equal(one, other), name


def test_detections_do_not_depend_on_the_other_images(data, monkeypatch):
    config = small_config("x", image_size=48, max_size=96, batch_size=5)
    fabric = launch(MachineConfig(device="cpu"))
    with float64():
        detector = build_detector(config, CATEGORIES, fresh=False, canvas=(64, 96))

        def found(images):
            return list(predict(detector, config, data, fabric, images))

        alone = [found([i])[0] for i in range(5)]
        assert isinstance(open_feed(detector, config, data.select([0]), fabric), ResidentFeed)
        beside = found(range(5))
        pair = found([0, 1])  # the second one is taller
        monkeypatch.setattr(feeds, "HOST_BYTES", 0)
        assert isinstance(open_feed(detector, config, data.select([0]), fabric), StreamedFeed)
        streamed = [found([i])[0] for i in range(5)]
        together = found(range(5))
    for others in (beside, pair, streamed, together):
        for one, other in zip(alone, others, strict=False):
            assert one.image_id == other.image_id and len(one.scores) == 5
            torch.testing.assert_close(one.scores, other.scores, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(one.boxes, other.boxes, rtol=1e-9, atol=1e-9)
            assert torch.equal(one.labels, other.labels)


def test_the_canvas_is_kept_with_the_weights(tmp_path):
    place = tmp_path / "set"
    data = small_data(place)
    config = small_config(place, image_size=70, max_size=70)
    run = fit(config, out=tmp_path / "run", data=data)
    assert run.load_model()["canvas"].tolist() == [96, 96]
    assert run.load_checkpoint()["detector"]["canvas"].tolist() == [96, 96]
    opened = OpenDetector(run.folder, machine=MachineConfig(device="cpu"))
    assert opened.detector.canvas.tolist() == [96, 96]
    frozen = config.with_options(norm="frozen", pretrained=True)
    built = build_detector(frozen, data[0].categories, fresh=False, canvas=(96, 96))
    assert built.canvas.tolist() == [0, 0]  # its statistics do not see the padding
