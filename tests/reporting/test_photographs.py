"""The example photographs of a report, and the whole page at three widths."""

import base64
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import longtail as lt
from browser import needs_chromium
from helpers import tiny_config, tiny_data
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.reporting import photographs
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

NAMES = (
    *("Tomato leaf bacterial spot of the lower leaves", "Squash powdery mildew leaf", "c"),
    *("an_extraordinarily_long_name_without_any_space_in_it", "Apple rust leaf", "Cherry leaf"),
)


@pytest.fixture(scope="module")
def data() -> Data:
    """Six classes of every split with long names, of photographs that can hardly be told apart."""
    made = tiny_data(counts=(130, 110, 40, 25, 12, 6))
    assert made.test is not None
    files = pa.array([f"test/{i}.jpg" for i in range(len(made.test))])
    return replace(made, classes=NAMES, test=replace(made.test, files=files))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data) -> list[Run]:
    """Two methods with two seeds each, hardly trained, so that there are mistakes."""
    config = tiny_config(epochs=1, lr=1e-4, alpha=0.5)
    names = ["baseline", "deconfound-tde"]
    return fit_all(config, names, [0, 1], out=tmp_path_factory.mktemp("runs"), data=data)


@pytest.fixture(scope="module")
def page(tmp_path_factory, runs) -> Path:
    return lt.report(runs, tmp_path_factory.mktemp("page") / "r.html")


def test_the_page_shows_the_thumbnails_that_the_evaluation_kept(page, runs, data):
    shown = re.findall(
        r'src="data:image/jpeg;base64,([^"]+)" alt="an image of ([^"]+)"', page.read_text()
    )
    tables = [parquet.read_table(runs[i].folder / "examples.parquet").to_pylist() for i in (0, 1)]
    mistakes = [row for rows in tables for row in rows if row["label"] != row["prediction"]]
    wanted = {(row["thumbnail"], NAMES[row["label"]]) for row in mistakes}
    assert wanted and {(base64.b64decode(image), name) for image, name in shown} == wanted
    assert len(shown) == len(mistakes)  # none twice
    assert 'title="test/' in page.read_text() and ", whatever the slider shows<" in page.read_text()
    assert page.stat().st_size < 3_000_000


def test_a_run_without_examples_has_no_section(tmp_path, runs):
    folder = Path(shutil.copytree(runs[0].folder, tmp_path / "old"))
    (folder / "examples.parquet").unlink()
    assert 'id="examples"' not in lt.report([folder], tmp_path / "r.html").read_text()
    Run(folder).write("examples.parquet", b"PAR1 cut")
    with pytest.raises(UserError, match="cut short: delete .*result.json, and the same"):
        lt.report([folder], tmp_path / "r.html")


def test_the_thumbnails_of_many_methods_stay_below_their_budget(tmp_path, runs, monkeypatch):
    full = lt.report(runs, tmp_path / "r.html").read_text()
    assert full.count("<summary>baseline, seed 0</summary>") == 2  # its examples and configuration
    monkeypatch.setattr(photographs, "BUDGET", full.count("base64,") // 2 * 900)
    less = lt.report(runs, tmp_path / "r.html").read_text()
    assert 0 < less.count("base64,") < full.count("base64,")


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1300, 1920])
def test_nothing_is_cut_off(chromium, page, width, scheme):
    chromium.show_at(width, scheme)
    chromium.open(page)
    assert chromium.overflows() == chromium.run(INSIDE) == []
    dark = chromium.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert chromium.complaints() == []


INSIDE = """[...document.querySelectorAll("main *")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > document.documentElement.clientWidth + 1);
}).map((e) => `${e.tagName} ${e.id} ${e.className.baseVal ?? e.className}`)"""
"""Elements that lie beside the page, in part or as a whole."""


@needs_chromium
def test_without_scripts_the_tables_are_there(chromium, page, runs):
    chromium.show_at(1300)
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(page)
        cells = """[...document.querySelectorAll("{} tbody tr")].map((row) =>
            row.innerText.split(/\\t+/))"""
        splits, classes = (chromium.run(cells.format(name)) for name in ("#splits", "#classes"))
        assert [row[0] for row in splits] == ["baseline", "deconfound-tde"]
        assert [row[1] for row in classes] == list(NAMES)
        first, second = (runs[i].result["per_class"] for i in (0, 1))
        for row, one, two in zip(classes, first, second, strict=True):
            change = f"{two - one:.1f}".replace("-", "\u2212")
            assert row[5:] == [f"{one:.1f}", f"{two:.1f}", change.replace("\u22120.0", "0.0")]
        assert len(chromium.run(cells.format(".confusion"))) == 3 * 3
        controls = "[...document.querySelectorAll('.controls, .live, .slider')]"
        assert chromium.run(f"{controls}.every((e) => !e.offsetWidth)")
        assert chromium.run("document.querySelectorAll('#examples img').length") > 0
        assert chromium.overflows() == []
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
