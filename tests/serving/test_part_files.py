"""Two ranks write what one writes, and a killed command goes on where it stopped."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

import longtail as lt
from helpers import on_two_ranks, photos, read_npz
from longtail.cli import parser as cli
from longtail.cli import prediction_file
from longtail.core.errors import UserError
from longtail.core.files import write_tensors
from longtail.nn import backbones
from longtail.serving import embeddings, part_files, predictor
from longtail.serving.part_files import Parts, share_parts

BATCH = 5
"""Images of a batch. Beside others in its batch, an image may get other last digits."""


class KilledError(Exception):
    pass


def kill_now() -> None:
    raise KilledError


def kill_after(monkeypatch, written: int) -> None:
    """Let a process end as if it was killed when it has written so many parts."""
    write, left = Parts.write, [written]

    def write_or_die(self: Parts, number: int, content: bytes) -> None:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        write(self, number, content)

    monkeypatch.setattr(Parts, "write", write_or_die)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of photographs and a model of them."""
    folder = tmp_path_factory.mktemp("parts")
    photos(folder / "photos")
    options = {"image_size": 12, "epochs": 1, "batch_size": 8, "backbone": "conv4"}
    run = lt.fit(str(folder / "photos"), "cosine", out=folder / "run", device="cpu", **options)
    lt.export(run, out=folder / "m.safetensors")
    shutil.copytree(folder / "photos", folder / "found")
    (folder / "found" / "train" / "ant" / "5.png").write_bytes(b"broken")
    return folder


