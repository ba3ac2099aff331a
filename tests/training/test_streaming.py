"""Streamed images train the same model as resident ones; errors of workers are explained."""

import itertools
import logging
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import helpers
from helpers import stepping_config
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.data import reader
from longtail.data.base import Split
from longtail.data.decoding import cache, host, image_store
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.decoding.workers import prefetch_depth
from longtail.data.load import load
from longtail.runs.fit import fit_all
from longtail.serving.evaluate import evaluate
from longtail.training import batches
from longtail.training.batches import count_workers, stream_batches

HERE = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """22 photographs of three classes, of several sizes."""
    random = np.random.RandomState(0)
    for i in range(22):
        label = (0, 0, 0, 1, 1, 2)[i % 6]
        folder = tmp_path / "photos" / ("test" if i >= 16 else "train") / "abc"[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.randint(0, 256, (12 + i % 3, 14, 3)).astype(np.uint8) // 2 + 40 * label
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("name", "workers", "augment"),
    [
        ("deconfound", 2, "resized-crop"),
        ("bbn", 0, "resized-crop"),
        ("bbn", 0, "randaugment"),
        ("deconfound-contrastive", 0, "crop-flip"),
    ],
)
def test_streamed_and_resident_images_train_the_same_model(
    photos, tmp_path: Path, name, workers, augment
):
    options = {"image_size": 10}
    config = stepping_config(augment=augment, crop_size=8, epochs=1, batch_size=4, **options)
    config = config.with_options(workers=workers, accumulate=2, keep_short_batch=True)
    runs = []
    for stream in (False, True):
        data = load(str(photos), stream=stream, **options)
        asked = config.with_options(stream=stream)
        runs += fit_all(asked, [name], [0], out=tmp_path / str(stream), data=data)
    weights = [run.load_model() for run in runs]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert runs[0].result["per_class"] == runs[1].result["per_class"]
    again = evaluate(runs[1], data=data)
    assert again.overall == pytest.approx(runs[1].result["overall"], abs=1e-3)


def test_batches_come_in_their_order_and_sizes(photos: Path, monkeypatch):
    monkeypatch.setattr(batches, "CHUNK", 3)
    whole = load(str(photos), image_size=10).train.input_tensor
    inputs = load(str(photos), image_size=10, stream=True).train.inputs
    assert isinstance(inputs, StreamedImages) and inputs.shape == whole.shape and inputs.ndim == 4
    order = torch.tensor([5, 3, 15, 0, 0, 9, 1]).split([4, 3])
    points = torch.rand(len(whole), 5)  # embeddings may be too many for a device as well
    for machine in (MachineConfig(workers=0), MachineConfig(workers=2)):
        (made,) = stream_batches(points, order[:1], machine, HERE)
        assert torch.equal(made, points[order[0]])
        for source in (inputs, whole):
            made = list(stream_batches(source, order, machine, HERE))
            assert [torch.equal(a, whole[b]) for a, b in zip(made, order, strict=True)] == [
                True
            ] * 2
    assert torch.equal(inputs[torch.tensor([3, 1])].decode([0, 1]).images, whole[[3, 1]])


def test_a_black_image_is_logged_once(photos: Path, caplog):
    names = [photos / "train" / "c" / f"{number}.jpg" for number in (93, 94)]
    for name in names:
        name.write_bytes(b"\xff\xd8 no image")
    with pytest.raises(
        UserError, match=r"93\.jpg cannot be read .* Nor can \S*94\.jpg\. Repair or re"
    ):
        load(str(photos), image_size=32, stream=True)
    data = load(str(photos), image_size=32, stream=True, corrupt="skip")
    assert caplog.text.count("93.jpg is black") == 1  # where the mean was counted
    inputs, places = data.train.inputs, [torch.arange(len(data.train))]
    inputs.reported.clear()
    for _ in range(2):
        list(stream_batches(inputs, places, MachineConfig(workers=0), HERE))
    assert caplog.text.count("93.jpg is black") == caplog.text.count("94.jpg is black") == 2
    assert "left out" not in caplog.text


def test_the_statistics_are_those_of_the_images(photos: Path):
    kept, streamed = (load(str(photos), image_size=10, stream=s) for s in (False, True))
    assert streamed.mean == kept.mean and streamed.std == kept.std
    assert streamed.counts == kept.counts and streamed.classes == kept.classes


def test_what_does_not_fit_into_memory_is_streamed(photos: Path, monkeypatch, caplog):
    monkeypatch.setattr(reader, "free_memory", lambda: 10)
    monkeypatch.setattr(reader, "free_disk_space", lambda: 22 * 300)
    with caplog.at_level(logging.WARNING):
        data = load(str(photos), image_size=10)
    assert isinstance(data.train.inputs, StreamedImages)
    assert "decoded for each batch (--stream): 22 images of 300 bytes would take" in caplog.text
    with pytest.raises(UserError, match="--image-size"):
        load(str(photos))


