"""The bench of photographs in small: every way is measured and written down."""

import json
import mmap

import numpy as np
from PIL import Image

from longtail import cli, throughput
from longtail.config import Config
from longtail.data import memory
from longtail.data.generated import SIZES, generate
from longtail.throughput import Setting, bench_images


def test_every_way_is_measured_and_written(tmp_path):
    config = Config.preset("imagenet-lt").with_options(
        **{"method": "deconfound", "backbone": "conv4", "device": "cpu", "workers": 1},
        **{"image_size": 20, "crop_size": 16, "batch_size": 4},
    )
    setting = Setting(config, tmp_path / "images", images=17, files=6, scale=0.06, steps=2)
    found = bench_images(setting, tmp_path / "images.json")
    modes = ["ceiling", "resident", "streaming", "streaming-device", "dataloader"]
    assert [way.mode for way in found] == modes
    assert all(way.images_per_second > 0 and max(way.host_bytes) > 2**20 for way in found)
    assert [way.images for way in found] == [8, 16, 16, 16, 8]
    assert len(found[2].host_bytes) == 5  # at the beginning and after each of four steps
    stored = json.loads((tmp_path / "images.json").read_text())
    assert [way["mode"] for way in stored["throughputs"]] == modes
    way = stored["throughputs"][1]
    hours = 90 * 115_846 / way["images_per_second"] / 3600
    assert abs(way["hours_of_90_epochs"] / hours - 1) < 1e-6
    assert any("8 such devices" in key for key in stored["extrapolated"])
    header, rows = throughput.table(found)
    assert all(len(row) == len(header) for row in rows) and rows[0][2] == "100 %"


def load_image(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_generated_images_have_the_sizes_they_should(tmp_path):
    paths = generate(tmp_path, 40, scale=0.1)
    images = [load_image(path) for path in paths]
    sizes = [image.shape[1::-1] for image in images]
    assert set(sizes) <= {(round(w * 0.1), round(h * 0.1)) for (w, h), _ in SIZES}
    assert len(set(sizes)) > 2
    before = [path.stat().st_mtime_ns for path in paths]
    assert [path.stat().st_mtime_ns for path in generate(tmp_path, 40, scale=0.1)] == before
    assert all(image.std() > 20 for image in images)


def test_memory_of_this_process_is_seen():
    before = memory.used()
    with mmap.mmap(-1, 2**25) as taken:
        taken.write(b"x" * 2**25)
        assert memory.used() - before > 2**24


def test_the_command_measures_the_papers_recipe(tmp_path, monkeypatch, capsys):
    asked = []
    way = throughput.Throughput("ceiling", "resnext50_32x4d", 512, 1024, 0, 2500.0, 2**31, (2**30,))
    monkeypatch.setattr(throughput, "bench_images", lambda *args: (asked.append(args), [way])[1])
    cli.main(["bench", "images", "--images", "600", "--results", str(tmp_path), "--workers", "3"])
    ((setting, out),) = asked
    assert out == tmp_path / "images" / "images.json"
    assert (setting.images, setting.files, setting.config.machine.workers) == (600, 600, 3)
    assert setting.config.backbone == "resnext50_32x4d" and setting.config.method == "deconfound"
    line = capsys.readouterr().out.splitlines()[1]
    assert " ".join(line.split()) == "ceiling 2,500 100 % 2.0 1.0 1.2"