def predict(folder: Path, out: Path, size: int, *words: str) -> int:
    """Run the command with parts of `size` images; return the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "BATCH", BATCH)
        patch.setattr(prediction_file, "PART", size)
        model, images = str(folder / "m.safetensors"), str(folder / "found")
        with pytest.raises(SystemExit) as stop:  # one image is unreadable, and 0 cannot be
            cli.main(["predict", model, images, "-o", str(out), *words])
    return stop.value.code


def predict_and_embed(folder: Path, out: Path) -> None:
    """Write OUT.csv and OUT.npz in small parts, as one of the ranks."""
    words = [str(folder / "m.safetensors"), str(folder / "found"), "-o", f"{out}.csv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "BATCH", BATCH)
        patch.setattr(prediction_file, "PART", BATCH)
        shrink_parts(patch)
        cli.main(["predict", *words])  # exits with 0, though one image is unreadable
        lt.embed(folder / "run", f"{out}.npz")


def shrink_parts(patch: pytest.MonkeyPatch) -> None:
    """Make parts of 6 images, in batches of 3."""
    patch.setattr(embeddings, "PART", 6)
    patch.setattr(embeddings, "choose_batch_size", lambda *_: 3)


def test_two_ranks_write_what_one_writes(folder, tmp_path, monkeypatch, capsys):
    assert predict(folder, tmp_path / "one.csv", 2048) == 1
    alone = capsys.readouterr().err
    on_two_ranks(predict_and_embed, folder, tmp_path / "two", store=tmp_path / "store")
    assert (tmp_path / "two.csv").read_text() == (tmp_path / "one.csv").read_text()
    skipped = [line for line in alone.splitlines() if line.startswith("skipped")]
    assert len(skipped) == 1 and "5.png" in skipped[0] and skipped[0] in capsys.readouterr().err
    monkeypatch.setattr(embeddings, "choose_batch_size", lambda *_: 3)
    one = read_npz(lt.embed(folder / "run", tmp_path / "one.npz"))
    two = read_npz(tmp_path / "two.npz")
    assert list(one) == list(two) and one["x_train"].shape == (14, 128)
    assert all((one[name] == two[name]).all() for name in one)
    assert not list(tmp_path.glob("*.parts"))


def test_the_file_holds_what_would_be_printed(folder, tmp_path, capsys):
    words = [str(folder / "m.safetensors"), str(folder / "photos" / "test")]
    for name, flags, also in (
        ("a.csv", ["--csv"], []),
        ("A.CSV", ["--csv"], []),
        ("a.jsonl", ["--json"], []),
        ("a.json", ["--json"], ["--json"]),
        ("a.txt", [], []),
    ):
        cli.main(["predict", *words, *flags])
        printed = capsys.readouterr().out
        cli.main(["predict", *words, *also, "-o", str(tmp_path / name)])
        assert (tmp_path / name).read_text() == printed != capsys.readouterr().out


def test_a_killed_command_goes_on_where_it_stopped(folder, tmp_path, monkeypatch, capsys, caplog):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert predict(folder, whole, BATCH) == 1
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        kill_after(patch, 2)
        predict(folder, out, BATCH)
    kept = sorted(path.name for path in tmp_path.glob("out.jsonl.parts/*.part"))
    assert kept == ["000000.part", "000001.part"] and not out.exists()
    stream, seen = lt.Predictor.stream, []

    def watch(self, images, **options):
        seen.extend(images)
        return stream(self, seen, **options)

    monkeypatch.setattr(lt.Predictor, "stream", watch)
    capsys.readouterr()
    assert predict(folder, out, BATCH) == 1
    assert len(seen) == 20 - 2 * BATCH
    assert "2 of 4 parts are in" in caplog.text
    assert capsys.readouterr().err.count("5.png") == 1  # though an earlier run skipped it
    assert out.read_text() == whole.read_text() and not list(tmp_path.glob("*.parts"))


def test_parts_of_other_work_are_refused(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.csv"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        kill_after(patch, 1)
        predict(folder, out, BATCH)
    assert predict(folder, out, BATCH, "--top", "1") == 2
    found = capsys.readouterr().err
    assert "out.csv.parts holds parts of other work (other options)" in found
    part = out.with_name("out.csv.parts") / "000000.part"
    part.write_bytes(part.read_bytes()[:-1])
    assert predict(folder, out, BATCH) == 2
    assert f"{part} is damaged: delete it" in capsys.readouterr().err
    part.unlink()
    part.mkdir()
    assert predict(folder, out, BATCH) == 2
    assert f"{part} cannot be read" in capsys.readouterr().err
    part.rmdir()
    about = part.with_name(part_files.ABOUT)
    whole = about.read_bytes()
    for content in (b"[" * 100_000, b"\xff", b"null"):
        about.write_bytes(content)
        assert predict(folder, out, BATCH) == 2
        assert "holds parts of other work" in capsys.readouterr().err
    about.write_bytes(whole)
    assert predict(folder, out, BATCH) == 1 and out.exists()


def test_parts_of_images_that_changed_are_refused(folder, tmp_path, monkeypatch, capsys):
    out, image = tmp_path / "out.csv", tmp_path / "a.png"
    shutil.copy(folder / "photos" / "train" / "ant" / "0.png", image)
    words = ["predict", str(folder / "m.safetensors"), str(image), "-o", str(out)]
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Parts, "read", lambda self: kill_now())
        cli.main(words)
    state = image.stat()
    os.utime(image, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    with pytest.raises(SystemExit):
        cli.main(words)
    assert "holds parts of other work (other images)" in capsys.readouterr().err
    os.utime(image, ns=(state.st_atime_ns, state.st_mtime_ns))
    cli.main(words)
    assert out.exists()


def test_a_device_is_refused_before_the_work(folder, tmp_path, capsys):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    assert predict(folder, pipe, BATCH) == 2
    assert "pipe.csv is not a regular file" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["pipe.csv"]


def test_only_files_of_predictions_are_replaced(folder, tmp_path, capsys):
    own, words = {}, [str(folder / "m.safetensors"), str(folder / "photos" / "test")]
    for name in ("a.csv", "a.jsonl", "a.txt"):
        (tmp_path / name).touch()
        for top in ("2", "1"):  # the second command replaces the file of the first
            cli.main(["predict", *words, "--top", top, "-o", str(tmp_path / name)])
        own[name] = (tmp_path / name).read_text()
    for text in own.values():  # in another format too
        (tmp_path / "b.txt").write_text(text)
        cli.main(["predict", *words, "--top", "1", "-o", str(tmp_path / "b.txt")])
        assert (tmp_path / "b.txt").read_text() == own["a.txt"]
    capsys.readouterr()
    for name, content in (
        ("labels.csv", b"image,label\na.png,ant\n"),
        ("labels.jsonl", b'{"image": "a.png", "label": "ant"}\n'),
        ("notes.txt", b"Prices  of 2020\n"),
        ("shares.txt", b"ant  0.300\nbee  0.700\n"),
        ("photo.csv", b"\x89PNG\r\n"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SystemExit, match="2"):
            cli.main(["predict", *words, "-o", str(tmp_path / name)])
        error = " ".join(capsys.readouterr().err.split())
        assert f"{name} was not written by longtail predict (" in error
        assert error.endswith("choose another name or delete it")
        assert (tmp_path / name).read_bytes() == content


def test_a_refused_command_does_not_block_the_next_one(folder, tmp_path, capsys):
    words = [str(folder / "m.safetensors"), str(folder / "photos" / "test")]
    out = ["-o", str(tmp_path / "a.csv")]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["predict", *words, *out, "--sets", "0.9"])
    assert "needs a calibrated model" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["predict", *words, "--csv", "--sets", "0.9"])
    assert not capsys.readouterr().out  # nor a header
    cli.main(["predict", *words, *out])
    assert os.listdir(tmp_path) == ["a.csv"]


@pytest.mark.parametrize(
    ("words", "ranks", "reason"),
    [
        (["a.png", "--adapt", "batch", "-o", "x.csv"], 1, "run longtail adapt first"),
        (["a.png"], 2, "2 processes cannot print in order: pass --out FILE"),
        (["-", "-o", "x.csv"], 2, "only one process can read standard input"),
        (["a.png", "-o", "x.json"], 1, "x.json must end in .csv, in .jsonl"),
        (["a.png", "-o", "x.csv", "--json"], 1, "x.csv implies another format than --json"),
    ],
)
def test_what_cannot_be_written(words, ranks, reason, folder, monkeypatch, capsys):
    if ranks > 1:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
    with pytest.raises(SystemExit):
        cli.main(["predict", str(folder / "m.safetensors"), *words])
    assert reason in capsys.readouterr().err


def test_embed_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    shrink_parts(monkeypatch)
    whole = read_npz(lt.embed(folder / "run", tmp_path / "whole.npz"))
    out = tmp_path / "out.npz"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        kill_after(patch, 2)
        lt.embed(folder / "run", out)
    read, rows = embeddings.read_batches, []

    def watch(inputs, batches, *rest):
        rows.extend(map(len, batches))
        return read(inputs, batches, *rest)

    monkeypatch.setattr(embeddings, "read_batches", watch)
    found = read_npz(lt.embed(folder / "run", out))
    assert sum(rows) == (14 - 12) + 6
    assert all((found[name] == whole[name]).all() for name in whole)
    assert not list(tmp_path.glob("*.parts"))


def test_embed_refuses_parts_that_were_cut_elsewhere(folder, tmp_path, monkeypatch):
    shrink_parts(monkeypatch)
    out = tmp_path / "out.npz"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        kill_after(patch, 2)
        lt.embed(folder / "run", out)
    monkeypatch.setattr(embeddings, "choose_batch_size", lambda *_: 2)  # as many parts
    with pytest.raises(UserError, match="other batches"):
        lt.embed(folder / "run", out)


def test_a_part_of_predictions_has_whole_batches(folder, tmp_path, monkeypatch):
    seen, read = [], lt.Predictor.read_batches

    def watch(self, images):
        for batch in read(self, images):
            seen.append(len(batch.reasons))
            yield batch

    monkeypatch.setattr(lt.Predictor, "read_batches", watch)
    monkeypatch.setattr(lt.Predictor, "batch_size", 3)
    write = part_files.Parts.write
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        kill_after(patch, 2)
        predict(folder, tmp_path / "out.csv", 8)
    assert set(seen) == {3} and part_files.Parts.write is write
    seen.clear()
    assert predict(folder, tmp_path / "out.csv", 8) == 1
    assert seen == [3, 3, 2]  # two parts of 6 were there


def test_weights_that_do_not_fit_leave_no_folder(folder, tmp_path):
    write_tensors(tmp_path / "wrong.safetensors", {"x": torch.zeros(3)})
    network = backbones.build("conv4", 3, (12, 12))
    write_tensors(tmp_path / "right.safetensors", network.state_dict())
    options = {"data": str(folder / "photos"), "backbone": "conv4", "image_size": 12}
    with pytest.raises(UserError, match="fit 0 % of the parameters"):
        lt.embed(None, tmp_path / "out.npz", weights=tmp_path / "wrong.safetensors", **options)
    assert lt.embed(
        None, tmp_path / "out.npz", weights=tmp_path / "right.safetensors", **options
    ).exists()


def test_every_rank_must_see_the_same_work(tmp_path, monkeypatch):
    fabric = Fabric(accelerator="cpu", devices=1)
    monkeypatch.setattr(fabric, "broadcast", lambda value: {"images": "others"})
    with (
        pytest.raises(UserError, match="do not see the same model and images"),
        share_parts(tmp_path / "out", {"images": "mine"}, 1, fabric),
    ):
        pass
    assert part_files.PART % 64 == 0  # whole batches of the predictor


def test_parts_that_nothing_describes_are_made_again(tmp_path):
    fabric, out = Fabric(accelerator="cpu", devices=1), tmp_path / "out"
    with share_parts(out, {"alpha": 1}, 2, fabric) as begun:
        begun.write(0, b"old")
    (begun.folder / part_files.ABOUT).unlink()
    with share_parts(out, {"alpha": 0}, 2, fabric) as other:
        assert other.mine == (0, 1)
        for number in other.mine:
            other.write(number, b"new")
        assert list(other.read()) == [b"new", b"new"]
        other.remove()
    assert not list(tmp_path.iterdir())


def test_a_part_that_nothing_describes_and_that_cannot_be_deleted_is_named(tmp_path):
    fabric, out = Fabric(accelerator="cpu", devices=1), tmp_path / "out"
    (tmp_path / "out.parts" / "000000.part").mkdir(parents=True)  # which `unlink` refuses
    with (
        pytest.raises(UserError, match=r"000000.part cannot be deleted: .* Delete .*out.parts, or"),
        share_parts(out, {"alpha": 1}, 1, fabric),
    ):
        pass


def test_a_killed_removal_leaves_the_description(tmp_path):
    fabric, out = Fabric(accelerator="cpu", devices=1), tmp_path / "out"
    with share_parts(out, {"alpha": 1}, 1, fabric) as begun:
        begun.write(0, b"old")
        (begun.folder / "folder").mkdir()  # which `unlink` refuses
        begun.remove()
    assert (begun.folder / part_files.ABOUT).exists()


def test_a_second_command_for_the_same_file_is_refused(tmp_path):
    fabric, out = Fabric(accelerator="cpu", devices=1), tmp_path / "out"
    with share_parts(out, {"alpha": 1}, 1, fabric) as first:
        with (
            pytest.raises(UserError, match="out.parts is being written by this very process"),
            share_parts(out, {"alpha": 1}, 1, fabric),
        ):
            pass
        first.write(0, b"whole")
        assert list(first.read()) == [b"whole"]
