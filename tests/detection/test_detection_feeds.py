"""Feeds of batches: resident and streamed ones are equal, and workers report their errors."""

from dataclasses import replace

import pytest
import torch

from helpers import in_little_shared_memory
from longtail.core.errors import UserError
from longtail.detection.data import batches, feeds
from longtail.detection.data.dataset import DetectionSet
from small_detector import small_config


def test_streamed_batches_equal_resident_ones(data):
    pictures = data[0].pictures
    first, *rest = pictures[1].instances
    crowded = replace(pictures[1], instances=(*rest, replace(first, crowd=True)))
    mixed = DetectionSet((pictures[0], crowded, *pictures[2:]), data[0].categories, {})
    prepared = batches.PreparedImages(mixed, 48, 48)  # resized, too
    device = torch.device("cpu")
    order = [[4, 1], [2, 3]]
    pairs = zip(
        feeds.ResidentFeed(prepared, device, 1).read(order),
        feeds.StreamedFeed(prepared, device, 0).read(order),
        strict=True,
    )
    for resident, streamed in pairs:
        for name, one, other in zip(resident._fields, resident, streamed, strict=True):
            assert torch.equal(one, other), name
        assert resident.images.shape == (2, 3, 64, 64) and resident.sizes.tolist() == [[48, 48]] * 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_raises_its_own_error(data, tmp_path, workers):
    picture = data[0].pictures[1]
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(picture.path.read_bytes()[:400])
    pictures = (data[0].pictures[0], replace(picture, path=broken))
    prepared = batches.PreparedImages(DetectionSet(pictures, data[0].categories, {}), 64, 64)
    streamed = feeds.StreamedFeed(prepared, torch.device("cpu"), workers).read([[0], [0, 1]])
    assert next(streamed).images.shape == (1, 3, 64, 64)
    with pytest.raises(UserError, match=r"broken.jpg cannot be read .*: repair or replace it") as e:
        next(streamed)
    assert "Traceback" not in str(e.value)
    del e  # its frames refer to it, and keep the worker until the garbage collector waits for it


def test_workers_send_masks_packed(data):
    samples = [batches.PreparedImages(data[0], 64, 64)[i] for i in (0, 1)]
    sent, whole = batches.collate_and_pack(samples).masks, batches.collate(samples).masks
    assert 8 * sent.nbytes == whole.nbytes > 0


def test_the_bytes_of_a_batch_are_counted(data):
    streamed = feeds.StreamedFeed(batches.PreparedImages(data[0], 64, 64), torch.device("cpu"), 0)
    for images in ([0], [0, 1, 2]):
        sent = streamed._make_batch(images)
        assert 0 <= streamed._count_bytes(images) - sent.images.nbytes - sent.masks.nbytes < 64 * 64


STREAM = """
import sys
import torch
from longtail.detection.data import batches, feeds
from longtail.detection.data import dataset as data
prepared = batches.PreparedImages(data.load(sys.argv[1])[0], 64, 64)
list(feeds.StreamedFeed(prepared, torch.device("cpu"), 1).read([[0, 1, 2, 3, 4, 5]]))
"""


def test_workers_without_shared_memory_raise_an_error(place, data):
    said = in_little_shared_memory(64, STREAM, place)
    assert "WorkerLost: a worker found no room in shared memory: give the container more" in said
    assert "--workers; 0 decodes without any" in said
    assert small_config(place, workers=0).machine.workers == 0
