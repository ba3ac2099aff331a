"""The report: its content, the input it refuses, and its behaviour in a real browser."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import longtail as lt
from browser import needs_chromium
from helpers import tiny_config, tiny_data
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.core.manifest import forget
from longtail.data.base import Data, Split
from longtail.evaluation import scoring, tables
from longtail.evaluation.slider import POSITIONS, SliderCounts
from longtail.runs.compare import find_runs
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

COUNTS = (130, 110, 40, 25, 12, 6)
METHODS = ["baseline", "deconfound-tde"]
SMALL = {"backbone": "identity", "augment": "none", "epochs": 2, "batch_size": 64, "alpha": 0.5}


def make_runs(out: Path, data: Data, names=METHODS, seeds=(0,), **options) -> list[Run]:
    options = {**SMALL, **options}
    if names == ["baseline"] or options["alpha"] is None:
        del options["alpha"]
    return fit_all(tiny_config(**options), names, list(seeds), out=out, data=data)


@pytest.fixture(scope="module")
def data() -> Data:
    """Six classes of every split that overlap, so that alpha moves something."""
    made = tiny_data(images=False, counts=COUNTS)
    generator = torch.Generator().manual_seed(1)

    def blurred(split: Split) -> Split:
        noise = torch.randn(split.inputs.shape, generator=generator)
        return Split(split.inputs + 0.2 * noise, split.labels)

    assert made.test is not None
    test = Split(made.test.inputs.repeat(8, 1), made.test.labels.repeat(8))
    return replace(made, train=blurred(made.train), test=blurred(test))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data) -> list[Run]:
    return make_runs(tmp_path_factory.mktemp("runs"), data)


class TestBadInput:
    def refused(self, tmp_path, runs) -> str:
        with pytest.raises(UserError) as error:
            lt.report(runs, tmp_path / "r.html")
        assert not (tmp_path / "r.html").exists()
        return str(error.value)

    def copy(self, tmp_path, run) -> Path:
        return Path(shutil.copytree(run.folder, tmp_path / "copy"))

    def test_no_run_and_not_a_run(self, tmp_path):
        assert "at least one run" in self.refused(tmp_path, [])
        assert "is not a run" in self.refused(tmp_path, [tmp_path])
        missing = self.refused(tmp_path, [tmp_path / "nosuch"])
        assert "nosuch does not exist: pass a run, which is the --out folder of lo" in missing

    def test_a_page_of_others_is_not_replaced(self, tmp_path, runs, monkeypatch):
        page = lt.report(runs, tmp_path / "own.html").read_text()
        assert lt.report(runs, tmp_path / "own.html").read_text() == page
        (tmp_path / "mine.html").write_text("<h1>Mine</h1>")
        monkeypatch.setattr("longtail.reporting.page.open_runs", lambda _: pytest.fail("began"))
        with pytest.raises(UserError, match=r"mine\.html was not written .*begins with '<h1>Mine"):
            lt.report(runs, tmp_path / "mine.html")
        assert (tmp_path / "mine.html").read_text() == "<h1>Mine</h1>"

    def test_a_folder_stands_for_the_runs_in_it(self, tmp_path, runs, capsys):
        for run in runs:
            method = run.result["method"]
            shutil.copytree(run.folder, tmp_path / "several" / method / "s0")
        shutil.copytree(runs[1].folder, tmp_path / "several" / method / "s0" / "tuning")
        single = tmp_path / "several" / method / "s0"
        assert find_runs([single, tmp_path / "nothing"]) == [single, tmp_path / "nothing"]
        assert find_runs([tmp_path / "several"]) == [
            tmp_path / "several" / name / "s0" for name in sorted(METHODS)
        ]
        cli.main(["report", str(tmp_path / "several"), "-o", str(tmp_path / "r.html")])
        assert all(name in (tmp_path / "r.html").read_text() for name in METHODS)
        cli.main(["figure", "class-rank", str(tmp_path / "several"), "-o", str(tmp_path / "r.svg")])
        with pytest.raises(SystemExit, match="1"):  # these runs allow most figures
            cli.main(["figures", "--all", str(tmp_path / "several"), "-o", str(tmp_path / "all")])
        assert (tmp_path / "all" / "class-rank.svg").exists()

    def test_a_run_that_has_not_finished(self, tmp_path, runs):
        folder = self.copy(tmp_path, runs[1])
        (folder / "result.json").unlink()
        assert "has not finished: continue it with" in self.refused(tmp_path, [folder])
        refusal = self.refused(tmp_path, [runs[0], folder])
        assert f"{folder} has not finished: continue it with longtail train --resume" in refusal
        assert refusal.endswith(f", or name only the finished runs: {runs[0].folder}")

    def test_a_copy_without_its_small_files(self, tmp_path, runs):
        folder = self.copy(tmp_path, runs[1])
        metrics, names = folder / "metrics.jsonl", folder / "per_class.csv"
        metrics.write_text(metrics.read_text()[:-20])
        refusal = self.refused(tmp_path, [folder])
        assert f"{metrics} is damaged: it has" in refusal and "Copy it again" in refusal
        metrics.unlink()
        (folder / "env.json").unlink()
        page = lt.report([folder], tmp_path / "whole.html").read_text()
        assert ">unknown</pre>" in page
        for content, what in (("a,b\n1,2\n", "damaged"), (None, "missing")):
            names.unlink() if content is None else Run(folder).write(names.name, content)
            message = f"{names} is {what}: copy it again, or delete {folder}/result.json"
            assert message in self.refused(tmp_path, [folder])
            with pytest.raises(UserError, match=f"per_class.csv is {what}"):
                lt.load_model(folder)

    def test_a_run_of_another_version(self, tmp_path, runs):
        folder = self.copy(tmp_path, runs[1])
        stored = json.loads((folder / "slider.json").read_text())
        Run(folder).write("slider.json", json.dumps({**stored, "format": 99}))
        message = self.refused(tmp_path, [folder])
        assert "has format 99, this version of longtail reads 1 and 2" in message
        for cut in ("{", '{"format": 1}', '{"format": 2}'):
            Run(folder).write("slider.json", cut)
            assert "cut short" in self.refused(tmp_path, [folder])
        (folder / "slider.json").unlink()
        assert "slider.json is missing. Copy it again" in self.refused(tmp_path, [folder])
        forget(folder / "slider.json")  # as if it had never been written
        assert "since an older version evaluated it" in self.refused(tmp_path, [folder])

    def test_a_result_of_another_version(self, tmp_path, runs):
        folder = self.copy(tmp_path, runs[1])
        result = {name: v for name, v in runs[1].result.items() if name != "capture_seconds"}
        Run(folder).write("result.json", json.dumps(result))
        message = self.refused(tmp_path, [folder])
        assert "its result has no capture_seconds" in message and "--resume" in message

    def test_the_way_out_of_an_older_version_works(self, tmp_path, data):
        (run,) = make_runs(tmp_path / "x", data, ["deconfound-tde"])
        before, trained = run.result, (run.folder / "last.pt").read_bytes()
        for name in ("slider.json", "result.json"):
            (run.folder / name).unlink()
        fit_all(
            *(tiny_config(**SMALL), ["deconfound-tde"], [0]),
            **{"out": tmp_path / "x", "data": data, "resume": True},
        )
        assert run.result["per_class"] == before["per_class"]
        assert (run.folder / "last.pt").read_bytes() == trained
        assert lt.report([run], tmp_path / "r.html").exists()

    def test_runs_on_different_data(self, tmp_path, runs, data):
        others = make_runs(tmp_path / "a", replace(data, name="other"), ["baseline"])
        refusal = self.refused(tmp_path, [runs[0], *others])
        assert "make one report or figure for each data set" in refusal
        assert "differ in data: tiny and other" in refusal
        others = make_runs(tmp_path / "b", replace(data, subset_sha256="f" * 64), ["baseline"])
        assert "differ in training subset: " in self.refused(tmp_path, [runs[0], *others])
        assert data.test is not None
        fewer = replace(data, test=data.test.take(torch.arange(100)))
        others = make_runs(tmp_path / "c", fewer, ["baseline"])
        assert "differ in test images: 240 and 100" in self.refused(tmp_path, [runs[0], *others])
        renamed = replace(data, classes=tuple("uvwxyz"))
        others = make_runs(tmp_path / "d", renamed, ["baseline"])
        assert self.refused(tmp_path, [runs[0], *others]).endswith("differ in class names")


def test_a_tau_without_held_out_data_is_not_described_as_label_free(tmp_path, data):
    made = make_runs(tmp_path, data, ["baseline"])
    result = made[0].result | {"tau": 0.0, "alpha_rule": "least"}
    made[0].write("result.json", json.dumps(result))
    text = lt.report(made, tmp_path / "r.html").read_text()
    assert "tau 0, the value that changes least" in text and "mean cos" not in text


def test_the_page_names_settings_that_differ_besides_the_method(tmp_path, runs, data):
    longer = make_runs(tmp_path, data, ["deconfound-tde"], epochs=3)
    note = "The runs differ in more than their method"
    assert note not in lt.report(runs, tmp_path / "page.html").read_text()
    page = lt.report([runs[0], *longer], tmp_path / "page.html").read_text()
    more = "deconfound-tde saw 1.5 times as many training images as baseline"
    assert f"{note}: epochs 2, 3; {more}." in page
    results = [run.result for run in runs]
    assert tables.list_differences([results[0], {**results[1], "held_out": 9}]) == ["held out 0, 9"]
    early = [{name: r[name] for name in r if name != "train"} for r in results]
    assert tables.list_differences([early[0], {**early[1], "lr": 9.0}])[0].startswith("lr ")


def test_the_page_says_which_methods_saw_more_training_images(tmp_path, data):
    made = make_runs(
        tmp_path, data, ["baseline", "oltr"], alpha=None
    )  # oltr trains in two full stages
    page = lt.report(made, tmp_path / "page.html").read_text()
    note = "The runs differ in more than their method: "
    assert f"{note}oltr saw 2.0 times as many training images as baseline." in page
    one, two = (run.result for run in made)
    third = {**two, "method": "bbn"}
    assert tables.list_differences([two, one, third]) == [
        f"{name} saw 2.0 times as many training images as baseline" for name in ("oltr", "bbn")
    ]
    unknown = [{**one, "images": None}, {name: two[name] for name in two if name != "images"}]
    assert tables.list_differences(unknown) == []
    assert tables.list_differences([one, {**third, "images": one["images"] + 1}]) == []


FIGURES = """[...document.querySelectorAll("#splits tbody tr")].map(
    (row) => [3, 4, 5, 6].map((i) => row.cells[i].dataset.value))"""
PER_CLASS = "page.runs.map((run) => run.perClass)"


def move(alpha: float) -> str:
    return f"""$("alpha").value = {round(alpha * 20)};
        $("alpha").dispatchEvent(new Event("input"));"""


def figures_of(result) -> list[str]:
    return [result.overall, result.many, result.medium, result.few]


@needs_chromium
class TestInBrowser:
    def test_the_slider_gives_what_eval_gives(self, chromium, tmp_path, runs, data):
        page = lt.report(runs, tmp_path / "r.html")
        chromium.open(page)
        fixed, own = (lt.evaluate(run, data=data) for run in runs)
        assert chromium.run("$('alpha-shown').textContent") == "chosen by each run"
        moved = set()
        for alpha in (None, 0.0, 0.05, 0.15, 0.75, 1.5, 3.0):
            if alpha is not None:
                chromium.run(move(alpha))
            at = own if alpha is None else lt.evaluate(runs[1], data, alpha)
            shown = [[float(value) for value in row] for row in chromium.run(FIGURES)]
            assert chromium.run("$('splits').tHead.innerText").split()[-2:] == ["few", "slider"]
            assert shown[0] == pytest.approx(figures_of(fixed), abs=1e-9)
            assert shown[1] == pytest.approx(figures_of(at), abs=1e-9)
            assert chromium.run(PER_CLASS) == [list(fixed.per_class), list(at.per_class)]
            cells = "[...$('splits').tBodies[0].rows[1].cells].slice(3, 7).map(c => c.textContent)"
            assert chromium.run(cells) == [f"{value:.1f}" for value in figures_of(at)]
            moved.add(at.per_class)
        assert len(moved) > 2  # or nothing was tested
        assert chromium.complaints() == [] and chromium.requests() == [page.as_uri()]

    def test_the_class_mean_is_there_and_follows_where_the_test_set_is_skewed(
        self, chromium, tmp_path, data
    ):
        """Forty test images of class a, twenty of b, ten of c, five of d, two of e, none of f."""
        kept = [40 * c + i for c, n in enumerate((40, 20, 10, 5, 2, 0)) for i in range(n)]
        order = data.test.labels.argsort(stable=True)
        skewed = replace(data, test=data.test.take(order[torch.tensor(kept)]))
        made = make_runs(tmp_path, skewed)
        page = lt.report(made, tmp_path / "r.html")
        assert "overall is the mean over images" in page.read_text()
        chromium.open(page)
        heads = "[...$('splits').tHead.rows[0].cells].map((cell) => cell.textContent)"
        assert chromium.run(heads)[-3:] == ["few", "class mean", "slider"]
        cells = "[...$('splits').tBodies[0].rows[1].cells].map((cell) => cell.textContent)"
        moved = set()
        for alpha in (None, 0.0, 0.15, 0.75, 3.0):
            if alpha is not None:
                chromium.run(move(alpha))
            at = lt.evaluate(made[1], skewed, alpha)
            present = [value for value in at.per_class if value is not None]
            mean = sum(present) / len(present)
            assert len(present) == 5
            shown = float(chromium.run("$('splits').tBodies[0].rows[1].cells[7].dataset.value"))
            assert shown == pytest.approx(mean, abs=1e-9)
            wanted = ["-" if value is None else f"{value:.1f}" for value in figures_of(at)]
            assert chromium.run(cells)[3:8] == [*wanted, f"{mean:.1f}"]
            moved.add((mean, at.overall))
        assert len(moved) > 2 and max(abs(one - other) for one, other in moved) > 5
        follows = "$('splits').tBodies[0].rows[1].cells[8].firstChild.type"
        assert chromium.run(follows) == "checkbox"
        assert chromium.complaints() == []

    def test_long_names_of_few_classes_fit_the_axis_and_the_table(self, chromium, tmp_path, data):
        names = [f"long class name {c}" for c in "abcdef"]
        made = make_runs(tmp_path, replace(data, classes=tuple(names)))
        page = lt.report(made, tmp_path / "r.html")
        assert "standard deviation" not in page.read_text()  # of a single seed
        wide = page.read_text().replace(f'"{names[0]}"', f'"{names[0] * 9}"')
        chromium.show_at(1200)
        chromium.open(page)
        ticks = "[...$('rank').querySelectorAll('text')].map((text) => text.textContent)"
        assert set(names) <= set(chromium.run(ticks))
        page.write_text(wide)
        chromium.open(page)
        assert chromium.run("$('classes').offsetWidth <= $('classes').parentNode.clientWidth")

    def test_keys_links_and_the_own_alpha(self, chromium, tmp_path, runs):
        page = lt.report(runs, tmp_path / "r.html")
        for link, shown in (("99", "3.00"), ("much", "chosen by each run")):
            chromium.open(page, f"#alpha={link}")
            assert chromium.run("$('alpha-shown').textContent") == shown
        chromium.open(page, "#alpha=1.25")
        assert chromium.run("$('alpha-shown').textContent") == "1.25"
        chromium.run("$('alpha').focus()")
        chromium.press("ArrowRight")
        assert chromium.run("$('alpha').getAttribute('aria-valuetext')") == "alpha 1.30"
        assert chromium.run("location.hash") == "#alpha=1.3"
        summary = "deconfound-tde, alpha 1.3: overall"
        chromium.wait_for(f"$('announcement').textContent.includes('{summary}')")
        chromium.run("$('own').click()")
        assert chromium.run("$('splits').tBodies[0].rows[1].cells[1].textContent") == "0.5"
        assert chromium.run("document.querySelector('#marks .chosen').textContent") == "▲ 0.5"
        assert "deconfound-tde: alpha 0.5, fixed before training" in chromium.run(
            "$('chosen').textContent"
        )
        assert chromium.complaints() == []

    def test_sort_search_compare_and_csv(self, chromium, tmp_path, runs):
        chromium.open(lt.report(runs, tmp_path / "r.html"))
        names = "[...$('classes').tBodies[0].rows].map((row) => row.cells[1].textContent).join('')"
        assert chromium.run(names) == "abcdef"
        heads = "$('classes').tHead.rows[0].cells"
        chromium.run(f"{heads}[0].firstChild.click()")
        assert chromium.run(names) == "fedcba"
        assert chromium.run(f"{heads}[0].getAttribute('aria-sort')") == "descending"
        chromium.run("$('search').value = 'few'; $('search').dispatchEvent(new Event('input'))")
        assert chromium.run(names) == "fe"
        header, *rows = chromium.run("csv()").split("\r\n")[:-1]
        assert header.endswith(
            '"baseline, seed 0","deconfound-tde, seed 0, at alpha 0.5","second - first"'
        )
        first, second = (run.result["per_class"][5] for run in runs)
        assert rows[0].startswith('6,"f","few",6,40,')
        assert [float(v) for v in rows[0].split(",")[5:]] == pytest.approx(
            [first, second, second - first], abs=1e-4
        )
        chromium.run("$('first').selectedIndex = 2; $('first').dispatchEvent(new Event('change'))")
        assert "First: deconfound-tde, seed 0, at alpha 0." in chromium.run(
            "$('classes-caption').textContent"
        )
        assert chromium.complaints() == []

    def test_seeds_are_averaged_and_every_control_has_a_name(self, chromium, tmp_path, data):
        names = ["deconfound", "deconfound-tde"]
        made = make_runs(tmp_path, data, names, seeds=(0, 1))
        chromium.open(lt.report(made, tmp_path / "r.html"))
        rows = "[...$('splits').tBodies[0].rows].map((row) => row.innerText)"
        before = chromium.run(rows)
        body = (
            (tmp_path / "r.html").read_text().partition('id="splits"')[2].partition("</table>")[0]
        )
        static = re.findall(r"<td[^>]*>([^<]* ± [^<]*)</td>", body)
        assert len(static) == 8 and all(text in "".join(before) for text in static)
        chromium.run(move(3.0))
        plain, tde = chromium.run(rows)
        assert plain == before[0] and tde != before[1]  # the plain half stays where it is
        unnamed = """[...document.querySelectorAll("input, select, button")].filter((e) =>
            !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map((e) => e.id)"""
        assert chromium.run(unnamed) == []
        assert chromium.complaints() == []

    def test_two_groups_of_one_method_have_different_labels(self, chromium, tmp_path, data):
        weak, strong = (
            make_runs(tmp_path / str(alpha), data, ["deconfound-tde"], alpha=alpha)
            for alpha in (0.5, 2.5)
        )
        chromium.open(lt.report([*weak, *strong], tmp_path / "r.html"))
        wanted = ["deconfound-tde, alpha 0.5", "deconfound-tde, alpha 2.5"]
        text = "[...document.querySelectorAll('{}')].map((e) => e.textContent)"
        assert chromium.run(text.format("#splits tbody th")) == wanted
        assert chromium.run(text.format("#rank-title ~ .legend li")) == wanted
        options = chromium.run(text.format("#first option"))
        assert options[0] == "deconfound-tde, alpha 0.5, seed 0"
        assert options[2] == "deconfound-tde, alpha 2.5, seed 0"
        assert chromium.complaints() == []

    @pytest.mark.parametrize(
        ("counts", "absent"), [((130, 6), None), ((130, 40, 25), None), ((130, 40, 6), 2)]
    )
    def test_two_classes_no_few_and_a_class_without_test_images(
        self, counts, absent, chromium, tmp_path
    ):
        data = tiny_data(images=False, counts=counts)
        assert data.test is not None
        if absent is not None:
            kept = (data.test.labels != absent).nonzero().flatten()
            data = replace(data, test=data.test.take(kept))
        made = make_runs(tmp_path, data)
        page = lt.report(made, tmp_path / "r.html")
        chromium.open(page)
        chromium.run(move(2.0))
        at = lt.evaluate(made[1], data, 2.0)
        assert chromium.run(PER_CLASS)[1] == list(at.per_class)
        cells = "[...$('splits').tBodies[0].rows[1].cells].slice(3, 7).map(c => c.textContent)"
        wanted = ["-" if value is None else f"{value:.1f}" for value in figures_of(at)]
        assert chromium.run(cells) == wanted and ("-" in wanted)
        assert ("1 of the classes has no image" in page.read_text()) == (absent is not None)
        assert chromium.complaints() == []

    def test_names_are_text_and_never_markup(self, chromium, tmp_path, data):
        names = ("<img src=x onerror=alert(1)>", "</script><b>", "=1+1", 'a"b', "e\u0301", "")
        made = make_runs(tmp_path, replace(data, classes=names))
        chromium.open(lt.report(made, tmp_path / "r.html"))
        assert chromium.run("document.querySelectorAll('img, main b').length") == 0
        assert chromium.run("page.names") == list(names)
        assert '"\'=1+1"' in chromium.run("csv()")  # or a spreadsheet would compute it
        assert '"e\u0301"' in chromium.run("csv()")
        assert chromium.complaints() == []


@needs_chromium
class TestCurvesAndConfusions:
    """What the scripts draw beside the table of splits."""

    def test_the_confusion_of_splits_follows_the_slider(self, chromium, tmp_path, runs):
        chromium.open(lt.report(runs, tmp_path / "r.html"))
        stored = [json.loads((run.folder / "slider.json").read_text()) for run in runs]
        cells = """[...document.querySelectorAll("table[data-group='1'] tbody tr")].map((row) =>
            [...row.cells].slice(1).map((cell) => cell.textContent))"""
        caption = "document.querySelector(\"table[data-group='1']\").caption.textContent"

        def wanted(confusion) -> list[list[str]]:
            return [[f"{100 * cell / sum(row):.1f}" for cell in row] for row in confusion]

        assert chromium.run(cells) == wanted(stored[1]["own_confusion"])
        assert chromium.run(caption) == "deconfound-tde, alpha 0.5"
        moved = set()
        for alpha in (0.0, 0.75, 3.0):
            chromium.run(move(alpha))
            assert chromium.run(cells) == wanted(stored[1]["confusions"][round(20 * alpha)])
            moved.add(str(chromium.run(cells)))
        assert len(moved) == 3 and chromium.run(caption) == "deconfound-tde, alpha 3"
        still = "document.querySelector(\"table[data-group='0']\").caption.textContent"
        assert chromium.run(still) == "baseline, no alpha"
        assert chromium.complaints() == []

    def test_the_mark_of_the_best_follows_the_slider(self, chromium, tmp_path, runs):
        chromium.open(lt.report(runs, tmp_path / "r.html"))
        cells = """[...$("splits").tBodies[0].rows].map((row) => [...row.cells].slice(3, 7)
            .map((cell) => [Number(cell.textContent), cell.classList.contains("best")]))"""
        marks = set()
        for alpha in (0.0, 1.5, 3.0):
            chromium.run(move(alpha))
            for column in zip(*chromium.run(cells), strict=True):
                best = max(value for value, _ in column)
                assert [marked for _, marked in column] == [value == best for value, _ in column]
                marks.add(column[0][1])
        assert marks == {True, False}

    def test_a_run_of_format_1_is_shown_without_what_it_lacks(self, chromium, tmp_path, runs):
        folder = Path(shutil.copytree(runs[1].folder, tmp_path / "old"))
        stored = json.loads((folder / "slider.json").read_text())
        old = {name: stored[name] for name in ("alphas", "seen", "hits", "own_hits")}
        old |= {"format": 1, "before": stored["confusions"][0], "after": stored["own_confusion"]}
        Run(folder).write("slider.json", json.dumps(old))
        page = lt.report([runs[0], folder], tmp_path / "r.html")
        assert "do not follow the slider here" in page.read_text()
        assert "Most frequent confusions" not in page.read_text()
        chromium.open(page)
        chromium.run(move(3.0))
        caption = "document.querySelector(\"table[data-group='1']\").caption.textContent"
        assert chromium.run(caption) == "deconfound-tde, alpha 0.5"
        assert chromium.run("$('splits').tBodies[0].rows[1].cells[1].textContent") == "3"
        assert chromium.run("[...$('confused-group').options].map((o) => o.text)") == ["baseline"]
        assert chromium.complaints() == []
        chromium.open(lt.report([folder], tmp_path / "r.html"))
        assert chromium.run("$('chosen-section').hidden")

    def test_the_curve_over_alpha_has_the_accuracies_and_intervals_of_eval(
        self, chromium, tmp_path, data
    ):
        made = make_runs(tmp_path, data, ["deconfound-tde"], seeds=(0, 1))
        chromium.open(lt.report(made, tmp_path / "r.html"))
        assert chromium.run("state.measure") == "overall"
        for measure in ("overall", "few"):
            change = f"$('measure').value = '{measure}'; "
            chromium.run(change + "$('measure').dispatchEvent(new Event('change'))")
            middle, low, high = chromium.run("paths[0].figures[15]")
            evaluated = [lt.evaluate(run, data, alpha=0.75) for run in made]
            mean = sum(getattr(result, measure) for result in evaluated) / 2
            assert middle == pytest.approx(mean, abs=1e-9)
            ends = [result.to_json()["intervals"][measure] for result in evaluated]
            assert (low, high) == pytest.approx([sum(side) / 2 for side in zip(*ends, strict=True)])
            stored = [run.result["intervals"][measure] for run in made]
            assert chromium.run("page.runs.map((run) => run.ownIntervals[state.measure])") == stored
        marks = "$('path').querySelectorAll('.mark').length"
        assert chromium.run(marks) == 0
        chromium.run(move(0.75))
        assert chromium.run(marks) == 1
        assert chromium.complaints() == []

    def test_ticks_are_round_and_the_splits_have_bounds(self, chromium, tmp_path, runs):
        chromium.open(lt.report(runs, tmp_path / "r.html"))
        assert chromium.run("roundTicks(0, 87, 5)") == [0, 20, 40, 60, 80, 100]
        assert chromium.run("roundTicks(31.2, 36.9, 5)") == [30, 32, 34, 36, 38]
        assert chromium.run("roundTicks(0, 0.31, 5)") == [0, 0.1, 0.2, 0.3, 0.4]
        assert chromium.run("countTicks(40, 8)") == [1, *range(5, 41, 5)]
        assert chromium.run("countTicks(2, 8)") == [1, 2]
        assert chromium.run("countTicks(1000, 10)") == [1, *range(100, 1001, 100)]
        bounds = "[...$('rank').querySelectorAll('text.bound')].map((t) => t.textContent)"
        assert chromium.run(bounds) == ["many", "medium", "few"]
        assert chromium.run("splitBounds().map(({ at }) => at)") == pytest.approx([0, 1 / 3, 2 / 3])
        assert chromium.run("$('rank').querySelectorAll('line.bound').length") == 2

    def test_the_pointer_shows_the_name_of_the_class(self, chromium, tmp_path, runs):
        chromium.open(lt.report(runs, tmp_path / "r.html"))
        over = """(() => { const box = $("rank").getBoundingClientRect();
            const at = { clientX: box.left + box.width * 0.9, clientY: box.top + 50 };
            $("rank").dispatchEvent(new PointerEvent("pointermove", at)); })()"""
        tip = "$('rank').parentNode.querySelector('.tip')"
        assert chromium.run(f"{tip}.hidden")
        chromium.run(over)
        text = chromium.run(f"{tip}.innerText").split("\n")
        assert text[0] == "f" and text[1] == "few: 6 training, 40 evaluated images"
        own = [run.result["per_class"][5] for run in runs]
        assert text[2:] == [f"baseline: {own[0]:.1f}", f"deconfound-tde: {own[1]:.1f}"]
        chromium.run('$("rank").dispatchEvent(new PointerEvent("pointerleave"))')
        assert chromium.run(f"{tip}.hidden")

    def test_classes_are_chosen_by_name(self, chromium, tmp_path, runs, data):
        chromium.open(lt.report(runs, tmp_path / "r.html"))
        chromium.run("state.chosen = []")
        for name in ("F", "a", "nothing"):
            chromium.run(
                f"$('add-class').value = '{name}';$('add-class').dispatchEvent(new Event('change'))"
            )
        rows = """[...$("chosen-table").tBodies[0].rows].map((row) =>
            [...row.cells].map((cell) => cell.textContent))"""
        stored = json.loads((runs[1].folder / "slider.json").read_text())
        taken = {(c, other): n for c, other, n in stored["mistakes"]}
        correct = stored["own_hits"]

        def row(number: int, name: str, numbers: list[int]) -> list[str]:
            whole = [*numbers, 40 - sum(numbers)]
            return [f"{number} {name}", *(str(int(100 * n / 40 + 0.5)) for n in whole)]

        assert chromium.run(rows) == [
            row(1, "f", [correct[5], taken.get((5, 0), 0)]),
            row(2, "a", [taken.get((0, 5), 0), correct[0]]),
        ]
        assert f"f: {correct[5]} of 40 correct" in chromium.run("$('takers').innerText")
        chromium.run("$('chips').firstChild.click()")
        assert [row[0] for row in chromium.run(rows)] == ["1 a"]
        assert chromium.complaints() == []


def test_the_best_of_each_column_is_marked(tmp_path, runs):
    text = lt.report(runs, tmp_path / "r.html").read_text()
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r'<td data-label="(\w+)"( class="best")?>([\d.]+)</td>', body)
    for name in ("overall", "many", "medium", "few"):
        cells = [(float(value), bool(best)) for label, best, value in rows if label == name]
        assert [best for _, best in cells] == [v == max(cells)[0] for v, _ in cells]
    assert 'class="best"' not in lt.report(runs[:1], tmp_path / "r.html").read_text()


def test_averages_and_intervals_are_shown_where_results_have_them(tmp_path, runs):
    folders = [shutil.copytree(run.folder, tmp_path / str(i)) for i, run in enumerate(runs)]
    macro = {"precision": 50.0, "recall": 40.26, "f1": None, "average_precision": 61.0}
    for folder, top5 in zip(folders, (90.0, 80.0), strict=True):
        result = json.loads((folder / "result.json").read_text())
        result |= {"macro": macro, "top5": top5, "intervals": {"overall": [40.0, 51.25]}}
        Run(folder).write("result.json", json.dumps(result))
    text = lt.report(folders, tmp_path / "r.html").read_text()
    body = text.partition('id="averages-title"')[2].partition("</table>")[0]
    cells = re.findall(r"<t[hd][^>]*?(?: class=\"(best)\")?>([^<]*)</t[hd]>", body)
    assert [text for _, text in cells[7:14]] == [
        *("baseline", "50.0", "40.3", "-", "61.0", "90.0", "40.0 to 51.2")
    ]
    assert [bool(best) for best, _ in cells[7:14]] == [0, 1, 1, 0, 1, 1, 0]
    assert [bool(best) for best, _ in cells[14:]] == [0, 1, 1, 0, 1, 0, 0]
    old = {k: v for k, v in result.items() if k not in ("macro", "top5", "intervals")}
    Run(folder).write("result.json", json.dumps(old))
    assert "averages-title" not in lt.report(folders, tmp_path / "r.html").read_text()


def test_no_row_comes_twice(tmp_path, data):
    made = make_runs(tmp_path, data, ["deconfound", "deconfound-tde"])
    copy = shutil.copytree(made[1].folder, tmp_path / "copy")
    text = lt.report([*made, copy], tmp_path / "r.html").read_text()
    assert "(again" not in text
    captions = re.findall("<caption>(deconfound[^<]*, alpha[^<]*)</caption>", text)
    assert captions == ["deconfound, alpha 0", "deconfound-tde, alpha 0.5"]
    alone = lt.report(made[1:], tmp_path / "r.html").read_text()
    captions = re.findall("<caption>(deconfound[^<]*, alpha[^<]*)</caption>", alone)
    assert captions == ["deconfound-tde, alpha 0", "deconfound-tde, alpha 0.5"]


@needs_chromium
def test_a_training_at_alpha_0_is_offered_and_drawn_once(chromium, tmp_path, data):
    made = make_runs(tmp_path, data, ["deconfound", "deconfound-tde"])
    chromium.open(lt.report(made, tmp_path / "r.html"))
    options = chromium.run("[...$('first').options].map((option) => option.text)")
    assert options == ["deconfound, seed 0", "deconfound-tde, seed 0"]
    assert chromium.run("$('path').querySelectorAll('polyline').length") == 1
    assert chromium.run("$('path').querySelectorAll('circle').length") == 2  # their own alphas


def make_auto(out: Path, data: Data, *rules: str) -> list[Run]:
    """Runs of `auto`, whose seeds chose `rules`, and the training that they share with others."""
    held = replace(data, val=data.test)
    made = []
    for seed, rule in enumerate(rules):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scoring, "find_best", lambda standings, labels, rule=rule: rule)
            made += make_runs(out / f"auto{seed}", held, ["auto"], seeds=(seed,), alpha=None)
    return made


def test_seeds_of_auto_are_one_method_whatever_rules_they_chose(tmp_path, data):
    made = make_auto(tmp_path, data, "nearest-mean", "tde:1", "self-prior:1")
    assert [run.result["heads"] for run in made] == [1, 2, 2]
    (row,) = tables.rows([run.result for run in made])
    assert (row.method, row.seeds, row.alpha) == ("auto", 3, "-, 1")
    other = make_auto(tmp_path / "other", data, "nearest-mean")
    (again,) = [{**run.result, "options": {"heads": "4"}} for run in other]
    labels = [row.method for row in tables.rows([made[0].result, again])]
    assert labels == ["auto, heads default", "auto, heads 4"]
    fixed = [{**run.result, "options": {"rule": "nearest-mean"}} for run in other]
    labels = [row.method for row in tables.rows([made[0].result, *fixed])]
    assert labels == ["auto, rule default", "auto, rule nearest-mean"]


@needs_chromium
def test_a_rule_without_alpha_has_a_line_of_its_own(chromium, tmp_path, data):
    held = replace(data, val=data.test)
    made = [
        *make_auto(tmp_path, data, "nearest-mean"),
        *make_runs(tmp_path / "tde", held, METHODS[1:]),
    ]
    assert len({run.result["recipe_id"] for run in made}) == 1
    page = lt.report(made, tmp_path / "r.html")
    captions = re.findall("<caption>([^<]*, (?:no alpha|alpha .*))</caption>", page.read_text())
    assert captions == ["auto, no alpha", "deconfound-tde, alpha 0", "deconfound-tde, alpha 0.5"]
    chromium.open(page)
    lines = "paths.map(({ label, points }) => [label, points.length])"
    assert chromium.run(lines) == [["deconfound-tde", len(POSITIONS)], ["auto", 2]]


@needs_chromium
def test_seeds_with_and_without_an_alpha_share_a_curve(chromium, tmp_path, data):
    made = make_auto(tmp_path, data, "nearest-mean", "tde:1")
    chromium.open(lt.report(made, tmp_path / "r.html"))
    at_zero = (made[0].result["overall"] + made[1].result["sweep"]["0"]["overall"]) / 2
    assert chromium.run("paths[0].figures[0][0]") == pytest.approx(at_zero, abs=1e-3)
    assert chromium.run("paths.map(({ points }) => points.length)") == [len(POSITIONS)]
    assert chromium.run("$('path').querySelectorAll('circle').length") == 1
    assert chromium.run("document.querySelectorAll('#splits input').length") == 1
    assert chromium.complaints() == []


@needs_chromium
def test_a_single_run_without_alpha_is_compared_with_nothing(chromium, tmp_path, runs):
    page = lt.report(runs[:1], tmp_path / "r.html")
    chromium.open(page)
    heads = "[...$('classes').tHead.rows[0].cells].map((cell) => cell.textContent)"
    assert chromium.run(heads)[-2:] == ["evaluated images", "accuracy (%)"]
    assert chromium.run("$('classes').rows[1].cells.length") == 6
    assert chromium.run("$('extremes').innerText").startswith("Worst classes\n")
    assert chromium.run("$('alpha-section').hidden")
    assert "slider" not in chromium.run("document.body.innerText")
    header, first, *_ = chromium.run("csv()").split("\r\n")
    assert header.endswith('"evaluated images","baseline, seed 0"')
    assert len(first.split(",")) == 6
    assert chromium.complaints() == []


def large_run(folder: Path, seed: int, small: Run) -> Run:
    """A made-up run with 1,000 classes and 50 test images of each."""
    draw = np.random.default_rng(seed)
    hits = draw.integers(51, size=(len(POSITIONS) + 1, 1000)).tolist()
    taken = draw.integers(1000, size=25_000).tolist()
    slider = SliderCounts(
        alphas=POSITIONS,
        seen=(50,) * 1000,
        hits=tuple(map(tuple, hits[1:])),
        own_hits=tuple(hits[0]),
        confusions=(((9, 1, 0),) * 3,) * len(POSITIONS),
        own_confusion=((8, 1, 1),) * 3,
        mistakes=tuple((place // 25, other, 1) for place, other in enumerate(taken)),
    )
    counts = [max(5, round(1280 * 0.994**c)) for c in range(1000)]
    by_class = dict.fromkeys(
        ("per_class", "feature_norm", "weight_norm", "class_cos"), [1.0] * 1000
    )
    result = small.result | by_class
    result |= {"counts": counts, "seed": seed, "recipe_id": str(seed)}
    shutil.copytree(small.folder, folder)
    rows = [f"class number {c},{n},0\n" for c, n in enumerate(counts)]
    Run(folder).write("per_class.csv", "class,train_images,accuracy\n" + "".join(rows))
    Run(folder).write("slider.json", json.dumps(slider.to_json()))
    Run(folder).write("result.json", json.dumps(result))
    return Run(folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory, runs) -> Path:
    """The page of five runs."""
    out = tmp_path_factory.mktemp("large")
    made = [large_run(out / str(seed), seed, runs[1]) for seed in range(5)]
    return lt.report(made, out / "r.html")


def test_a_thousand_classes_and_fifty_thousand_images_make_a_small_page(large):
    assert large.stat().st_size < 1_500_000  # thumbnails may take as much again
    text = large.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http:" not in text and "https:" not in text
    assert "1,000 classes" in text and "1,280 to 5 per class" in text


@needs_chromium
def test_the_slider_redraws_fifty_rows_of_a_thousand_classes(large, chromium):
    """All of them would take the slider too long; the button asks for them."""
    chromium.open(large)
    rows = "$('classes').tBodies[0].rows.length"
    before = chromium.run(PER_CLASS)
    chromium.run(move(1.5))
    after = chromium.run(PER_CLASS)
    assert len(after[0]) == 1000 and after != before
    assert chromium.run(rows) == 50
    chromium.run("$('more').click()")
    assert chromium.run(rows) == 1000
    assert chromium.complaints() == []


@needs_chromium
@pytest.mark.parametrize("width", [390, 1300, 1920])
def test_nothing_of_a_thousand_classes_is_cut_off(large, chromium, width):
    chromium.show_at(width)
    chromium.open(large)
    assert chromium.overflows() == []
    ticks = "[...$('rank').querySelectorAll('.tick')].map((tick) => tick.textContent)"
    ranks = list(map(int, chromium.run(ticks)))
    assert ranks[0] == 1 and all(rank % 100 == 0 for rank in ranks[1:]) and ranks[-1] == 1000