def test_what_is_kept_on_disk_need_not_fit_into_memory(photos: Path, monkeypatch):
    monkeypatch.setattr(reader, "free_memory", lambda: 10)
    assert isinstance(load(str(photos), image_size=10).train.inputs, torch.Tensor)
    monkeypatch.setattr(reader, "free_disk_space", lambda: 0)  # it is there already
    assert isinstance(load(str(photos), image_size=10).train.inputs, torch.Tensor)
    held = load(str(photos), image_size=10, val_fraction=0.3)  # what is held out is copied
    assert isinstance(held.train.inputs, StreamedImages)


def test_workers_need_not_be_forked(photos: Path, tmp_path: Path):
    """Spawned ones get what they hold in a pickle."""
    (tmp_path / "list.txt").write_text("a/0.png 0\nb/3.png 1\n")
    listed = {"list": tmp_path / "list.txt", "root": photos / "train"}
    for data in (
        load(str(photos), image_size=10, stream=True),
        load(**listed, image_size=10, stream=True),
    ):
        inputs = data.train.inputs
        copied = pickle.loads(pickle.dumps(inputs))
        assert torch.equal(copied.decode([0, 1]).images, inputs.decode([0, 1]).images)
        assert copied.store.describe(1) == inputs.store.describe(1)


def test_streaming_needs_files_and_a_size(photos: Path):
    for name, options in ((str(photos), {}), ("letters-lt", {})):
        with pytest.raises(UserError, match="--stream is for images of folders and lists"):
            load(name, stream=True, **options)


def test_a_streamed_image_that_cannot_be_read_is_named(photos: Path, caplog):
    path = photos / "train" / "b" / "3.png"
    path.write_bytes(path.read_bytes()[:60])
    inputs = load(str(photos), image_size=10, stream=True, corrupt="skip").train.inputs
    everything = [torch.arange(len(inputs))]
    with caplog.at_level(logging.WARNING):
        (made,) = stream_batches(inputs, everything, MachineConfig(workers=0), HERE)
    assert f"{path} is black: it cannot be read" in caplog.text
    assert (made.flatten(1).amax(1) == 0).sum() == 1
    assert torch.equal(Split(inputs, everything[0]).load_inputs(), made)  # none is lost on the way
    stops = replace(inputs.store.config, corrupt="stop")
    inputs = replace(inputs, store=replace(inputs.store, config=stops))
    with pytest.raises(UserError, match=r"b/3\.png cannot be read \(.*--corrupt skip"):
        list(stream_batches(inputs, everything, MachineConfig(workers=2), HERE))


def test_a_decode_is_kept_and_found_again(photos: Path, monkeypatch):
    def decoded_again(*args, **options):
        raise AssertionError("it is decoded again")

    first = load(str(photos), image_size=10)
    one = next((photos / "train" / "a").iterdir())
    stamp = one.stat().st_mtime_ns
    with monkeypatch.context() as once:
        once.setattr(image_store, "decode_in_threads", decoded_again)
        again = load(str(photos), image_size=10)
    assert torch.equal(first.train.input_tensor, again.train.input_tensor)
    Image.new("RGB", (20, 20), (1, 2, 3)).save(one)
    os.utime(one, ns=(stamp + 1, stamp + 1))  # in case the clock is too coarse
    changed = load(str(photos), image_size=10)
    assert changed.subset_sha256 != first.subset_sha256


def test_a_data_set_is_the_same_in_memory_and_streamed(photos: Path):
    held, streamed = (load(str(photos), image_size=10, stream=stream) for stream in (False, True))
    assert held.subset_sha256 == streamed.subset_sha256
    one = next((photos / "train" / "a").iterdir())
    one.write_bytes(one.read_bytes()[:-1] + b"?")  # of the same name and size
    assert load(str(photos), image_size=10, stream=True).subset_sha256 != held.subset_sha256


def test_images_of_another_size_are_another_data_set(photos: Path):
    sizes = [load(str(photos), image_size=size).subset_sha256 for size in (10, 12)]
    assert sizes[0] != sizes[1]


def test_every_file_counts_by_its_size(photos: Path, monkeypatch):
    monkeypatch.setattr(cache, "PROBED_FILES", 1)  # looked into: the first alone
    before = load(str(photos), image_size=10, stream=True).subset_sha256
    last = max((photos / "train" / "b").iterdir())
    last.write_bytes(last.read_bytes() + b"?")
    assert load(str(photos), image_size=10, stream=True).subset_sha256 != before


