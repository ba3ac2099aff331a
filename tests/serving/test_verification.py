"""Exports, saved models and the cache are verified when they are used and by `longtail verify`."""

import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail.cli import parser as cli
from longtail.core import manifest
from longtail.core.errors import UserError
from longtail.data.decoding.cache import CachedStore, cache_folder
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.serving import verification
from longtail.serving.verification import verify_all


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    config, data = tiny_config(epochs=1, backbone="identity"), tiny_data(images=False)
    out = tmp_path_factory.mktemp("runs") / "run"
    return fit_all(config, ["deconfound-tde"], [0], out=out, data=data)[0]


@pytest.fixture(scope="module")
def exports(run, tmp_path_factory) -> Path:
    """A folder with an export in each format, and a saved model."""
    folder = tmp_path_factory.mktemp("exports")
    for suffix in ("safetensors", "onnx", "pt2"):
        lt.export(run, out=folder / f"model.{suffix}")
    lt.load_model(run).save_pretrained(folder / "saved")
    return folder


def damage(path: Path, tries: int, seed: int = 0):
    """Yield after each of some flips and cuts of a file, which is whole again at the end."""
    chosen, content = random.Random(seed), path.read_bytes()
    for number in range(tries):
        changed = bytearray(content)
        changed[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
        path.write_bytes(content[: chosen.randrange(len(content))] if number % 4 == 0 else changed)
        yield number
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "model.onnx", "saved/model.safetensors", "saved/config.json"],
)
def test_every_flip_and_cut_of_an_export_is_found(name, exports, tmp_path):
    shutil.copytree(exports, tmp_path, dirs_exist_ok=True)
    path = tmp_path / name
    opened = path if path.parent == tmp_path else path.parent
    assert verify_all(opened).verified == 1
    lt.load_model(opened)
    for _ in damage(path, 40):
        with pytest.raises(UserError, match=path.name):
            lt.load_model(opened)
        assert len(verify_all(opened).damage) == 1
    assert verify_all(opened).verified == 1


def test_a_seal_that_is_gone_is_found(exports, tmp_path):
    mark, other = b"longtail-sha256:", b"longtail-sha257:"
    for name in ("model.safetensors", "model.onnx"):
        content = (exports / name).read_bytes()
        assert content.count(mark) == 1
        (tmp_path / name).write_bytes(content.replace(mark, other))
        with pytest.raises(UserError, match="its SHA-256 is gone"):
            lt.load_model(tmp_path / name)
    with (
        zipfile.ZipFile(exports / "model.pt2") as old,
        zipfile.ZipFile(tmp_path / "model.pt2", "w") as new,
    ):
        for member in old.infolist():
            new.writestr(member, old.read(member).replace(mark, other))
    assert "its SHA-256 is gone" in verify_all(tmp_path / "model.pt2").damage[0]


def test_every_flip_and_cut_of_a_torch_export_file_is_found(exports, tmp_path):
    path = tmp_path / "model.pt2"
    shutil.copy(exports / "model.pt2", path)
    assert verify_all(path).verified == 1
    for _ in damage(path, 60):
        assert "model.pt2 is damaged" in verify_all(path).damage[0]


