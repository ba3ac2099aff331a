"""Parquet files in Hugging Face's image layout."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from makers import encoded

from longtail.core.errors import UserError
from longtail.data.load import load

Writer = Callable[..., None]


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_rows_labels_and_names(write_parquet: Writer, tmp_path: Path, form: str) -> None:
    write_parquet(tmp_path / "train.parquet", [1, 0, 1, 1], names=["owl", "ant"], form=form)
    write_parquet(tmp_path / "test.parquet", [0, 1], names=["owl", "ant"])
    data = load(str(tmp_path))
    assert data.classes == ("owl", "ant")
    assert data.train.inputs.shape == (4, 3, 4, 4)
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert data.train.inputs[:, 2, 0, 0].tolist() == [255, 254, 253, 252]
    assert data.train.labels.tolist() == [1, 0, 1, 1]
    assert data.val is None and data.test is not None


def test_the_cut_takes_first_rows_and_decodes_no_other(
    write_parquet: Writer, tmp_path: Path
) -> None:
    labels = [0, 1, 0, 1, 0, 1, 0, 1]
    images = [encoded(i) for i in range(8)]
    images[5] = images[7] = b"would stop, if it were decoded"
    write_parquet(tmp_path / "train.parquet", labels, images=images)
    data = load(f"{tmp_path}:2")
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 6]
    with pytest.raises(UserError, match=r"row 5 of .*train\.parquet cannot be read"):
        load(str(tmp_path))


def test_holes_are_corrupt_rows(
    write_parquet: Writer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = [encoded(0), None, encoded(2), encoded(3)]
    write_parquet(tmp_path / "train.parquet", [0, 0, 1, 1], images=images)
    with pytest.raises(UserError, match=r"row 1 of .*\(no image is stored\)"):
        load(str(tmp_path))
    data = load(str(tmp_path), corrupt="skip")
    assert data.counts.images == (1, 2)
    assert "row 1 of" in caplog.text


def test_skipping_may_empty_a_class(write_parquet: Writer, tmp_path: Path) -> None:
    images = [encoded(0), b"broken", encoded(2), encoded(3)]
    write_parquet(tmp_path / "train.parquet", [0, 1, 2, 2], images=images, names=["a", "b", "c"])
    with pytest.raises(UserError, match="class 'b' has no training image"):
        load(str(tmp_path), corrupt="skip")
    data = load(str(tmp_path), corrupt="skip", min_count=1)
    assert data.classes == ("a", "c")
    assert data.train.labels.tolist() == [0, 1, 1]


def test_unequal_sizes(write_parquet: Writer, tmp_path: Path) -> None:
    images = [encoded(0), encoded(1, size=(8, 6)), encoded(2)]
    write_parquet(tmp_path / "train.parquet", [0, 0, 1], images=images)
    with pytest.raises(UserError, match=r"row 1 of .* is 8x6\): pass --image-size"):
        load(str(tmp_path))
    assert load(str(tmp_path), image_size=4).train.inputs.shape == (3, 3, 4, 4)


def test_without_names(write_parquet: Writer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [0, 2, 1])
    assert load(str(tmp_path)).classes == ("0", "1", "2")


def test_a_label_beyond_the_names(write_parquet: Writer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [0, 1], names=["a", "b"])
    write_parquet(tmp_path / "test.parquet", [0, -1, -1], names=["a", "b"])
    with pytest.raises(
        UserError, match=r"the label -1 in 2 of 3 rows, first in row 1 of .*test\.parquet: the 2 cl"
    ):
        load(str(tmp_path))


def test_parts_are_matched_by_the_names_of_classes(write_parquet: Writer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [0, 1], names=["a", "b"])
    write_parquet(tmp_path / "val.parquet", [0, 1, 1], names=["b", "a"])
    data = load(str(tmp_path))
    assert data.classes == ("a", "b")
    assert data.val is not None and data.val.labels.tolist() == [1, 0, 0]
    write_parquet(tmp_path / "val.parquet", [0, 1], names=["c", "a"])
    with pytest.raises(UserError, match=r"the val part has 'c', which the training part does not"):
        load(str(tmp_path))


def test_another_layout(tmp_path: Path) -> None:
    pq.write_table(pa.table({"img": [b"x"], "fine_label": [0]}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"columns \(img: binary, fine_label: int64\) and needs"):
        load(str(tmp_path))


def test_no_parquet_at_all(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR0")
    with pytest.raises(UserError, match=r"train\.parquet cannot be read as parquet"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("labels", "what"), [([], "no rows"), ([0, None], "no label in 1 of 2 rows")]
)
def test_labels_must_be_there(
    write_parquet: Writer, tmp_path: Path, labels: list[int | None], what: str
) -> None:
    if not labels:
        table = pa.table(
            {
                "image": pa.array([], pa.struct([("bytes", pa.binary())])),
                "label": pa.array([], pa.int64()),
            }
        )
        pq.write_table(table, tmp_path / "train.parquet")
    else:
        write_parquet(tmp_path / "train.parquet", labels)
    with pytest.raises(UserError, match=what):
        load(str(tmp_path))


def test_damaged_metadata(tmp_path: Path, write_parquet: Writer) -> None:
    write_parquet(tmp_path / "train.parquet", [0, 1])
    table = pq.read_table(tmp_path / "train.parquet")
    pq.write_table(table.replace_schema_metadata({"huggingface": "{"}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="metadata under 'huggingface' is damaged"):
        load(str(tmp_path))


def test_statistics(write_parquet: Writer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [0, 1, 1])
    data = load(str(tmp_path))
    values = data.train.inputs.double() / 255
    assert torch.allclose(torch.tensor(data.mean).double(), values.mean(dim=(0, 2, 3)))
    spread = values.std(dim=(0, 2, 3), correction=0)
    assert torch.allclose(torch.tensor(data.std).double(), spread.clamp(min=1 / 255))
    assert data.std[1] == pytest.approx(1 / 255)  # green never changes


@pytest.fixture
def hub(write_parquet: Writer, tmp_path: Path) -> Path:
    """A repository of the Hub: two training shards, a validation and a test file."""
    names = ["owl", "ant"]
    root = tmp_path / "repository"
    images = [encoded(i) for i in range(9)]
    places = {
        "train-00000-of-00002": (0, 3),
        "train-00001-of-00002": (3, 5),
        "validation-00000-of-00001": (5, 6),
        "test-00000-of-00001": (6, 9),
    }
    for stem, (start, stop) in places.items():
        labels = [i % 2 for i in range(start, stop)]
        path = root / "data" / f"{stem}.parquet"
        write_parquet(path, labels, names=names, images=images[start:stop], group=2)
    (root / "README.md").write_text("---\n---\n")
    return root


@pytest.mark.parametrize("place", ["", "data", "data/train-00001-of-00002.parquet"])
def test_the_layout_of_the_hub(hub: Path, place: str) -> None:
    data = load(hub / place)
    assert data.classes == ("owl", "ant")
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert data.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert data.val is not None and data.val.inputs[:, 0, 0, 0].tolist() == [5]
    assert data.test is not None and data.test.inputs[:, 0, 0, 0].tolist() == [6, 7, 8]
    assert data.train.files is not None and data.train.files[3].as_py() == "0.png"
    assert load(f"{hub / place}:1.5").train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]


def test_rows_of_shards_are_named_by_their_file(hub: Path, write_parquet: Writer) -> None:
    shard = hub / "data" / "train-00001-of-00002.parquet"
    write_parquet(shard, [1, 0], names=["owl", "ant"], images=[encoded(3), b"broken"])
    with pytest.raises(UserError, match=r"row 1 of .*train-00001-of-00002\.parquet cannot be read"):
        load(hub)


def test_a_missing_shard(hub: Path) -> None:
    (hub / "data" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(UserError, match="has 1 files of this part, .* is one of 2 by its name"):
        load(hub)


def test_a_shard_that_is_there_twice(hub: Path) -> None:
    first, second = sorted((hub / "data").glob("train-*"))
    second.write_bytes(first.read_bytes())
    second.rename(first.with_stem(f"{first.stem}-a1b2"))
    with pytest.raises(UserError, match="has 2 files of this part, .* is one of 2 by its name"):
        load(hub)


def test_shards_of_any_name(write_parquet: Writer, tmp_path: Path) -> None:
    for i in range(2):
        write_parquet(tmp_path / f"photos-0000{i}-of-00002.parquet", [0, 1, 1])
    assert len(load(tmp_path / "photos-00001-of-00002.parquet").train) == 6


def test_a_split_column_is_not_read_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_columns(tmp_path / "a.parquet", label=[0, 1, 1], split=["train", "train", "test"])
    assert len(load(tmp_path / "a.parquet").train) == 3
    assert "a.parquet: the column 'split' is not read" in caplog.text


def test_shards_with_other_classes(hub: Path, write_parquet: Writer) -> None:
    shard = hub / "data" / "train-00001-of-00002.parquet"
    write_parquet(shard, [1, 0], names=["ant", "owl"])
    with pytest.raises(UserError, match="differ in their columns or in the classes"):
        load(hub)


def test_one_file(write_parquet: Writer, tmp_path: Path) -> None:
    write_parquet(tmp_path / "photos.parquet", [0, 1, 1])
    write_parquet(tmp_path / "test.parquet", [0, 1])
    data = load(tmp_path / "photos.parquet")
    assert len(data.train) == 3 and data.test is None
    assert len(load(tmp_path / "test.parquet").train) == 2
    write_parquet(tmp_path / "train.parquet", [0, 1, 0, 1])
    data = load(tmp_path / "train.parquet")
    assert len(data.train) == 4 and data.test is not None and len(data.test) == 2


def test_several_sets_in_one_repository(hub: Path, write_parquet: Writer) -> None:
    write_parquet(hub / "other" / "train-00000-of-00001.parquet", [0, 1])
    with pytest.raises(UserError, match=r"several sets of parquet files: pass one of .*data"):
        load(hub)


def write_columns(path: Path, **labels: list[object]) -> None:
    cells = [{"bytes": encoded(i), "path": None} for i in range(3)]
    pq.write_table(pa.table({"img": pa.array(cells), **labels}), path)


def test_labels_in_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_columns(path, fine_label=["owl", "ant", "owl"], size=[1, 2, 3])
    data = load(path)
    assert data.classes == ("ant", "owl") and data.train.labels.tolist() == [1, 0, 1]
    assert data.train.files is not None and data.train.files[2].as_py() == f"row 2 of {path}"
    write_columns(path, fine_label=[1, 0, 1], label=[0.0, 1.0, 1.0])
    assert load(path).train.labels.tolist() == [0, 1, 1]
    write_columns(path, labels=[1, 0, 1], target=[0, 1, 1])
    with pytest.raises(UserError, match="several columns that may be the label: labels, target"):
        load(path)
    write_columns(path, species=[1, 0, 1])
    with pytest.raises(UserError, match=r"columns \(img: struct.*, species: int64\) and needs"):
        load(path)
