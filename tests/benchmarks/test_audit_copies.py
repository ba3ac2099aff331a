"""The benchmark of changed copies counts those that an audit of the copies themselves reports."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.audit import copies as audit_copies
from benchmarks.audit.copies import CHANGES, Change
from benchmarks.command import main as bench_command
from benchmarks.common.result_files import read_all
from helpers import smooth_photo
from longtail.data.decoding.images import decode
from longtail.data.inspection import Inspection, inspect
from longtail.data.load import open_unread
from longtail.evaluation import tables
from longtail.reporting.audit import audit

ROOT = Path(__file__).parents[2]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Large and small photographs of two classes, an equal one, a flat one and a broken one."""
    folder = tmp_path / "photos"
    for part in ("train", "test"):
        for name in "ab":
            (folder / part / name).mkdir(parents=True)
    for number in range(12):
        size = (40, 36) if number % 4 == 0 else (96, 80)
        place = folder / ("test" if number % 3 == 0 else "train") / "ab"[number % 2]
        smooth_photo(number, size).save(place / f"{number}.png")
    shutil.copy(folder / "train/b/1.png", folder / "train/b/equal.png")
    Image.new("RGB", (64, 64), "grey").save(folder / "train/a/flat.png")
    (folder / "train/a/broken.png").write_bytes(b"")
    return folder


def look_at(photos: Path) -> Inspection:
    return inspect(*open_unread(str(photos)))


@pytest.mark.parametrize("name", CHANGES)
def test_a_copy_has_the_change_that_its_name_says(name: str) -> None:
    image, change = smooth_photo(0), CHANGES[name]
    copy = Image.open(io.BytesIO(change.apply(image)))
    assert copy.size == (round(96 * change.scale), round(80 * change.scale))
    pixels = np.asarray(image, dtype=np.float64)
    expected = np.minimum(pixels * change.light, 255).mean()
    assert np.asarray(copy).mean() == pytest.approx(expected, abs=2.5)
    again = io.BytesIO()
    copy.save(again, "JPEG", quality=change.quality)
    assert copy.quantization == Image.open(again).quantization


def join(groups: list[set[str]]) -> list[set[str]]:
    """Join groups that have a member in common."""
    joined: list[set[str]] = []
    for group in groups:
        apart = [other for other in joined if not other & group]
        joined = [*apart, group.union(*(other for other in joined if other & group))]
    return joined


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_found_is_what_an_audit_of_the_written_copies_reports(
    name: str, photos: Path
) -> None:
    inspection = look_at(photos)
    rows = audit_copies.draw_rows(inspection, 0)  # fewer images than a draw: all readable ones
    assert len(rows) == 14
    copies = {
        row: CHANGES[name].apply(Image.fromarray(decode(blob)))
        for row, blob in inspection.read_rows(rows)
    }
    found = audit_copies.measure_copies(inspection, copies)

    for row, copy in copies.items():
        path = photos / "val" / inspection.name_class(row) / f"{row.part}-{row.place}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(copy)
    whole = audit(str(photos)).inspection
    groups = join([{whole.name_row(row) for row in group.rows} for group in whole.duplicates])
    expected = 0
    for row in rows:
        copy = f"/{row.part}-{row.place}.jpg"
        for group in groups:
            if inspection.name_row(row) in group and any(each.endswith(copy) for each in group):
                expected += 1
    assert found["found"] == pytest.approx(100 * expected / 14)
    large = sum(min(Image.open(io.BytesIO(copy)).size) >= 32 for copy in copies.values())
    assert found["compared"] == large
    # all but the flat image, and those that became too small
    assert expected == large - 1
    assert len(found["missed_though_compared"]) == 1


def test_a_draw_depends_on_its_seed_only(photos: Path, monkeypatch) -> None:
    monkeypatch.setattr(audit_copies, "COPIES", 5)
    inspection = look_at(photos)
    draws = [audit_copies.draw_rows(inspection, seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert all(len(set(draw)) == 5 for draw in draws)
    assert audit_copies.measure_draw(inspection, 0) == audit_copies.measure_draw(inspection, 0)


def test_the_command_measures_missing_draws_and_writes_the_table(
    photos: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_copies, "SETS", {"photos": "Photographs"})
    monkeypatch.setattr(audit_copies, "CHANGES", {"same": Change(), "half": Change(scale=0.5)})
    words = ["audit", "--only", "copies", "--seeds"]
    bench_command([*words, "1"])
    first = tmp_path / "results/audit/photos-s0.json"
    kept = first.read_text()
    bench_command([*words, "2"])
    assert first.read_text() == kept
    found = json.loads(kept)
    assert (found["seed"], found["images"], found["copies"], found["groups"]) == (0, 14, 14, 1)
    assert "git" in found and found["changes"]["same"]["compared"] == 14
    share = f"{100 * 13 / 14:.1f} ± 0.0"
    page = (tmp_path / "results/audit.md").read_text()
    assert f"| Photographs | 14 | 2 | {share} |" in page
    capsys.readouterr()
    with pytest.raises(SystemExit):
        bench_command(["audit", "--only", "copy"])
    assert "--only copy: no name contains it. Did you mean" in capsys.readouterr().err


def test_the_docs_have_the_table_of_the_committed_files() -> None:
    found = read_all(ROOT / "results" / audit_copies.NAME)
    page = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    assert tables.markdown(*audit_copies.table(found)).strip() in page