@pytest.mark.parametrize("options", [{}, {"image_size": 10}])
def test_a_link_to_nowhere_is_named_or_left_out(tmp_path: Path, options):
    helpers.photos(tmp_path)
    whole = len(load(tmp_path, **options).train)
    (tmp_path / "train" / helpers.PHOTOS[1] / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"gone\.png cannot be read"):
        load(tmp_path, **options)
    assert len(load(tmp_path, corrupt="skip", **options).train) == whole


def test_workers_share_the_cores_of_the_host(tmp_path: Path, monkeypatch):
    (tmp_path / "cpu.max").write_text("max 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)), raising=False)
    monkeypatch.setattr(host, "CONTAINER", tmp_path)
    machine = MachineConfig()
    assert count_workers(machine) == 32 and count_workers(machine, streams=2) == 16
    assert count_workers(MachineConfig(devices=8)) == 4
    assert count_workers(MachineConfig(workers=6), streams=2) == 3
    assert count_workers(MachineConfig(workers=0), streams=2) == 0
    (tmp_path / "cpu.max").write_text("1650000 100000\n")
    assert count_workers(machine) == 16
    (tmp_path / "cpu.max").unlink()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "16")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "32")
    assert count_workers(machine) == 4
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "256")  # the 32 are this task's own
    assert count_workers(machine) == 32
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    monkeypatch.delenv("SLURM_CPUS_ON_NODE")
    assert count_workers(machine) == 2


STREAM = """
import torch
from longtail.core.config import MachineConfig
from longtail.training.batches import stream_batches
HERE = torch.device("cpu")
images = torch.zeros(256, 3, 32, 32, dtype=torch.uint8)
list(stream_batches(images, images[:, 0, 0, 0].long().split(64), MachineConfig(workers=2), HERE))
"""


def test_workers_without_room_in_shared_memory_are_no_endless_wait():
    error = helpers.in_little_shared_memory(100, STREAM)
    assert "WorkerLost: a worker found no room in shared memory: give the container more" in error


def test_workers_go_ahead_as_far_as_shared_memory_has_room(monkeypatch, tmp_path: Path):
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)

    def taken(each: int, workers: int, size: int, loaders: int) -> int:
        """Bytes at most: a reader copies a chunk while the next comes, and is asked for anew."""
        return sum(size for _ in range(loaders) for _ in range(workers * each + 2))

    for workers, size, loaders in itertools.product((1, 2, 5), (1, 3, 7, 10, 1000), (1, 2, 8)):
        fits = [n for n in (1, 2, 3, 4) if taken(n, workers, size, loaders) <= 100]
        assert prefetch_depth(4, workers, size, loaders) == max(fits, default=1)
    assert [prefetch_depth(4, 5, size) for size in (1, 7, 10, 1000)] == [4, 2, 1, 1]
    assert prefetch_depth(4, 0, 1) is None

    def without(_):
        raise FileNotFoundError

    monkeypatch.setattr(shutil, "disk_usage", without)
    assert prefetch_depth(4, 5, 1000) == 4


@pytest.mark.parametrize(
    ("method", "options"), [("deconfound", {"heads": 2}), ("decouple-oltr", {})]
)
def test_a_small_card_gets_the_same_model_in_parts(method, options, tmp_path: Path):
    from helpers import tiny_data

    config = stepping_config(backbone="identity", **options)
    with helpers.float64():
        data = tiny_data(images=False, counts=(24, 12, 5))
        runs = [
            fit_all(
                config.with_options(accumulate=parts),
                [method],
                [0],
                out=tmp_path / str(parts),
                data=data,
            )[0]
            for parts in (1, 4)
        ]
    whole, parts = (run.load_model() for run in runs)
    for name in whole:  # weights, and what follows the features: mean feature, memory
        torch.testing.assert_close(
            whole[name], parts[name], rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )
    losses = [[record["loss"] for record in run.metrics] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert runs[0].result["sweep"] == runs[1].result["sweep"]
    with pytest.raises(
        UserError, match=r"--batch-size 8 .* 1 ranks of this run times --accumulate 3: use 6"
    ):
        fit_all(config.with_options(accumulate=3), ["cosine"], [0], out=tmp_path / "x", data=data)


def test_out_of_memory_errors_name_the_sizes_and_what_helps(tmp_path: Path, monkeypatch):
    from helpers import tiny_data
    from longtail.training.trainer import Trainer

    def full(self, size):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "step", full)
    with pytest.raises(UserError) as caught:
        fit_all(
            stepping_config(accumulate=2), ["cosine"], [0], out=tmp_path / "x", data=tiny_data()
        )
    assert "a step of 4 inputs of 3x8x8 through conv4 is too large" in str(caught.value)
    assert "--accumulate 4" in str(caught.value) and "--batch-size (now 8)" in str(caught.value)
