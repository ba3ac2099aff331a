"""Data sets of torch, torchvision and Hugging Face."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from makers import Painter, encoded
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from longtail.core.errors import UserError
from longtail.data.load import load

PIXELS = np.random.RandomState(0).randint(0, 256, (6, 5, 4, 3)).astype(np.uint8)
LABELS = [0, 0, 1, 1, 2, 0]


class Pairs(Dataset[Any]):
    """A map-style data set that counts how often an item was read."""

    def __init__(self, images: Any, labels: Any = LABELS, **attributes: Any):
        self.images, self.labels, self.reads = images, labels, 0
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return self.images[row], self.labels[row]


FORMS = {
    "PIL": [Image.fromarray(pixels) for pixels in PIXELS],
    "HWC": PIXELS,
    "CHW": torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
    "ToTensor": torch.from_numpy(PIXELS).permute(0, 3, 1, 2) / 255,
}


@pytest.mark.parametrize("form", FORMS)
def test_torch(form: str) -> None:
    data = load(Pairs(FORMS[form]))
    assert (data.name, data.classes) == ("dataset", ("0", "1", "2"))
    assert np.array_equal(data.train.input_tensor.permute(0, 2, 3, 1).numpy(), PIXELS)
    assert data.train.labels.tolist() == LABELS
    assert data.train.files is not None and data.train.files[2].as_py() == "item 2 of the dataset"
    assert load(Pairs(FORMS[form])).subset_sha256 == data.subset_sha256


def test_grey_arrays_become_rgb() -> None:
    data = load(Pairs(PIXELS[..., 0]))
    assert data.train.inputs.shape == (6, 3, 5, 4)
    assert torch.equal(data.train.input_tensor[:, 1], torch.from_numpy(PIXELS[..., 0]))


def test_images_of_a_data_set_are_resized_as_files_are(tmp_path: Path) -> None:
    photograph = np.random.RandomState(1).randint(0, 256, (40, 30, 3)).astype(np.uint8)
    for i in range(2):
        (tmp_path / "ab"[i]).mkdir()
        Image.fromarray(photograph).save(tmp_path / "ab"[i] / "1.png")
    data = load(Pairs([Image.fromarray(photograph)] * 2, [0, 1]), image_size=16)
    assert torch.equal(data.train.input_tensor, load(tmp_path, image_size=16).train.input_tensor)


def test_targets_and_classes_save_a_pass_over_the_items() -> None:
    pairs = Pairs(FORMS["PIL"], targets=LABELS, classes=["owl", "ant", "bee"])
    data = load(pairs)
    assert data.classes == ("owl", "ant", "bee")
    assert pairs.reads <= len(pairs) + 2  # and the first for its kind and its size
    with pytest.raises(UserError, match="item 1 of the dataset has the label 0 and its `targets`"):
        load(Pairs(FORMS["PIL"], targets=[0, 2, 1, 1, 2, 0]))


def test_embeddings() -> None:
    data = load(TensorDataset(torch.arange(12.0).reshape(6, 2), torch.tensor(LABELS)))
    assert data.embeddings and data.train.inputs.tolist()[1] == [2, 3]
    assert data.train.labels.tolist() == LABELS


def test_parts_in_a_dict_match_by_the_names_of_classes() -> None:
    train = Pairs(FORMS["PIL"], classes=["owl", "ant", "bee"])
    test = Pairs(FORMS["PIL"][:2], [0, 1], classes=["bee", "owl"])
    data = load({"train": train, "validation": Pairs(FORMS["PIL"][:1]), "test": test})
    assert data.test is not None and data.test.labels.tolist() == [2, 0]
    assert data.val is not None and data.val.labels.tolist() == [0]


class Broken(Pairs):
    def __getitem__(self, row: int) -> Any:
        if row == 4:
            raise KeyError("gone")
        return super().__getitem__(row)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield PIXELS[0], 0


BAD: dict[str, tuple[Any, str]] = {
    "no pair": (
        [{"image": 1, "label": 2}],
        r"item 0 of the dataset .*: it is no pair \(dict\): a pair",
    ),
    "three values": ([(PIXELS[0], 0, 1)], r"item 0 of the dataset .*: it has 3 values \(tuple\)"),
    "an error": (Broken(PIXELS), r"item 4 of the dataset cannot be read \(KeyError: 'gone'\)"),
    "iterable": (Stream(), "Stream can only be read from its start.*map-style"),
    "empty": (Pairs([], []), "the dataset is empty"),
    "normalised": (Pairs(PIXELS / 100.0), r"item 0 of .* \(it has floats from 0.* to 2\.5"),
    "no image": (Pairs([3] * 6), r"item 0 of .* \(it is of type int: an image of PIL"),
    "lengths": (Pairs([np.ones(2), np.ones(3)]), r"item 1 .* the shape \(3,\) and item 0 \(2,\)"),
    "labels": (Pairs(PIXELS, [{}] * 6), "a label is of type dict in 6 of 6 rows"),
    "unlabelled": (Pairs(PIXELS, [-1, *LABELS[1:]]), "there is the label -1 in 1 of 6 rows"),
    "number": (7, "the dataset is of type int, which cannot be read: pass a DataFrame, a map"),
    "path": ({"train": "photos"}, "train of the dataset is of type str.* stands alone"),
    "no training part": ({"test": Pairs(PIXELS)}, "the parts are test, and none is called train"),
    "twice": ({"train": Pairs(PIXELS), "training": Pairs(PIXELS)}, "several train parts"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_sets(case: str) -> None:
    data, message = BAD[case]
    with pytest.raises(UserError, match=message):
        load(data)


@pytest.fixture
def folder(paint: Painter, tmp_path: Path) -> Path:
    for grey, name in enumerate(("owl/1.png", "ant/1.png", "ant/2.png")):
        paint(f"photos/{name}", grey=grey)
    return tmp_path / "photos"


def test_image_folder(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    from torchvision.datasets import ImageFolder

    own = load(folder)
    data = load(ImageFolder(str(folder)))
    assert data.classes == own.classes and data.train.files == own.train.files
    assert data.subset_sha256 == own.subset_sha256
    assert "transform" not in caplog.text
    load(ImageFolder(str(folder), transform=lambda image: 1 / 0))
    assert "the transform of the ImageFolder is not used" in caplog.text


def test_an_image_folder_with_other_targets(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    data = load(ImageFolder(str(folder), target_transform=lambda label: 7 - label))
    assert data.classes == ("6", "7") and data.train.labels.tolist() == [1, 1, 0]


def test_a_subset_of_an_image_folder_is_read_from_its_files(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    base = ImageFolder(str(folder), transform=lambda image: 1 / 0)
    data = load({"train": Subset(base, [0, 2]), "val": Subset(Subset(base, [1, 0]), [0])})
    assert data.train.files is not None
    assert data.train.files.to_pylist() == ["ant/1.png", "owl/1.png"]
    assert data.val is not None and data.val.files is not None
    assert data.val.files.to_pylist() == ["ant/2.png"]


def hugging_face(names: list[str] | None = None, label: str = "label", **more: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    kind = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = {"image": datasets.Image(), label: kind}
    features |= {name: datasets.Value("int64") for name in more}
    images = [{"bytes": encoded(i), "path": f"{i}.png"} for i in range(4)]
    columns = {"image": images, label: [1, 0, 1, 1], **more}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_hugging_face() -> None:
    data = load(hugging_face(["owl", "ant"]))
    assert data.classes == ("owl", "ant") and data.train.labels.tolist() == [1, 0, 1, 1]
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert data.train.files is not None and data.train.files[3].as_py() == "3.png"
    again = load(hugging_face(["owl", "ant"]))
    assert again.subset_sha256 == data.subset_sha256


def test_hugging_face_images_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import longtail.data.decoding.images as images

    whole, opened = hugging_face(["owl", "ant"]), []
    monkeypatch.setattr(images, "_to_rgb", lambda image: opened.append(1) or image.convert("RGB"))
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.Image, "decode_example", lambda *_: 1 / 0)
    load(whole, image_size=4)
    assert len(opened) == 4


def test_hugging_face_rows_are_chosen_and_formatted() -> None:
    whole = hugging_face(["owl", "ant"])
    data = load(whole.select([3, 1, 0]).with_format("torch"))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [3, 1, 0]
    assert data.train.files is not None
    assert data.train.files.to_pylist() == ["3.png", "1.png", "0.png"]


def test_hugging_face_parts() -> None:
    datasets = pytest.importorskip("datasets")
    whole = hugging_face(["owl", "ant"])
    parts = datasets.DatasetDict(
        train=whole, validation=whole.select([1]), test=whole.select([0, 1]), extra=whole
    )
    data = load(parts)
    assert data.val is not None and data.test is not None
    assert data.test.labels.tolist() == [1, 0]


def test_other_parts_are_named(caplog: pytest.LogCaptureFixture) -> None:
    load({"train": Pairs(PIXELS), "holdout": Pairs(PIXELS)})
    assert "the parts are train, val and test: ignores holdout" in caplog.text


def test_hugging_face_paths(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    paths = sorted(map(str, folder.rglob("*.png")))
    labels = [Path(path).parent.name for path in paths]
    rows = datasets.Dataset.from_dict({"img": paths, "class": labels})
    data = load(rows.cast_column("img", datasets.Image()))
    assert data.classes == ("ant", "owl") and data.train.inputs[:, 0, 0, 0].tolist() == [1, 2, 0]
    assert data.train.files is not None and data.train.files.to_pylist() == paths


@pytest.mark.parametrize("more", [{}, {"path": "a.png"}])
def test_hugging_face_structs_that_are_not_declared_as_images(more: dict[str, str]) -> None:
    datasets = pytest.importorskip("datasets")
    cells = [{"bytes": encoded(i), **more} for i in range(3)]
    data = load(datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 1]}))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert data.train.files is not None
    assert data.train.files[1].as_py() == more.get("path", "row 1 of the dataset")


def test_hugging_face_label_columns() -> None:
    assert load(hugging_face(["owl", "ant"], "species")).classes == ("owl", "ant")
    assert load(hugging_face(None, "target", size=[0] * 4)).classes == ("0", "1")
    with pytest.raises(UserError, match=r"columns \(image: struct.*and needs 'label'"):
        load(hugging_face(None, "species"))
    two = hugging_face(["owl", "ant"], "fine").add_column("coarse", [0, 0, 1, 1])
    datasets = pytest.importorskip("datasets")
    two = two.cast_column("coarse", datasets.ClassLabel(names=["x", "y"]))
    with pytest.raises(UserError, match="several columns that may be the label: fine, coarse"):
        load(two)


def test_hugging_face_streams_are_refused() -> None:
    with pytest.raises(UserError, match="IterableDataset .*streaming=True"):
        load(hugging_face(["owl", "ant"]).to_iterable_dataset())


def test_arrays(tmp_path: Path) -> None:
    whole = load((PIXELS, LABELS))
    assert whole.name == "arrays"
    for images in (torch.from_numpy(PIXELS), PIXELS.transpose(0, 3, 1, 2), PIXELS / 255):
        data = load((images, torch.tensor(LABELS)))
        assert data.subset_sha256 == whole.subset_sha256
    assert load((FORMS["PIL"], np.array(LABELS))).subset_sha256 == whole.subset_sha256
    Image.fromarray(PIXELS[0]).save(tmp_path / "a.png")
    paths = np.array([str(tmp_path / "a.png")] * 2)
    assert (load((paths, [0, 1])).train.input_tensor == whole.train.input_tensor[0]).all()
    named = load((PIXELS, ["owl", "owl", "ant", "ant", "bee", "owl"]))
    assert named.classes == ("ant", "bee", "owl")
    assert load((np.ones((6, 2)), LABELS)).embeddings
    pandas = pytest.importorskip("pandas")
    matrix = pandas.DataFrame(np.arange(12.0).reshape(6, 2))
    assert load((matrix, pandas.Series(LABELS))).train.inputs.shape == (6, 2)
    parts = load({"train": (PIXELS, LABELS), "test": (PIXELS[:1], [2])})
    assert parts.test is not None and parts.test.labels.tolist() == [2]


def test_arrays_that_cannot_be_written_to_do_not_warn() -> None:
    fixed = PIXELS.copy()
    fixed.flags.writeable = False
    assert load((fixed, LABELS)).subset_sha256 == load((PIXELS, LABELS)).subset_sha256


BAD_ARRAYS: dict[str, tuple[Any, str]] = {
    "lengths": ((PIXELS, LABELS[:5]), "have 6 images and 5 labels: one label for each"),
    "objects": ((PIXELS, [{}] * 6), "a label is of type dict in 6 of 6 rows"),
    "three": ((PIXELS, LABELS, LABELS), "a tuple of 3 was given"),
    "shape": (
        (np.ones((6, 5, 4, 3), int), LABELS),
        r"int64 of shape \(6, 5, 4, 3\): images are uint8",
    ),
    "normalised": ((PIXELS / 100.0, LABELS), "has floats from 0.* Leave out their normalisation"),
    "floats": ((PIXELS.astype(float), LABELS), "has floats from 0.* Divide them by 255"),
    "nan": ((PIXELS, [float("nan")] * 6), "no label in 6 of 6 rows"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(case: str) -> None:
    data, message = BAD_ARRAYS[case]
    with pytest.raises(UserError, match=message):
        load(data)


def test_other_libraries_need_not_be_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    (tmp_path / "t.csv").write_text("path,label\nphotos/owl/1.png,owl\nphotos/ant/1.png,ant\n")
    assert load(tmp_path / "t.csv").classes == load(folder).classes
    assert load((PIXELS, LABELS)).classes == load(Pairs(PIXELS)).classes
