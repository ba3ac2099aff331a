"""The report about finished detectors."""

import json
import shutil

import pytest

from browser import needs_chromium
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection import report as page
from longtail.detection.run import DetectionRun

CPU = MachineConfig(device="cpu")


def test_a_report_averages_only_runs_that_differ_in_their_seed(run):
    first = {**run.result, "ap": {name: 10.0 for name in run.result["ap"]}}
    second = {**first, "seed": 1, "ap": {name: 20.0 for name in first["ap"]}}
    longer = {**first, "epochs": 24, "train": {**first["train"], "epochs": 24}}
    fewer = {**second, "inference": {**first["inference"], "detections": 9}}
    head = ["background-exempt", "1.5"]
    rows = page.make_rows([first, second, longer, fewer])
    assert [[best for _, best in row[:5]] for row in rows] == [[False] * 4 + [b] for b in (0, 0, 1)]
    assert [[text for text, _ in row[:5]] for row in rows] == [
        ["deconfound-tde, epochs 1, detections 5", *head, "2", "15.0 ± 7.1"],
        ["deconfound-tde, epochs 24, detections 5", *head, "1", "10.0"],
        ["deconfound-tde, epochs 1, detections 9", *head, "1", "20.0"],
    ]


def test_a_report_lists_other_differences_than_the_method(run, data, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    result = {**run.result, "method": "cosine-tde", "heads": 1}
    result["train"] = {**result["train"], "epochs": 24}
    result["inference"] = {**result["inference"], "detections": 9}
    DetectionRun(other).write("result.json", json.dumps(result))
    note = "The runs differ in more than their method: epochs 1, 24; detections 5, 9."
    for folders, said in (([run.folder], 0), ([run.folder, other], note)):
        out = tmp_path / "page.html"
        text = page.report(folders, out, data=data, machine=CPU, images=0).read_text()
        assert said in text if said else "The runs differ" not in text


def test_a_report_has_each_run_once(run, data, tmp_path):
    again = tmp_path / "link"
    again.symlink_to(run.folder)
    folders, out = [run.folder, again], tmp_path / "page.html"
    text = page.report(folders, out, data=data, machine=CPU, images=1).read_text()
    assert text.count("<svg") == 1 and "± 0.0" not in text


def test_a_copy_is_the_same_run(run, data, tmp_path):
    copy = shutil.copytree(run.folder, tmp_path / "copy")
    out = page.report([run.folder, copy], tmp_path / "p.html", data=data, machine=CPU, images=0)
    assert out.read_text().count("<svg") == 1 and "again" not in out.read_text()


def test_a_result_of_another_version_is_explained(run, data, tmp_path):
    older = DetectionRun(shutil.copytree(run.folder, tmp_path / "older"))
    result = {name: value for name, value in run.result.items() if name != "images_per_second"}
    older.write("result.json", json.dumps(result))
    said = r"older is of another version .*has no images_per_second\. Delete .*detect train command"
    with pytest.raises(UserError, match=said):
        page.report([older.folder], tmp_path / "p.html", data=data, machine=CPU, images=0)


def test_alpha_zero_is_not_a_missing_alpha(run):
    rows = page.make_rows([{**run.result, "alpha": alpha, "seed": 0} for alpha in (0.0, None)])
    assert [row[2][0] for row in rows] == ["0", "-"]


def test_a_page_of_others_is_refused_before_images_are_read(run, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    out.write_text("<h1>Mine</h1>")
    monkeypatch.setattr(page, "OpenDetector", lambda *_, **__: pytest.fail("began"))
    with pytest.raises(UserError, match="was not written by longtail"):
        page.report([run.folder], out, machine=CPU)
    assert out.read_text() == "<h1>Mine</h1>"


@needs_chromium
@pytest.mark.parametrize("width", [390, 1300, 1920])
def test_nothing_of_a_report_is_cut_off(run, data, tmp_path, chromium, width):
    out = page.report([run.folder], tmp_path / "page.html", data=data, machine=CPU, images=1)
    chromium.show_at(width)
    chromium.open(out)
    assert chromium.overflows() == [] and chromium.complaints() == []
    labels = "[...document.querySelectorAll('td')].map((cell) => cell.dataset.label)"
    heads = "[...document.querySelectorAll('thead th')].slice(1).map((cell) => cell.textContent)"
    assert chromium.run(labels) == chromium.run(heads)
