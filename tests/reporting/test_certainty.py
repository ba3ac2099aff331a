"""The section of the report on certainty, and its pictures."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

import longtail as lt
from browser import needs_chromium
from helpers import tiny_config, tiny_data
from longtail.data.base import Split
from longtail.reporting.certainty_pictures import (
    HEIGHT,
    LEFT,
    SIDE,
    TOP,
    draw_abstention,
    draw_coverage,
    draw_reliability,
)
from longtail.reporting.certainty_section import render_certainty
from longtail.reporting.reported_runs import group_runs, open_runs
from longtail.runs.fit import fit_all


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    made = tiny_data(images=False, counts=(130, 60, 12, 6))
    generator = torch.Generator().manual_seed(0)

    def repeat(split: Split, times: int) -> Split:
        inputs = split.inputs.repeat(times, 1)
        return Split(
            inputs + 0.3 * torch.randn(inputs.shape, generator=generator),
            split.labels.repeat(times),
        )

    test = repeat(made.test, 6)
    data = replace(made, train=repeat(made.train, 1), val=repeat(made.test, 5), test=test)
    folder = tmp_path_factory.mktemp("certainty")
    config = tiny_config(backbone="identity", augment="none", epochs=2)
    runs = fit_all(config, ["baseline", "deconfound"], [0], out=folder, data=data)
    return lt.report(runs, folder / "report.html"), runs


def test_figures_of_the_page_are_those_of_the_results(page):
    path, runs = page
    text = path.read_text()
    for run in runs:
        answers, found = run.result["answers"], run.result["reliability"]["calibrated"]
        assert f'<td data-label="NLL">{found["nll"]:.3f}</td>' in text
        assert f'<td data-label="ECE">{100 * found["ece"]:.1f}</td>' in text
        assert f'<td data-label="coverage">{answers["sets"]["overall"]:.1f}</td>' in text
        assert f'<td data-label="changed">{answers["changed"]:.1f}</td>' in text
    assert "Reliability diagram" in text and "Accuracy against coverage" in text
    assert "images of the validation part" in text and "5 % false alarms" in text


def test_the_pictures_are_of_the_best_group(page):
    groups = group_runs(open_runs(page[1]))
    names = [group[0].name for group in groups]
    assert len(names) == 2
    for best, name in zip(groups, names, strict=True):
        text = render_certainty(groups, best)
        assert [other in text for other in names] == [other == name for other in names]


def test_a_run_with_too_few_held_out_images_says_that_it_marks_nothing(page, tmp_path):
    few = tmp_path / "few"
    shutil.copytree(page[1][0].folder, few)
    (few / "manifest.json").unlink()
    result = page[1][0].result
    for kept, absent, present in (
        ((), "marks an image as unknown if", "marks no image as unknown: its held-out images are"),
        (("0.1",), "are marked at 5 % false alarms", "(10 % false alarms)"),
    ):
        for by_rate in result["trust"]["novelty"]["thresholds"].values():
            for rate in by_rate.keys() - set(kept):
                del by_rate[rate]
            by_rate |= {rate: 2.5 for rate in kept}
        (few / "result.json").write_text(json.dumps(result))
        text = lt.report([few], tmp_path / "r.html").read_text()
        assert absent not in text and present in text


def test_a_result_without_certainty_has_no_section(page, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(page[1][0].folder, old)
    (old / "manifest.json").unlink()
    new = ("reliability", "trust", "answers")
    kept = {k: v for k, v in page[1][0].result.items() if k not in new}
    (old / "result.json").write_text(json.dumps(kept))
    assert "Calibration and answer sets" not in lt.report([old], tmp_path / "r.html").read_text()


def test_points_lie_where_their_figures_say():
    picture = draw_reliability([[0.5, 0.25, 1.0]], [[0.75, 0.75, 0.5]])
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture)
    wanted = [(0.5, 0.25), (0.75, 0.75)]
    assert [tuple(map(float, one)) for one in found] == [
        (LEFT + SIDE * x, TOP + SIDE * (1 - y)) for x, y in wanted
    ]
    assert "sets of at most 2 classes: 40.0 % of the images" in draw_abstention([[2, 40.0, 90.0]])


def test_bars_of_coverage_go_from_head_to_tail_and_skip_absent_classes():
    picture = draw_coverage([50.0, 100.0, None], [5, 200, 30], ["few", "many", "medium"], 0.9)
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" style="fill', picture)]
    assert heights == [HEIGHT, HEIGHT / 2]
    assert picture.index("--many") < picture.index("--few") and "--medium" not in picture


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])
def test_nothing_is_cut_off(page, chromium, width, scheme):
    chromium.show_at(width, scheme)
    chromium.open(page[0])
    assert not chromium.overflows() and not chromium.complaints()
