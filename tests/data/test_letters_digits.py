"""The data sets that need no file."""

import numpy as np
import pytest
import torch

from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.data.formats import letters as letters_module
from longtail.data.load import load


@pytest.fixture(scope="module")
def letters() -> Data:
    return load("letters-lt")


def test_letters_have_english_counts(letters: Data) -> None:
    counts = dict(zip(letters.classes, letters.counts.images, strict=True))
    assert "".join(letters.classes) == "abcdefghijklmnopqrstuvwxyz"
    assert {k: counts[k] for k in "etjxqz"} == {"e": 381, "t": 272, "j": 5, "x": 4, "q": 3, "z": 2}
    assert sum(counts.values()) == 3000
    assert [letters.classes[i] for i in letters.counts.splits["few"]] == ["j", "q", "x", "z"]


def test_letters_shapes_and_balanced_test(letters: Data) -> None:
    assert letters.train.inputs.shape == (3000, 1, 16, 16)
    assert letters.train.inputs.dtype == torch.uint8
    assert letters.test is not None and letters.val is None
    assert torch.bincount(letters.test.labels).tolist() == [100] * 26
    assert (letters.name, letters.ratio) == ("letters-lt", None)


def test_letters_ignore_all_global_seeds(letters: Data) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    again = load("letters-lt")
    assert again.subset_sha256 == letters.subset_sha256
    assert letters.test is not None and again.test is not None
    assert torch.equal(again.test.inputs, letters.test.inputs)


def test_train_and_test_letters_are_drawn_apart(letters: Data) -> None:
    assert letters.test is not None
    train = {image.numpy().tobytes() for image in letters.train.inputs}
    assert len(train) == 3000
    assert not train & {image.numpy().tobytes() for image in letters.test.inputs}


def test_glyphs_are_whole_and_differ() -> None:
    glyphs = letters_module._draw_glyphs(tuple("ilmw"))
    edges = torch.cat([glyphs[..., 0, :], glyphs[..., -1, :], glyphs[..., 0], glyphs[..., -1]], -1)
    assert edges.max() == 0  # nothing is cut off at the border
    assert (glyphs.amax(dim=(2, 3)) == 1).all()  # and no font lacks a letter
    assert len({glyph.numpy().tobytes() for glyph in glyphs.flatten(0, 1)}) == 4 * len(
        letters_module.FONTS
    )


def test_a_still_letter_is_its_glyph() -> None:
    still = letters_module.Wobble(turn=0, shear=0, scale=0, shift=0, noise=0)
    part = letters_module.open_source(wobble=still).parts["test"]
    images = part.read().inputs.float() / 255
    glyphs = letters_module._draw_glyphs(("q",))[0]
    small = torch.nn.functional.avg_pool2d(glyphs, 4)  # (fonts, 16, 16)
    drawn = images[part.labels == 16][:, 0]
    gap = (drawn[:, None] - small[None]).abs().mean(dim=(2, 3)).amin(dim=1)
    assert gap.max() < 0.03


def test_letters_take_no_ratio() -> None:
    with pytest.raises(UserError, match="letters-lt takes no ratio"):
        load("letters-lt:10")


def test_digits_default_and_ratio() -> None:
    digits = load("digits-lt")
    assert digits.ratio == 20
    assert digits.counts.images == (130, 93, 66, 47, 34, 24, 17, 12, 9, 6)
    assert digits.test is not None
    assert torch.bincount(digits.test.labels).tolist() == [44] * 10
    assert digits.train.inputs.shape[1:] == (1, 8, 8)
    assert digits.train.inputs.max() == 255
    steep = load("digits-lt:130")
    assert steep.counts.images[-1] == 1
    assert torch.equal(steep.test.inputs, digits.test.inputs)  # type: ignore[union-attr]


def test_digits_train_and_test_are_different_rows() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits-lt:1")
    assert digits.test is not None
    ours = [
        image.numpy().tobytes() for part in (digits.train, digits.test) for image in part.inputs
    ]
    images = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    assert len(ours) == 1740
    assert len(set(ours)) == len(ours)
    places = {image.tobytes(): place for place, image in enumerate(images)}
    assert set(ours) <= set(places)
    tested = [places[image.numpy().tobytes()] for image in digits.test.inputs]
    assert 800 < np.mean(tested) < 1000  # from all writers; the first rows would be near 220


def test_image_size_is_refused_where_nothing_is_decoded() -> None:
    with pytest.raises(UserError, match=r"--image-size is for folders.*letters-lt"):
        load("letters-lt", image_size=32)
