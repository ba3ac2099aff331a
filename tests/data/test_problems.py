"""All problems of a data set come at once: errors as one, and what else there is as one warning."""

import logging
import os
from pathlib import Path

import pytest
from makers import Painter

from longtail.core.errors import Problems, SeveralErrors, UserError
from longtail.data.decoding import images
from longtail.data.image_files import list_images
from longtail.data.load import load


@pytest.fixture(autouse=True)
def _record_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def painted(paint: Painter, *names: str) -> None:
    for grey, name in enumerate(names):
        paint(name, grey=3 * grey)


def message_of(path: Path, **options: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(path, **options)
    return str(caught.value).split("\n")


def test_problems_are_raised_as_one_and_flattened() -> None:
    problems = Problems()
    problems.raise_all()
    with problems.collect():
        raise UserError("first")
    with pytest.raises(UserError, match=r"^first$"):
        problems.raise_all()
    inner = Problems([UserError("second"), UserError("third")])
    with problems.collect():
        inner.raise_all()
    with pytest.raises(SeveralErrors, match="^3 problems:\n- first\n- second\n- third$"):
        problems.raise_all()
    with pytest.raises(KeyError), problems.collect():
        raise KeyError("a bug is not a problem of the user")


def test_every_error_comes_at_once(paint: Painter, tmp_path: Path, monkeypatch) -> None:
    painted(paint, "train/ant/1.png", "train/ant/2.png", "train/bee/1.png", "test/ant/1.png")
    painted(paint, "test/wolf/1.png", "test/yak/1.png")
    (tmp_path / "train" / "cat").mkdir()
    (tmp_path / "train" / "ant" / "broken.png").write_bytes(b"no image")
    (tmp_path / "test" / "ant" / "empty.png").write_bytes(b"")
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    (tmp_path / "test" / "ant" / "pointer.png").write_bytes(pointer)
    paint("train/bee/large.png", size=(9, 9))
    decoded: list[object] = []
    real = images.decode
    monkeypatch.setattr(
        images, "decode", lambda blob, **how: decoded.append(blob) or real(blob, **how)
    )
    first, *lines = message_of(tmp_path)
    assert first == "5 problems:" and len(lines) == 5
    wolf, cat, broken, large, empty = lines
    assert "wolf" in wolf and "yak" in wolf and "are classes that the training folder does" in wolf
    assert "class 'cat' has no training image" in cat
    assert "broken.png cannot be read (not an image in a known format)" in broken
    assert "1.png is 6x4" in large and "large.png is 9x9" in large and "--image-size" in large
    assert "empty.png cannot be read (it has no bytes)" in empty and "pointer.png" in empty
    assert len(decoded) == len(set(decoded)) == 8  # once each


def test_the_number_of_other_sizes_is_given(paint: Painter, tmp_path: Path) -> None:
    painted(paint, "a/1.png", "b/1.png")
    for i in range(3):
        paint(f"b/{2 + i}.png", size=(9, 9 + i))
    assert "b/2.png is 9x9, 2 more differ)" in message_of(tmp_path)[0]


def test_problems_stop_a_streamed_set_too(paint: Painter, tmp_path: Path) -> None:
    painted(paint, "train/ant/1.png", "train/bee/1.png", "test/wolf/1.png", "test/ant/1.png")
    (tmp_path / "train" / "cat").mkdir()
    lines = message_of(tmp_path, stream=True, image_size=4)
    assert len(lines) == 3 and "wolf" in lines[1] and "cat" in lines[2]


def test_duplicates_two_labels_and_leaks_come_as_one_warning(
    paint: Painter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part in ("train", "val", "test"):
        shade = {"train": 0, "val": 40, "test": 80}[part]
        for i in range(3):
            paint(f"{part}/ant/{i}.png", grey=shade + i)
            paint(f"{part}/bee/{i}.png", grey=shade + 10 + i)
    paint("train/ant/copy.png", grey=1)
    paint("train/bee/other.png", grey=2)
    paint("test/ant/leak.png", grey=0)
    paint("train/stray.png", grey=200)
    data = load(tmp_path)
    assert data.classes == ("ant", "bee") and data.counts.images == (4, 4)
    (record,) = caplog.records
    loose, leak, labels, copies = record.getMessage().split("\n")
    root = tmp_path
    assert loose.endswith("train: reads only the folders in it, and ignores the images stray.png")
    assert leak == (
        f"1 of the 7 test images is a training image too ({root}/test/ant/leak.png = "
        f"{root}/train/ant/0.png): results on it do not carry over to new images"
    )
    assert labels == (
        f"images have two labels: {root}/train/ant/2.png = {root}/train/bee/other.png"
    )
    assert copies == (
        f"images are stored more than once: {root}/train/ant/1.png = {root}/train/ant/copy.png"
    )


def test_a_clean_set_has_no_warning(
    paint: Painter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    painted(paint, "train/ant/1.png", "train/bee/1.png", "test/ant/1.png", "test/bee/1.png")
    (tmp_path / "train" / "README.txt").write_text("no image")
    load(tmp_path)
    assert not caplog.records


def test_a_list_is_compared_by_content(
    paint: Painter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    painted(paint, "a.png", "b.png", "c.png")
    paint("other-name.png", grey=0)
    (tmp_path / "train.txt").write_text("a.png 0\nb.png 1\n")
    (tmp_path / "test.txt").write_text("c.png 0\nother-name.png 1\n")
    load(list=tmp_path / "train.txt", test_list=tmp_path / "test.txt")
    assert "1 of the 2 test images is a training image too" in caplog.text
    assert f"other-name.png ({tmp_path}/test.txt:2) = {tmp_path}/a.png" in caplog.text
    assert "images have two labels" in caplog.text


def test_missing_files_of_all_lists_come_at_once(paint: Painter, tmp_path: Path) -> None:
    painted(paint, "a.png", "b.png")
    for name, gone in (("train", "x.png"), ("test", "y.png")):
        (tmp_path / f"{name}.txt").write_text(f"a.png 0\nb.png 1\n{gone} 1\n")
    with pytest.raises(SeveralErrors, match=r"(?s)x\.png does not exist.*y\.png does not exist"):
        load(list=tmp_path / "train.txt", test_list=tmp_path / "test.txt")


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no symbolic links")
class TestLinks:
    def test_a_class_that_links_to_another_is_refused(self, paint: Painter, tmp_path: Path) -> None:
        painted(paint, "cat/1.png", "dog/1.png", "eel/1.png")
        (tmp_path / "kitty").symlink_to(tmp_path / "cat")
        assert message_of(tmp_path) == [
            f"{tmp_path}/kitty is a link to images of {tmp_path}/cat, which would have two labels: "
            "remove the link"
        ]

    def test_two_links_to_one_folder_are_refused(self, paint: Painter, tmp_path: Path) -> None:
        painted(paint, "store/x/1.png", "set/dog/1.png", "set/eel/1.png")
        for name in ("cat", "puss"):
            (tmp_path / "set" / name).symlink_to(tmp_path / "store" / "x")
        (line,) = message_of(tmp_path / "set")
        assert "set/puss is a link to images of" in line and "set/cat" in line

    def test_a_link_to_a_folder_above_or_below_a_class(
        self, paint: Painter, tmp_path: Path
    ) -> None:
        painted(paint, "set/cat/deep/1.png", "set/dog/1.png")
        (tmp_path / "set" / "loop").symlink_to(tmp_path / "set", target_is_directory=True)
        (tmp_path / "set" / "part").symlink_to(tmp_path / "set" / "cat" / "deep")
        first, loop, part = message_of(tmp_path / "set")
        assert first == "2 problems:" and "set/loop is a link" in loop and "set/cat" in part

    def test_links_to_elsewhere_are_read(self, paint: Painter, tmp_path: Path, caplog) -> None:
        painted(paint, "store/x/1.png", "store/y/1.png", "set/eel/1.png")
        for name in ("x", "y"):
            (tmp_path / "set" / name).symlink_to(tmp_path / "store" / name)
        data = load(tmp_path / "set")
        assert data.counts.images == (1, 1, 1) and not caplog.records

    def test_linked_folders_in_a_class_are_read_once(
        self, paint: Painter, tmp_path: Path, caplog
    ) -> None:
        painted(paint, "set/cat/1.png", "set/cat/z/2.png", "set/dog/1.png", "store/x/deep/1.png")
        links = {"cat/a": "set/cat/z", "cat/b": "store/x/deep", "cat/c": "store/x", "dog/up": "set"}
        for name, target in links.items():
            (tmp_path / "set" / name).symlink_to(tmp_path / target)
        for name, target in (("y", "store/x"), ("up", "store"), (".hidden", "set/dog")):
            (tmp_path / "store" / "x" / name).symlink_to(tmp_path / target)
        assert load(tmp_path / "set").counts.images == (3, 1) and not caplog.records
        found = [str(path.relative_to(tmp_path)) for path in list_images(tmp_path / "set")]
        assert found == ["set/cat/1.png", "set/cat/b/1.png", "set/cat/z/2.png", "set/dog/1.png"]

    def test_a_linked_folder_of_another_class_gives_two_labels(
        self, paint: Painter, tmp_path: Path, caplog
    ) -> None:
        painted(paint, "cat/1.png", "dog/1.png")
        (tmp_path / "cat" / "more").symlink_to(tmp_path / "dog")
        assert load(tmp_path).counts.images == (2, 1)
        assert "two labels" in caplog.text

    def test_loops_do_not_hang(self, paint: Painter, tmp_path: Path) -> None:
        painted(paint, "cat/1.png", "dog/1.png")
        (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat")
        for name, target in (("a", "b"), ("b", "a")):
            (tmp_path / name).symlink_to(tmp_path / target)
        assert load(tmp_path).counts.images == (1, 1)
        (tmp_path / "dog" / "self.png").symlink_to(tmp_path / "dog" / "self.png")
        assert "self.png cannot be read" in message_of(tmp_path)[0]


def test_different_sizes_in_several_parts_are_one_problem(paint: Painter, tmp_path: Path) -> None:
    for part in ("train", "test"):
        painted(paint, f"{part}/ant/1.png", f"{part}/bee/1.png")
        paint(f"{part}/bee/large.png", size=(9, 9))
    (line,) = message_of(tmp_path)
    assert line.startswith("images differ in size")
