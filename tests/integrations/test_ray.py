"""Ray Data: the script of the page, the columns of a batch, and a job that goes on."""

import io
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import longtail as lt
from helpers import HANGS, photos
from longtail.core.errors import UserError
from longtail.integrations.ray import RayPredictor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs, and a model of them."""
    folder = tmp_path_factory.mktemp("ray")
    photos(folder / "photos")
    options = {"image_size": 12, "epochs": 1, "batch_size": 8, "backbone": "conv4"}
    lt.fit(str(folder / "photos"), "deconfound-tde", out=folder / "run", device="cpu", **options)
    return folder


def encode(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_columns_of_every_kind_are_predicted_alike(folder):
    paths = sorted(map(str, (folder / "photos" / "test").rglob("*.png")))
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    encoded = [encode(image) for image in pixels]
    expected = lt.load_model(folder / "run").predict(paths)
    columns = {
        "path": paths,
        "bytes": encoded,
        "image": list(pixels),
        "stored": [{"bytes": blob, "path": None} for blob in encoded],
        "named": [{"bytes": None, "path": path} for path in paths],
    }
    for name, values in columns.items():
        column = np.empty(len(values), dtype=object)
        column[:] = values
        batch = {name: column, "id": np.arange(len(values))}
        found = RayPredictor(str(folder / "run"), name)(batch)
        assert list(found) == ["id", "class", "probability", "unreadable"]
        assert found["class"].tolist() == [row.name for row in expected]
        assert found["probability"] == pytest.approx([row.probability for row in expected])
        assert set(found["unreadable"]) == {""}
    whole = RayPredictor(str(folder / "run"), "image")({"image": pixels})
    assert whole["class"].tolist() == [row.name for row in expected]


def test_unreadable_images_keep_their_rows(folder):
    good = (folder / "photos" / "test" / "ant" / "0.png").read_bytes()
    batch = {"bytes": np.array([b"broken", good, None], dtype=object)}
    found = RayPredictor(str(folder / "run"), alpha=0.5)(batch)
    assert [bool(reason) for reason in found["unreadable"]] == [True, False, True]
    assert [bool(name) for name in found["class"]] == [False, True, False]
    assert np.isnan(found["probability"]).tolist() == [True, False, True]
    embedded = RayPredictor(str(folder / "run"), outputs="embeddings")(batch)
    features, _ = lt.load_model(folder / "run").extract([good])
    assert embedded["embedding"].shape == (3, 128) and embedded["unreadable"][2]
    assert embedded["embedding"][1] == pytest.approx(features[0].numpy())
    assert np.isnan(embedded["embedding"][[0, 2]]).all()


def test_mistakes(folder):
    with pytest.raises(UserError, match="unknown outputs 'embedding'. Did you mean 'embeddings'"):
        RayPredictor(str(folder / "run"), outputs="embedding")
    with pytest.raises(UserError, match="no column 'bytes' but image, id"):
        RayPredictor(str(folder / "run"))({"image": np.empty(0), "id": np.empty(0)})
    batch = {"bytes": np.array([b"broken"], dtype=object), "class": np.array(["ant"], dtype=object)}
    with pytest.raises(UserError, match="has a column 'class', which would be replaced"):
        RayPredictor(str(folder / "run"))(batch)
    assert RayPredictor(str(folder / "run"), outputs="embeddings")(batch)["class"] == ["ant"]


@pytest.mark.filterwarnings("ignore")  # Ray warns of its surroundings
def test_the_script_of_the_page_runs_and_a_stopped_job_goes_on(run_page, capsys):
    ray = pytest.importorskip("ray")
    try:
        names = run_page("ray")
        assert "18 images" in capsys.readouterr().out
        assert np.mean(names["right"]) > 0.6
        table = names["pq"].read_table(names["root"] / "embeddings")
        assert len(table) == 18 and table.column("unreadable").unique().to_pylist() == [""]
        read_the_images_of_a_parquet_file(ray, names, predictions=names["predictions"])
        go_on_after_a_stop(ray, names)
    finally:
        ray.shutdown()


def read_the_images_of_a_parquet_file(ray, names, predictions) -> None:
    """Hugging Face stores an image as its bytes and its path."""
    paths, file = sorted(row["path"] for row in predictions), names["root"] / "images.parquet"
    rows = [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]
    names["pq"].write_table(pa.table({"image": rows, "id": list(range(18))}), file)
    context = ray.data.DataContext.get_current()
    config, context.checkpoint_config = context.checkpoint_config, None
    found = (
        ray.data.read_parquet(str(file))
        .map_batches(RayPredictor, fn_constructor_args=[str(names["run"].folder), "image"])
        .take_all()
    )
    context.checkpoint_config = config
    expected = {row["path"]: row["class"] for row in predictions}
    assert {row["id"]: row["class"] for row in found} == {
        number: expected[path] for number, path in enumerate(paths)
    }


def go_on_after_a_stop(ray, names) -> None:
    """The first job ends when some images are recorded; how many is up to Ray."""
    root = names["root"]

    done = root / "done"
    recorded_files = "*[!g].parquet"  # not .pending.parquet: their predictions are written

    class Counting(RayPredictor):  # here, so that Ray sends it to the actors
        """Logs its images, and fails after so many, as soon as Ray has recorded some of them."""

        def __init__(self, model: str, log: str, fails_after: int) -> None:
            super().__init__(model)
            self.log, self.fails_after, self.done = log, fails_after, 0

        def __call__(self, batch):
            if self.done == self.fails_after:
                until = time.monotonic() + HANGS
                while not any(done.glob(recorded_files)) and time.monotonic() < until:
                    time.sleep(0.1)
                raise RuntimeError("the machine is gone")
            (path,) = batch["path"]
            with open(self.log, "a") as file:
                file.write(f"{path}\n")
            self.done += 1
            return super().__call__(batch)

    def work(fails_after: int) -> list[str]:
        log = root / f"log{fails_after}"
        names["images"].map_batches(
            Counting,
            fn_constructor_args=[str(names["run"].folder), str(log), fails_after],
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=1),
        ).write_parquet(str(root / "again"), mode="append")
        return log.read_text().splitlines()

    with pytest.raises(Exception, match="the machine is gone"):
        work(9)
    tables = [names["pq"].read_table(file) for file in done.glob(recorded_files)]
    recorded = {path for table in tables for path in table.column("path").to_pylist()}
    assert recorded and recorded.isdisjoint(work(-1))
    paths = names["pq"].read_table(root / "again").column("path").to_pylist()
    assert set(paths) == set(map(str, (root / "photos" / "test").rglob("*.png")))
