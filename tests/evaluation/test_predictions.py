"""The table of predictions that a run stores."""

import json

import pyarrow as pa
import pytest
import torch

from longtail.core.errors import UserError
from longtail.data.base import Split
from longtail.evaluation import predictions
from longtail.evaluation.predictions import make_predictions, read_table, write_predictions

NAMES = tuple("abcdefg")


def made(images=6, files=None):
    logits = torch.randn(images, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(images) % 7
    return logits, make_predictions(logits, Split(torch.zeros(images, 2), labels, files), NAMES)


def test_rows_hold_what_the_logits_say():
    files = pa.array([f"{i}.png" for i in range(6)])
    logits, table = made(files=files)
    probabilities = logits.softmax(1)
    assert json.loads(table.schema.metadata[b"classes"]) == list(NAMES)
    pairs = zip(table.to_pylist(), probabilities.tolist(), strict=True)
    for row, (values, own) in enumerate(pairs):
        ranked = sorted(range(7), key=lambda c: -own[c])
        assert values["file"] == f"{row}.png" and values["label"] == NAMES[row]
        assert values["prediction"] == NAMES[ranked[0]]
        assert values["probability"] == own[ranked[0]]
        assert values["top5"] == [NAMES[c] for c in ranked[:5]]
        assert values["top5_probabilities"] == [own[c] for c in ranked[:5]]
        assert values["probabilities"] == own


def test_a_file_comes_back_whole(tmp_path):
    _, table = made()
    write_predictions(tmp_path / "p.parquet", table)
    again = read_table(tmp_path / "p.parquet", "way out")
    assert again.to_pylist() == table.to_pylist()
    assert again.schema.metadata == table.schema.metadata
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]
    kind = again.schema.field("probabilities").type
    assert (kind.list_size, kind.value_type) == (7, pa.float32())
    assert table["file"].null_count == 6  # in memory, so without files


def test_large_tables_keep_only_the_five_best(monkeypatch):
    monkeypatch.setattr(predictions, "MOST_CELLS", 41)
    assert "probabilities" not in made()[1].column_names
    monkeypatch.setattr(predictions, "MOST_CELLS", 42)
    assert "probabilities" in made()[1].column_names


def test_a_missing_or_damaged_file(tmp_path):
    path = tmp_path / "p.parquet"
    with pytest.raises(UserError, match=r"does not exist.*older version.*do this"):
        read_table(path, "do this")
    path.write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"cut short: do this"):
        read_table(path, "do this")