def test_weights_of_another_origin_have_nothing_to_verify(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    save_file({"w": torch.zeros(3)}, path)
    assert verify_all(path).unverified == [path]


class Store:
    """Decodes each row to its number."""

    def read(self, rows, allocate):
        pixels = allocate((len(rows), 3, 8, 8))
        pixels[:] = rows.numpy()[:, None, None, None]
        return torch.from_numpy(pixels), torch.arange(len(rows))


def test_every_flip_and_cut_of_the_cache_is_found_and_repaired(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    cached, rows = CachedStore(Store(), lambda: "a"), torch.arange(9)
    expected = cached.read(rows)[0].clone()  # the file beneath it changes
    (path,) = cache_folder().glob("*.npy")
    assert verify_all(cache_folder()).verified == 1
    for _ in damage(path, 40):
        assert len(verify_all(cache_folder()).damage) == 1
        caplog.clear()
        assert cached.read(rows)[0].equal(expected)
        assert "damaged and is written again" in caplog.text
    assert verify_all(path).verified == 1


def test_the_command_prints_the_damage_and_a_summary(run, exports, tmp_path, capsys):
    shutil.copytree(run.folder, tmp_path / "runs" / "a" / "s0")
    shutil.copytree(run.folder, tmp_path / "runs" / "a" / "s0" / "tuning")
    shutil.copytree(run.folder, tmp_path / "runs" / "b")
    words = ["verify", str(tmp_path / "runs"), str(exports / "model.safetensors")]
    cli.main(words)
    (summary,) = capsys.readouterr().out.splitlines()
    assert summary.endswith("files verified, 0 damaged or missing")
    for path in (tmp_path / "runs" / "b", tmp_path / "runs" / "a" / "s0" / "tuning"):
        (path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(SystemExit, match="1"):
        cli.main(words)
    *lines, summary = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("model.safetensors is damaged" in line for line in lines)
    assert "delete" in lines[1] and "b/result.json" in lines[1]
    assert "2 damaged or missing" in summary
    (tmp_path / "runs" / "b" / "manifest.json").unlink()
    with pytest.raises(SystemExit, match="1"):
        cli.main(words)
    assert "without a recorded hash" in capsys.readouterr().out


def test_a_path_that_cannot_be_verified_hides_no_damage(exports, tmp_path, capsys):
    good, bad = exports / "model.safetensors", tmp_path / "bad.safetensors"
    bad.write_bytes(b"x")
    nowhere = [str(tmp_path / name) for name in ("nowhere", "elsewhere")]
    with pytest.raises(SystemExit, match="1"):
        cli.main(["verify", nowhere[0], str(bad), nowhere[1]])
    out, err = capsys.readouterr()
    assert "bad.safetensors" in out and "0 files verified, 1 damaged or missing" in out
    assert all(f"{name} does not exist" in err.replace("\n", " ") for name in nowhere)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["verify", nowhere[0], str(good)])
    out, err = capsys.readouterr()
    assert "1 file verified, 0 damaged" in out and "does not exist" in err


def test_a_folder_of_exports_is_verified(exports, tmp_path):
    shutil.copytree(exports, tmp_path, dirs_exist_ok=True)
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}', encoding="utf-8")
    assert verify_all(tmp_path).verified == 4 and verify_all(tmp_path / "model.onnx").verified == 1
    (tmp_path / "model.pt2").write_bytes(b"x")
    (tmp_path / "saved" / "config.json").write_bytes(b"{}")
    damage = verify_all(tmp_path).damage
    assert len(damage) == 2 and "config.json" in damage[0] and "model.pt2" in damage[1]


def test_damage_is_found_at_any_depth(run, exports, tmp_path):
    for place in ("rivals/bbn", "tuning", "own", "own/rivals/bbn", "own/rivals/bbn/tuning"):
        shutil.copytree(run.folder, tmp_path / place, dirs_exist_ok=True)
        (tmp_path / place / "model.safetensors").write_bytes(b"x")
    (tmp_path / "models" / "x").mkdir(parents=True)
    shutil.copy(exports / "model.onnx", tmp_path / "models" / "model.onnx")
    (tmp_path / "models" / "x" / "m.safetensors").write_bytes(b"x")
    found = verify_all(tmp_path)
    assert (
        len(found.damage) == 6 and found.verified == 5 * (verify_all(run.folder).verified - 1) + 1
    )


def test_exports_inside_a_run_are_verified(run, exports, tmp_path):
    shutil.copytree(run.folder, tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "more").mkdir()
    shutil.copy(exports / "model.onnx", tmp_path / "runs" / "a" / "more")
    shutil.copy(exports / "model.safetensors", tmp_path / "runs" / "a" / "mine.safetensors")
    assert verify_all(tmp_path).verified == verify_all(run.folder).verified + 2
    for name in ("mine.safetensors", "more/model.onnx"):
        (tmp_path / "runs" / "a" / name).write_bytes(b"x")
    found = verify_all(tmp_path / "runs" / "a").damage
    assert ["mine.safetensors" in found[0], "model.onnx" in found[1], len(found)] == [True, True, 2]


def test_files_of_other_programs_are_no_damage(exports, tmp_path):
    import onnx
    from safetensors.torch import save_file

    shutil.copy(exports / "model.onnx", tmp_path)
    np.save(tmp_path / "mine.npy", np.zeros(3))
    found = verify_all(tmp_path)
    assert (found.verified, found.damage, found.unverified) == (1, [], [])
    with pytest.raises(UserError, match="mine.npy is not a file that longtail verifies"):
        verify_all(tmp_path / "mine.npy")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    save_file({"w": torch.zeros(3)}, foreign / "a.safetensors")
    graph = onnx.load(exports / "model.onnx")
    del graph.metadata_props[:]
    onnx.save(graph, foreign / "b.onnx")
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(1),)), foreign / "c.pt2")
    graph.graph.node[0].domain = "an.operator.of.their.own"
    onnx.save(graph, foreign / "d.onnx")
    np.savez(foreign / "e.npz", rows=np.zeros(3))
    names = ["a.safetensors", "b.onnx", "c.pt2", "d.onnx", "e.npz"]
    found = verify_all(tmp_path)
    assert (found.verified, found.damage) == (1, [])
    assert [path.name for path in found.unverified] == names
    for name in names[1:]:
        content = (foreign / name).read_bytes()
        (foreign / name).write_bytes(content[: len(content) // 2])
        assert name in verify_all(foreign / name).damage[0]
    assert len(verify_all(tmp_path).damage) == 4


def test_folders_of_other_programs_are_no_damage(tmp_path):
    from safetensors.torch import save_file

    model, site, hidden = (tmp_path / name for name in ("bert", "site", ".venv"))
    for folder in (model, site, hidden):
        folder.mkdir()
    (model / "config.json").write_text('{"model_type": "bert"}')
    save_file({"w": torch.zeros(3)}, model / "model.safetensors")
    (site / "config.yaml").write_text("title: a page")
    (site / "manifest.json").write_text('{"name": "a page", "files": {}}')
    (hidden / "broken.onnx").write_bytes(b"x")
    found = verify_all(tmp_path)
    assert (found.verified, found.damage) == (0, [])
    assert found.unverified == [model / "model.safetensors"]
    (model / "config.json").write_text("3")
    assert verify_all(model).damage == []
    assert len(verify_all(hidden).damage) == 1  # a folder that is named is not hidden
    (site / "manifest.json").unlink()
    (site / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')  # not as we write it
    assert verify_all(tmp_path).damage == []


def test_an_export_beside_another_programs_configuration_is_verified(exports, tmp_path):
    path = shutil.copy(exports / "model.safetensors", tmp_path / "model.safetensors")
    (tmp_path / "config.yaml").write_text("port: 80")
    assert verify_all(tmp_path).verified == 1
    for _ in damage(path, 4):
        assert len(verify_all(tmp_path).damage) == 1


def test_an_export_in_the_folder_of_a_damaged_run_is_verified(run, exports, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "manifest.json").write_text("{")
    shutil.copy(exports / "model.safetensors", folder / "class_means.safetensors")
    found = verify_all(folder)
    assert (found.verified, len(found.damage)) == (1, 1) and "manifest.json" in found.damage[0]


def test_a_saved_model_that_lost_its_weights_is_found(exports, tmp_path):
    folder = shutil.copytree(exports / "saved", tmp_path / "saved")
    (folder / "model.safetensors").unlink()
    (damage,) = verify_all(tmp_path).damage
    assert f"{folder / 'model.safetensors'} is missing. " in damage


def test_without_onnxruntime_the_other_files_are_verified(exports, tmp_path, monkeypatch):
    import onnx

    graph = onnx.load(exports / "model.onnx")
    del graph.metadata_props[:]
    onnx.save(graph, tmp_path / "foreign.onnx")
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    monkeypatch.setattr(verification, "find_spec", lambda name: None)
    found = verify_all(tmp_path)
    assert len(found.damage) == 1 and found.unverified == [tmp_path / "foreign.onnx"]


def test_a_run_of_a_later_version_hides_no_damage(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "a")
    later = manifest._render(manifest.read_manifest(run.folder), manifest.FORMAT + 1)
    (tmp_path / "a" / "manifest.json").write_text(later)
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    damage = verify_all(tmp_path).damage
    assert len(damage) == 2 and "use the version that wrote it" in damage[0]


def test_a_run_that_lost_its_configuration_is_found(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "config.yaml").unlink()
    (damage,) = verify_all(tmp_path / "runs").damage
    assert "a/config.yaml is missing. Restore it" in damage


def test_a_folder_in_place_of_a_file_is_damage(exports, tmp_path):
    shutil.copytree(exports / "saved", tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").unlink()
    (tmp_path / "saved" / "model.safetensors").mkdir()
    assert "model.safetensors" in verify_all(tmp_path).damage[0]
    with pytest.raises(UserError, match="model.safetensors"):
        lt.load_model(tmp_path / "saved")


@pytest.mark.parametrize("place", ["", "nowhere", "empty", "others"])
def test_nothing_to_verify_is_a_mistake(place, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "config.json").write_bytes(b"{}")  # of another program
    with pytest.raises(SystemExit, match="2"):
        cli.main(["verify", *([str(tmp_path / place)] if place else [])])
    assert "run" in capsys.readouterr().err
