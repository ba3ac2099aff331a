"""Small data sets on disk, and the real ones beside the repository."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from makers import Painter, encoded
from PIL import Image


@pytest.fixture(scope="session")
def shared() -> Path:
    root = Path(__file__).parents[2].parent / "shared" / "data"
    if not (root / "cifar100-lt" / "train.parquet").is_file():
        pytest.skip(f"the real data sets are not at {root}")
    return root


@pytest.fixture
def paint(tmp_path: Path) -> Painter:
    """Write a one-colour image at a path below tmp_path."""

    def write(name: str, *, grey: int = 0, size: tuple[int, int] = (6, 4)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (grey, grey, grey)).save(path)
        return path

    return write


@pytest.fixture
def write_parquet() -> Callable[..., None]:
    """Write one part in Hugging Face's layout; row i is an image whose red is i."""

    def write(
        path: Path,
        labels: Sequence[int | None],
        *,
        names: Sequence[str] | None = None,
        images: Sequence[bytes | None] | None = None,
        form: str = "PNG",
        group: int = 3,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if images is None:
            images = [encoded(i, form=form) for i in range(len(labels))]
        cells = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
        image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table({"image": pa.array(cells, image_type), "label": pa.array(labels)})
        if names is not None:
            label = {"names": list(names), "_type": "ClassLabel"}
            info = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
        pq.write_table(table, path, row_group_size=group)

    return write


@pytest.fixture
def write_npz(tmp_path: Path) -> Callable[..., Path]:
    """An `.npz` of five embeddings in two classes, with arrays replaced or (None) left out."""

    def write(**replaced: object) -> Path:
        whole = {
            "x_train": np.arange(10.0).reshape(5, 2),
            "y_train": np.array([0, 0, 0, 1, 1]),
            "x_test": np.ones((2, 2)),
            "y_test": np.array([1, 0]),
        }
        path = tmp_path / "points.npz"
        kept = {k: v for k, v in {**whole, **replaced}.items() if v is not None}
        np.savez(path, **kept)  # type: ignore[arg-type]
        return path

    return write
