"""The figures: the numbers that they draw, their files, and the input that they refuse."""

import itertools
import json
import re
import shutil
import statistics
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.path import Path as MatplotlibPath

import reference
from helpers import read_page, tiny_config, tiny_data
from longtail.cli import parser as cli
from longtail.cli.figure import find_sources
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.evaluation import tables
from longtail.reporting import figures
from longtail.reporting.class_order import COLOURS, rank_classes
from longtail.reporting.figures import (
    canvas,
    classes,
    curves,
    decomposition,
    maps,
    simulated,
    style,
)
from longtail.reporting.figures.groups import group_results
from longtail.reporting.template import source
from longtail.runs import compare as comparing
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.runs.reopen import reopen

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results/cifar-lt/cifar100-lt-100/resnet32-dual"
METHODS = ["baseline", "deconfound", "deconfound-tde"]


def make_runs(out: Path, data: Data, names=METHODS, seeds=(0, 1), **options) -> list[Run]:
    return fit_all(tiny_config(epochs=1, **options), names, list(seeds), out=out, data=data)


@pytest.fixture(scope="module")
def data() -> Data:
    return tiny_data(counts=(130, 12, 40, 110))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data) -> list[Run]:
    return make_runs(tmp_path_factory.mktemp("runs"), data)


@pytest.fixture
def plain_simulations(monkeypatch) -> None:
    """Empty axes in place of the figures without runs, which take longest and have own tests."""
    for name in figures.SIMULATED:
        monkeypatch.setitem(figures.FIGURES, name, lambda _: canvas.make_panels(1))


def committed(*methods: str) -> list[Path]:
    return [path for method in methods for path in sorted(RESULTS.glob(f"{method}-s*.json"))]


def values(path: Path, name: str) -> list:
    return json.loads(path.read_text())[name]


class TestNumbers:
    def test_seeds_become_a_mean_and_a_deviation_of_each_class(self):
        own = committed("baseline")
        read = comparing.read_all([*own, *committed("deconfound")])
        baseline, deconfound = group_results(read)
        assert (baseline.label, deconfound.label) == ("baseline", "deconfound")
        for field in ("feature_norm", "weight_norm", "per_class"):
            found = baseline.by_class(field, range(100))
            for c in (0, 50, 99):
                over_seeds = [values(path, field)[c] for path in own]
                mean, deviation = statistics.fmean(over_seeds), statistics.stdev(over_seeds)
                assert found[c] == pytest.approx((mean, deviation))

    def test_means_of_splits(self):
        paths = committed("baseline")
        (group,) = group_results(comparing.read_all(paths))
        counts = values(paths[0], "counts")
        few = [
            v
            for p in paths
            for v, n in zip(values(p, "feature_norm"), counts, strict=True)
            if n < 20
        ]
        found = classes.average_splits(group, "feature_norm", counts)
        assert list(found) == ["many", "medium", "few"]
        assert found["few"] == pytest.approx(sum(few) / len(few))

    def test_other_rates_are_other_lines_but_a_missing_rate_is_not(self, tmp_path):
        older, *files = [committed("baseline")[1], *momentum_files(tmp_path)]
        labels = [group.label for group in group_results(comparing.read_all([older, files[0]]))]
        assert labels == ["baseline"]
        labels = [group.label for group in group_results(comparing.read_all(files))]
        differing = ["momentum 0.9, lr 0.2", "momentum 0.98, lr 0.2", "momentum 0.98, lr 0.04"]
        assert labels == [f"baseline, {what}" for what in differing]

    def test_classes_stand_from_head_to_tail(self):
        assert rank_classes([5, 9, 9, 1]) == [1, 2, 0, 3]

    def test_neighbours_are_averaged_and_fewer_at_the_ends(self):
        (group,) = group_results(comparing.read_all(committed("baseline")[:1]))
        order = list(range(100))
        found = classes.smooth(group, order, 11)
        accuracy = group.first["per_class"]
        for i in range(100):
            near = [accuracy[j] for j in range(100) if i - 5 <= j <= i + 5]
            assert found[i] == pytest.approx((sum(near) / len(near), None))
        assert [classes.choose_window(n) for n in (2, 26, 100, 1000)] == [1, 3, 11, 101]

    @pytest.mark.parametrize("turned", [False, True])
    def test_of_one_training_the_alphas_and_most_seeds_are_drawn_in_any_order(self, turned):
        own, plain = committed("deconfound-tde"), committed("deconfound")
        for paths in ([*own, *plain], [*own, plain[0]], [own[0], *plain]):
            found = comparing.read_all(paths[::-1] if turned else paths)
            (group,) = curves.select_trainings(group_results(found))
            assert len(group.results) == max(len(own), len(plain)) > 1
            with_alphas = paths[1] in own
            assert all(bool(r["alpha"]) is with_alphas for r in group.results)

    def test_alpha_is_the_sweep_and_a_training_is_drawn_once(self):
        paths = committed("deconfound", "deconfound-tde", "baseline")
        (group,) = curves.select_trainings(group_results(comparing.read_all(paths)))
        assert group.label == "deconfound-tde"
        path = curves.collect_alpha_path(group)
        few = [values(p, "sweep")["1.5"]["few"] for p in committed("deconfound-tde")]
        assert path[1.5]["few"] == pytest.approx((statistics.fmean(few), statistics.stdev(few)))
        assert list(path) == [i / 4 for i in range(13)]

    def test_momentum_is_compared_with_itself_at_the_basis(self):
        def result(mu, lr, seed, few):
            splits = {"overall": few, "many": 50.0, "medium": None, "few": few}
            return {"method": "baseline", "momentum": mu, "lr": lr, "seed": seed, **splits}

        results = [
            *(result(0.98, 0.2, 0, 10.0), result(0.98, 0.2, 1, 20.0)),
            *(result(0.9, 0.2, 0, 15.0), result(0.9, 0.2, 1, 10.0)),
            *(result(0.98, 0.04, 0, 5.0), result(0.5, 1.0, 0, 6.0)),
            result(0.5, 3.0, 0, 6.0),  # neither its rate nor its ratio has a basis
        ]
        held = curves.group_settings(results)
        assert list(held) == ["lr 0.2 fixed", "lr / (1 - mu) = 2 fixed"]
        fixed_rate, fixed_ratio = map(curves.compute_momentum_path, held.values())
        assert fixed_rate[0.98]["few"] == (0.0, 0.0)
        mean, deviation = fixed_rate[0.9]["few"]
        assert mean == pytest.approx((50 - 50) / 2) and deviation == pytest.approx(5000**0.5)
        assert fixed_rate[0.9]["many"] == (0.0, 0.0) and fixed_rate[0.9]["medium"] is None
        assert list(fixed_ratio) == [0.5, 0.9, 0.98]
        assert fixed_ratio[0.5]["few"] == (pytest.approx(20.0), None)
        assert fixed_ratio[0.9]["few"] == (pytest.approx(200.0), None)  # seed 1 has no basis

    def test_cosine_puts_the_most_imbalanced_first_and_measures_unevenness(self, tmp_path):
        balanced = _balanced_copy(tmp_path)
        found = classes.group_cosines(comparing.read_all([balanced, *committed("deconfound")]))
        assert list(found) == ["cifar100-lt:100", "cifar100-lt:1"]
        (tailed,), (level,) = found.values()
        assert tailed.label == level.label == "deconfound"
        tailed, level = (group.by_class("class_cos", range(100)) for group in (tailed, level))
        assert classes.measure_unevenness(level) == 0 < classes.measure_unevenness(tailed)
        assert classes.correlate(tailed, tailed) == pytest.approx(1)
        assert np.isnan(classes.correlate(level, tailed))
        falling = [None, *((-mean, None) for mean, _ in tailed[1:])]
        assert classes.correlate(falling, tailed) == pytest.approx(-1)

    def test_decomposition_is_orthogonal_and_complete(self, runs, data):
        opened = reopen(runs[1], data)
        head, x = opened.evaluation.head, opened.evaluation.features.evaluated
        along, rest = decomposition.decompose(head, x)
        assert torch.allclose(along + rest, x, atol=1e-6)
        mean = head.mean_feature.tolist()
        for n in range(3):
            for k in range(head.heads):
                xs, ds = (reference.part(v, k, head.heads) for v in (x[n].tolist(), mean))
                length = reference.cos(xs, ds) * reference.norm(xs)
                wanted = [length * d / reference.norm(ds) for d in ds]
                got = reference.part(along[n].tolist(), k, head.heads)
                assert got == pytest.approx(wanted, abs=1e-5)
                left = reference.part(rest[n].tolist(), k, head.heads)
                assert reference.dot(got, left) == pytest.approx(0, abs=1e-4)

    def test_examples_are_spread_over_the_ranks_and_first_of_their_class(self):
        labels = torch.tensor([2, 2, 0, 1, 1, 0])
        assert maps.example_images(labels, [10, 30, 20, 5]) == [3, 0, 2]  # 3 has no image


class TestSimulations:
    def test_the_one_dimensional_example_shows_what_the_paper_says(self):
        conventional, one_stage, two_stage, tde = simulated.simulate_decisions()
        head, tail = conventional.accuracy
        assert head > 95 and tail < 20
        assert one_stage.separation < conventional.separation - 0.2  # a worse backbone
        assert two_stage.separation == tde.separation == pytest.approx(conventional.separation)
        for mended in (two_stage, tde):
            assert mended.accuracy[1] > tail + 40
        assert two_stage.boundary > 0 and tde.boundary == conventional.boundary == 0
        # and what it does not: alpha is not 1
        assert "alpha 0.75" in tde.name

    @pytest.mark.parametrize(("images", "mean"), [((50, 50), (0, 1)), ((99, 1), (0.98, 1))])
    def test_the_mean_gradients_are_those_of_appendix_a(self, images, mean):
        found = simulated.simulate_gradients(images)
        assert found.mean == pytest.approx(mean, abs=1e-12)
        total = found.each.mean(0) / 0.1
        random = np.random.default_rng(0)
        random.normal(scale=0.12, size=(100, 2))
        for gradient, velocity in zip(
            found.each[random.permutation(100)], found.velocity, strict=True
        ):
            total = 0.9 * total + gradient
            assert velocity == pytest.approx(0.1 * total)


def _balanced_copy(tmp_path: Path) -> Path:
    """A made-up balanced twin of a committed result: level, as the paper says."""
    result = json.loads(committed("deconfound")[0].read_text())
    path = tmp_path / "balanced-s0.json"
    level = {"ratio": 1, "counts": [50] * 100, "class_cos": [0.5] * 100, "subset_sha256": "f" * 64}
    path.write_text(json.dumps({**result, **level}))
    return path


def momentum_files(tmp_path: Path) -> list[Path]:
    result = json.loads(committed("baseline")[0].read_text())
    paths = []
    for mu, lr in ((0.9, 0.2), (0.98, 0.2), (0.98, 0.04)):
        paths.append(tmp_path / f"baseline+mu{mu}-lr{lr}-s0.json")
        paths[-1].write_text(json.dumps({**result, "momentum": mu, "lr": lr}))
    return paths


class TestDrawn:
    def drawn(self, tmp_path: Path, name: str, sources, **choices) -> str:
        path = figures.draw(name, sources, tmp_path / "figures" / f"{name}.svg", **choices)
        ElementTree.parse(path)
        return path.read_text()

    def test_seeds_that_shipped_a_rule_without_alpha_are_left_out(
        self, tmp_path, plain_simulations
    ):
        first, other = (json.loads(p.read_text()) for p in committed("deconfound-tde")[:2])
        files = [tmp_path / "first.json", tmp_path / "other.json"]
        other["sweep"] = {"0": other["sweep"]["0"]}
        for path, result in zip(files, (first, other), strict=True):
            path.write_text(json.dumps(result))
        for sources in (files, files[::-1]):
            (group,) = curves.select_trainings(group_results(comparing.read_all(sources)))
            assert group.label == "deconfound-tde, 1 of 2 seeds"
            path = curves.collect_alpha_path(group)
            assert path[1.0]["few"] == (pytest.approx(first["sweep"]["1"]["few"]), None)
            self.drawn(tmp_path, "alpha", sources)
            drawn = dict(figures.draw_all(sources, tmp_path / "all"))
            assert drawn["alpha"].endswith("alpha.svg")

    def test_from_committed_results(self, tmp_path):
        both = committed("baseline", "deconfound-tde")
        text = self.drawn(tmp_path, "class-rank", both)
        seeds = len(committed("deconfound-tde"))
        assert f"deconfound-tde (mean of {seeds} seeds)" in text and "accuracy (%)" in text
        assert style.METHODS["deconfound-tde"][0] in text and "few" in text
        assert "mean |x| of test images<" in self.drawn(tmp_path, "feature-norm", both)
        assert "|w|" in self.drawn(tmp_path, "weight-norm", both)
        assert "alpha (dotted" in self.drawn(tmp_path, "alpha", both)
        pair = [*committed("deconfound"), _balanced_copy(tmp_path)]
        text = self.drawn(tmp_path, "cosine-by-class", pair)
        assert "trained on cifar100-lt:1<" in text and "again" not in text
        text = self.drawn(tmp_path, "momentum", momentum_files(tmp_path))
        assert "lr 0.2 fixed" in text and "lr / (1 - mu) = 2 fixed" in text
        assert f"few: {values(committed('baseline')[0], 'few'):.1f} %" in text

    def test_ranks_have_round_ticks_from_1(self):
        for classes_, wanted in (
            (100, [1, 20, 40, 60, 80, 100]),
            (6, [1, 2, 3, 4, 5, 6]),
            (1, [1]),
        ):
            (axes,) = canvas.make_panels(1).axes
            canvas.set_rank_axis(axes, classes_, "rank")
            assert axes.get_xticks().tolist() == wanted
        (axes, _) = figures.draw_class_rank(committed("baseline")).axes
        assert axes.get_xticks().tolist() == [1, 20, 40, 60, 80, 100]

    def test_arrows_of_the_causal_graph_meet_their_nodes(self):
        figure = figures.draw_causal_graph()
        FigureCanvasAgg(figure).draw()
        found = 0
        for axes in figure.axes:
            nodes = [text.get_bbox_patch() for text in axes.texts if text.get_bbox_patch()]
            outlines = [
                node.get_transform().transform_path(node.get_path()).to_polygons()[0]
                for node in nodes
            ]
            edges = [MatplotlibPath(outline).interpolated(20).vertices for outline in outlines]
            for arrow in (text.arrow_patch for text in axes.texts if hasattr(text, "arrow_patch")):
                drawn = arrow.get_transform().transform_path(arrow.get_path())
                gaps = [
                    np.hypot(*(drawn.vertices[:, None] - edge).T).min() for edge in edges
                ]  # pixels between the arrow and each node
                assert sorted(gaps)[1] < 3  # the width of the line covers it
                found += 1
        assert found == 5 + 4 + 3

    def test_the_one_dimensional_example_says_correct(self, tmp_path):
        text = self.drawn(tmp_path, "decision-1d", [])
        assert text.count("correct: head") == 4 and "right" not in text

    @pytest.mark.parametrize("name", figures.SIMULATED)
    def test_without_runs(self, tmp_path, name):
        assert self.drawn(tmp_path, name, []).startswith("<?xml")

    def test_from_weights(self, tmp_path, runs, data):
        text = self.drawn(tmp_path, "decomposition", [runs[4]], data=data)
        assert "along the head direction" in text
        three = [runs[i].folder for i in (0, 1, 2)]
        text = self.drawn(tmp_path, "gradcam", three, images=[0, 7], data=data)
        assert "alpha 1<" in text and text.count("<image") == 2 * (1 + 3)

    def test_decomposition_names_its_run(self, runs, data):
        for run in (runs[1], runs[5]):
            title = figures.draw_decomposition([run], data=data).get_suptitle()
            stored = run.result
            assert title.startswith(f"{stored['method']} on {tables.data_name(stored)}")
            assert title.endswith(f", seed {stored['seed']}")
        assert {runs[1].result["seed"], runs[5].result["seed"]} == {0, 1}

    def test_a_slow_machine_draws_without_a_warning(self, tmp_path, runs, data, monkeypatch):
        seconds = itertools.count(step=2)  # matplotlib warns if the place of a legend takes over 1
        monkeypatch.setattr("matplotlib.legend.time.perf_counter", lambda: next(seconds))
        for name in ("class-rank", "feature-norm", "weight-norm", "alpha"):
            self.drawn(tmp_path, name, committed("deconfound"))
        self.drawn(tmp_path, "decision-1d", [])
        self.drawn(tmp_path, "decomposition", [runs[4]], data=data)

    def test_names_with_dollars_and_control_characters_are_drawn_as_they_are(self, tmp_path):
        data = replace(tiny_data(), classes=("cost $x_{$ y", "\x1b[31mred", "$$"), name="a$x_{$")
        (made,) = make_runs(tmp_path / "runs", data, ["deconfound"], seeds=(0,))
        text = self.drawn(tmp_path, "gradcam", [made], data=data)
        ElementTree.fromstring(text)
        assert ">cost $x_{$ y<" in text and ">\\x1b[31mred<" in text and ">$$<" in text
        assert ">deconfound on a$x_{$" in self.drawn(tmp_path, "decomposition", [made], data=data)

    def test_maps_that_look_the_same_share_a_row(self, tmp_path, data):
        made = make_runs(tmp_path / "runs", data, ["deconfound"], seeds=(0,))
        copy = shutil.copytree(made[0].folder, tmp_path / "copy")
        text = self.drawn(tmp_path, "gradcam", [*made, copy], images=[0, 7], data=data)
        assert text.count("<image") == 2 * (1 + 1)
        assert ">deconfound,<" in text and ">deconfound<" in text
        first, views = torch.rand(2, 3, 3), torch.zeros(2, 3, 8, 8)
        rows = [
            maps.MapRow(name, view, values)
            for name, view, values in (
                *(("a", views, first), ("b", views, 2 * first), ("c", views, first.flip(0))),
                *(("d", views + 1, first), ("e", views, torch.rand(2, 4, 4))),
            )
        ]
        assert [row.name for row in maps.merge_rows(rows)] == ["a,\nb", "c", "d", "e"]

    def test_rows_of_several_seeds_name_them(self, tmp_path, runs, data):
        seeds = [runs[0], next(r for r in runs[1:] if r.result["method"] == "baseline")]
        text = self.drawn(tmp_path, "gradcam", seeds, images=[0], data=data)
        assert ">seed 0<" in text and ">seed 1<" in text
        assert ">seed" not in self.drawn(tmp_path, "gradcam", seeds[:1], images=[0], data=data)

    def test_gradcam_reads_the_data_of_its_runs_once(self, tmp_path, data, runs, monkeypatch):
        from longtail.data import load as data_sets

        read = []
        monkeypatch.setattr(data_sets, "load", lambda *_: read.append(1) or data)
        self.drawn(tmp_path, "gradcam", runs[:3], images=[0])
        assert len(read) == 1

    def test_a_map_lies_on_what_the_network_saw(self, tmp_path, data):
        made = make_runs(tmp_path / "runs", data, ["baseline"], seeds=(0,), crop_size=6, pad=0)
        figure = figures.FIGURES["gradcam"](made, images=[3], data=data)
        picture, under = (axes.images[0].get_array() for axes in figure.axes)
        seen = data.test.inputs[3][:, 1:7, 1:7]
        assert np.array_equal(picture, seen.permute(1, 2, 0)) and under.shape == (6, 6, 3)
        grey = seen.float().mean(0).numpy()[..., None]
        colours = (under - 0.45 * grey) / 0.55 / 255  # (6, 6, 3)
        apart = abs(colours[:, :, None] - np.array(colormaps["viridis"].colors)).max(-1)
        assert apart.min(-1).max() < 0.01

    def test_a_class_without_test_images_leaves_a_gap_and_an_empty_split_no_line(self, tmp_path):
        data = tiny_data(counts=(130, 25))  # two classes, none of few
        data = replace(data, test=data.test.take(torch.arange(5)))  # none of the second
        made = make_runs(tmp_path / "runs", data, seeds=(0,))
        for name in ("class-rank", "alpha"):
            text = self.drawn(tmp_path, name, made)
            assert ">few<" not in text and (">medium<" in text) == (name == "class-rank")
        (group, *_) = group_results(comparing.read_all(made))
        assert group.by_class("per_class", [1]) == group.by_class("feature_norm", [1]) == [None]
        assert group.by_class("weight_norm", [1]) != [None]
        self.drawn(tmp_path, "decomposition", made[2:], data=data)
        self.drawn(tmp_path, "gradcam", made, data=data)

    def test_marks_that_look_alike_share_one_style(self):
        use = '<use x="{}" style="fill: {}"/>'
        alike = f'<g clip="c">\n{use.format(1.2345, "red")}\n{use.format(2, "red")}\n</g>'
        wanted = '<g clip="c" style="fill: red">\n<use x="1.23"/>\n<use x="2"/>\n</g>'
        assert canvas._shorten(alike.encode()) == wanted.encode()
        other = f"<g>{use.format(1, 'red')}{use.format(2, 'blue')}</g>".encode()
        assert canvas._shorten(other) == other

    def test_every_kind_of_file_has_the_same_bytes_each_time(self, tmp_path):
        for kind, magic in {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}.items():
            path = canvas.save(figures.draw_causal_graph(), tmp_path / f"g.{kind}")
            again = canvas.save(figures.draw_causal_graph(), tmp_path / f"h.{kind}")
            assert path.read_bytes() == again.read_bytes() and path.read_bytes().startswith(magic)
        with pytest.raises(UserError, match="g.jpg: must end in one of .svg, .pdf, .png"):
            canvas.save(figures.draw_causal_graph(), tmp_path / "g.jpg")


class TestRefused:
    def refused(self, name, sources, **choices) -> str:
        with pytest.raises(UserError) as error:
            figures.FIGURES[name](sources, **choices)
        return str(error.value)

    def test_what_is_no_result(self, tmp_path, runs):
        assert "needs at least one run" in self.refused("class-rank", [])
        assert "is not a run" in self.refused("class-rank", [tmp_path])
        (tmp_path / "x.json").write_text("[1]")
        assert "neither a run's folder nor" in self.refused("alpha", [tmp_path / "x.json"])
        unfinished = shutil.copytree(runs[0].folder, tmp_path / "copy")
        (unfinished / "result.json").unlink()
        assert "has not finished" in self.refused("alpha", [unfinished])

    def test_a_result_of_another_version(self, tmp_path, runs):
        result = {k: v for k, v in runs[0].result.items() if k != "weight_norm"}
        folder = shutil.copytree(runs[0].folder, tmp_path / "copy")
        Run(folder).write("result.json", json.dumps(result))
        message = self.refused("weight-norm", [folder])
        pattern = r"another version of longtail \(.+\): its result has no weight_norm"
        assert re.search(pattern, message) and "with --resume evaluates the run again" in message

    def test_runs_on_different_data(self, tmp_path, data, runs):
        other = make_runs(tmp_path / "a", replace(data, name="other"), ["baseline"], seeds=(0,))
        for name in ("class-rank", "feature-norm", "weight-norm", "alpha", "momentum", "gradcam"):
            assert "differ in data: tiny and other" in self.refused(name, [runs[0], *other])
        assert "whatever its ratio" in self.refused(
            "cosine-by-class",
            [
                runs[1],
                *make_runs(tmp_path / "b", replace(data, name="other"), ["deconfound"], seeds=(0,)),
            ],
        )

    def test_what_a_figure_cannot_be_made_of(self, tmp_path, runs, data):
        assert "no alpha in baseline" in self.refused("alpha", committed("baseline"))
        assert "needs results at 0.98" in self.refused("momentum", committed("baseline"))
        assert "needs results at 0.98" in self.refused("momentum", momentum_files(tmp_path)[:1])
        assert "runs of one method" in self.refused("momentum", runs)
        assert "has no cos(x, d)" in self.refused("cosine-by-class", committed("baseline"))
        assert "of these runs are on" in self.refused("cosine-by-class", committed("deconfound"))
        assert "needs runs of deconfound, cosine" in self.refused("cosine-by-class", [])
        assert "needs the weights" in self.refused("gradcam", committed("baseline"))
        vectors = tiny_data(images=False)
        config = tiny_config(epochs=1, backbone="identity", augment="none")
        made = fit_all(config, ["baseline"], [0], out=tmp_path / "vectors", data=vectors)
        message = self.refused("gradcam", made, data=vectors)
        assert "gradcam draws images, and" in message and "trained on embeddings" in message
        assert "no head direction" in self.refused("decomposition", [runs[0]], data=data)
        assert "--images 20: must be rows of the test set, from 0 to 19" in self.refused(
            "gradcam", [runs[0]], images=[20], data=data
        )


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_only_figures_are_replaced(kind, tmp_path, monkeypatch, plain_simulations):
    out = tmp_path / f"graph.{kind}"
    for _ in range(2):
        figures.draw("causal-graph", [], out)
    assert out.stat().st_size > 1000
    out.write_bytes(b"<svg>mine</svg>")
    monkeypatch.setitem(figures.FIGURES, "causal-graph", lambda _: pytest.fail("began"))
    with pytest.raises(UserError, match="not written by longtail figure .*begins with '<svg>mine"):
        figures.draw("causal-graph", [], out)
    assert out.read_bytes() == b"<svg>mine</svg>"


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.main(["figures"])
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == list(figures.FIGURES)
    words = list(map(str, committed("baseline", "deconfound")))
    cli.main(["figure", "feature-norm", *words, "-o", "norm.svg"])
    cli.main(["figure", "causal-graph"])
    assert Path("norm.svg").exists() and Path("causal-graph.svg").exists()
    with pytest.raises(SystemExit, match="1"):
        cli.main(["figures", "--all", *words, str(_balanced_copy(tmp_path)), "-o", "all"])
    said = capsys.readouterr()
    assert "3 figures were not drawn: momentum, decomposition, gradcam" in said.err
    outcomes = dict(line.split(maxsplit=1) for line in said.out.splitlines()[-11:])
    refused = {name for name, what in outcomes.items() if what.startswith("not drawn: ")}
    assert refused == {"momentum", "decomposition", "gradcam"}
    assert len(list(Path("all").iterdir())) == 8
    for wrong in (
        ["figure", "decision-1d", words[0]],
        ["figure", "alfa"],
        ["figure", "alpha", "--images", "3"],
        ["figures", "--all"],
    ):
        with pytest.raises(SystemExit):
            cli.main(wrong)
    assert "Did you mean 'alpha'?" in capsys.readouterr().err


def test_a_folder_stands_for_the_runs_or_the_result_files_in_it(tmp_path, runs):
    files = committed("baseline", "deconfound")
    folder = tmp_path / "results/below"
    folder.mkdir(parents=True)
    copies = [Path(shutil.copy(each, folder / f"{i}.json")) for i, each in enumerate(files)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no run and no result file: pass the --out"):
        find_sources([tmp_path / "empty"])
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "other.json").write_text("3")
    assert find_sources([tmp_path]) == copies
    run = shutil.copytree(runs[0].folder, tmp_path / "run")
    assert find_sources([tmp_path]) == [run, *copies]
    run = runs[0].folder
    assert find_sources([run, *files, tmp_path / "none"]) == [run, *files, tmp_path / "none"]
    assert find_sources([run.parent]) == comparing.find_runs([run.parent])


def test_the_legend_lies_below_the_classes():
    few = figures.draw_class_rank(committed("baseline", "deconfound"))
    many = figures.draw_class_rank([*RESULTS.glob("*-s0.json")])
    assert all(drawn.axes[0].get_legend() is None for drawn in (few, many))
    assert len(few.legends[0].texts) == 2 and len(many.legends[0].texts) > 20
    assert many.get_figheight() > few.get_figheight() + 1


def test_drawing_all_figures_names_the_runs_on_other_data(tmp_path, caplog, plain_simulations):
    other = tmp_path / "other-s0.json"
    result = json.loads(committed("baseline")[0].read_text())
    other.write_text(json.dumps({**result, "data": "other"}))
    drawn = dict(figures.draw_all([*committed("baseline")[:1], other], tmp_path / "all"))
    assert drawn["class-rank"].endswith("class-rank.svg")
    (line,) = [record.message for record in caplog.records if "compare runs" in record.message]
    assert (
        line.startswith("figures that compare runs are of those on cifar100-lt")
        and str(other) in line
    )


def test_panels_share_the_legend_and_the_axis_that_starts_at_zero():
    figure = figures.draw_alpha(committed("deconfound-tde", "cosine-tde"))
    first, second = (axes.get_ylim() for axes in figure.axes)
    assert first == second and first[0] == 0
    highest = max(line.get_ydata().max() for axes in figure.axes for line in axes.lines[:4])
    assert highest < first[1] < 1.2 * highest
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == list(tables.SPLITS)
    assert all(axes.get_legend() is None for axes in figure.axes)


NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"


def content(svg: Path) -> list[tuple[str, list[float]]]:
    """What a drawing shows, element by element: its text, and the numbers in it.

    Identifiers are replaced by what they refer to: matplotlib hashes them from coordinates, whose
    last bits depend on the processor.
    """
    root = ElementTree.parse(svg).getroot()
    named = {element.get("id"): element for element in root.iter() if element.get("id")}
    defined = {part for defs in root.iter("{*}defs") for part in defs.iter()}

    def text(element) -> str:
        values = [value for name, value in sorted(element.attrib.items()) if name != "id"]
        return " ".join([element.tag, *map(resolved, values), element.text or ""])

    def resolved(value: str) -> str:
        return re.sub(r"#(\w+)", lambda name: referred(name[0], named.get(name[1])), value)

    def referred(name: str, element) -> str:
        return name if element is None else " ".join(map(text, element.iter()))

    shown = [text(element) for element in root.iter() if element not in defined]
    return [
        (re.sub(NUMBER, "0", each), list(map(float, re.findall(NUMBER, each)))) for each in shown
    ]


def same_drawing(one: Path, other: Path) -> bool:
    """Whether two drawings show the same, up to what a hundredth of a point is rounded to."""
    first, second = content(one), content(other)
    return [text for text, _ in first] == [text for text, _ in second] and all(
        own == pytest.approx(others, rel=1e-6, abs=0.02)
        for (_, own), (_, others) in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (' id="a"', ' id="b"', True),
        ("M 1.24 2", "M 1.25 2", True),
        ("M 1.24 2", "M 1.34 2", False),
        ("M 1.24 2", "M 1.24 2 L 3 4", False),
        ("fill: red", "fill: blue", False),
        ("<text>few</text>", "<text>many</text>", False),
        ("<text>few</text>", "", False),
        ('<rect width="9"/>', '<rect width="8"/>', False),
    ],
)
def test_drawings_are_compared_by_what_they_show(before, after, same, tmp_path):
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg"><defs><clipPath id="a"><rect width="9"/>'
        '</clipPath></defs><path clip-path="url(#a)" d="M 1.24 2" style="fill: red"/>'
        "<text>few</text></svg>"
    )
    changed = drawing.replace(before, after)
    if before == ' id="a"':
        changed = changed.replace("#a", "#b")
    assert changed != drawing
    (tmp_path / "one.svg").write_text(drawing)
    (tmp_path / "other.svg").write_text(changed)
    assert same_drawing(tmp_path / "one.svg", tmp_path / "other.svg") == same


def test_committed_figures_are_what_their_commands_draw(tmp_path):
    page = (ROOT / "docs/figures.md").read_text()
    commands = re.findall(r"^longtail figure (\S+) (.*?)-o (\S+)$", page.replace("\\\n", " "), re.M)
    drawn = {}
    for name, words, out in commands:
        assert name in figures.FIGURES
        assert all(list(ROOT.glob(word)) for word in words.split() if word.startswith("results/"))
        drawn[out] = name
        if words.strip().startswith("results/") and (ROOT / out).exists():
            paths = [path for word in words.split() for path in sorted(ROOT.glob(word))]
            again = figures.draw(name, paths, tmp_path / f"{name}.svg")
            assert same_drawing(again, ROOT / out), f"draw {out} again"
    kept = sorted((ROOT / "docs/figures").glob("*.svg"))
    assert kept
    for path in kept:
        assert path.stem.startswith(drawn[str(path.relative_to(ROOT))])
        assert path.stat().st_size < (170_000 if path.stem == "gradcam" else 60_000)
    assert all(f"`{name}`" in page for name in figures.FIGURES)


def by_momentum(lr) -> dict[float, dict[str, list[float]]]:
    """Splits of the committed momentum bench over seeds, with the rate `lr(mu)`."""
    folder = ROOT / "results/momentum/cifar100-lt-100/resnet32-dual"
    return {
        mu: {
            split: [values(path, split) for path in sorted(folder.glob(f"*+mu{mu}-lr{lr(mu):g}-*"))]
            for split in tables.SPLITS
        }
        for mu in (0, 0.5, 0.9, 0.98)
    }


class TestVerdicts:
    """The numbers of docs/figures.md are those of the result files."""

    page = read_page(ROOT / "docs/figures.md")

    def test_of_momentum(self):
        panels = [by_momentum(lambda mu: 0.2), by_momentum(lambda mu: 2 * (1 - mu))]
        changes, moves = [], []
        for panel in panels:
            for split in ("few", "many"):
                pairs = zip(panel[0.9][split], panel[0.98][split], strict=True)
                changes.append(f"{statistics.fmean(100 * (r / b - 1) for r, b in pairs):.0f} %")
            for split in ("many", "medium", "few"):
                means = [statistics.fmean(at[split]) for at in panel.values()]
                moves.append(f"{min(means):.1f} to {max(means):.1f}")
        few, many, *fixed = changes
        sentence = f"at mu 0.9 few are {few} higher and many {many} at a fixed rate, "
        assert f"{sentence}{' and '.join(fixed)} with lr / (1 - mu) fixed." in self.page
        way = "many move from {}, medium from {} and few from {}"
        ways = [way.format(*moves[:3]), way.format(*moves[3:])]
        sentence = f"to the best, {ways[0]} at a fixed rate. With lr / (1 - mu) fixed, {ways[1]} ("
        assert sentence in self.page
        none, most = (tables.format_figure(tables.spread(panels[1][mu]["few"])) for mu in (0, 0.98))
        sentence = f"without any momentum few are at {none}, no better than the {most} of mu 0.98."
        assert sentence in self.page

    def test_of_feature_lengths(self):
        def measure(paths) -> dict[str, float]:
            (group,) = group_results(comparing.read_all(paths))
            return classes.average_splits(group, "feature_norm", group.first["counts"])

        def shorten(means) -> int:
            return round(100 * (1 - means["few"] / means["many"]))

        plain = measure(committed("baseline"))
        assert max(plain, key=plain.__getitem__) == "medium"
        sentence = f"few are {shorten(plain)} % shorter than many there, and medium are the longest"
        assert sentence in self.page
        paths = (ROOT / "results/momentum").rglob("*.json")
        shorter = sorted(shorten(measure([path])) for path in paths)
        assert f"few are {shorter[0]} to {shorter[-1]} % shorter at each that" in self.page

    def test_of_the_cosine(self):
        balanced = sorted((ROOT / "results/balanced").rglob("*.json"))
        found = classes.group_cosines(comparing.read_all([*committed("deconfound"), *balanced]))
        (tailed,), (even,) = found.values()
        counts = tailed.first["counts"]
        assert set(even.first["counts"]) == {50}
        means = classes.average_splits(tailed, "class_cos", counts)
        tailed, even = (group.by_class("class_cos", range(100)) for group in (tailed, even))
        over_seeds, same = (
            f"{statistics.fmean(v[1] for v in group):.3f}" for group in (tailed, even)
        )
        assert over_seeds == same, "the page gives one figure for both"
        own, other = (f"{classes.measure_unevenness(group):.3f}" for group in (even, tailed))
        sentence = f"deviates by {own} over classes, after long-tailed training by {other}; a class"
        assert f"{sentence} deviates by {over_seeds} over seeds." in self.page
        assert f"few have {means['few']:.3f} and many {means['many']:.3f}." in self.page
        same = classes.correlate(even, tailed)
        assert f"the same ones after both (correlation {same:.2f})." in self.page

    def test_of_compactness(self):
        def shown(method) -> str:
            paths = sorted((ROOT / "results/compactness").rglob(f"{method}-s*.json"))
            return tables.format_figure(tables.spread([values(path, "overall") for path in paths]))

        assert shown("baseline+bias") == shown("decouple-lws")
        sentence = f"It does: {shown('deconfound-tde')} % against the {shown('baseline')} % of the "
        sentence += f"baseline and the {shown('decouple-lws')} % of Decouple-LWS, "
        assert sentence in self.page
        assert f"without the subtraction has {shown('deconfound')} %." in self.page


class TestStyle:
    def test_the_papers_methods_look_the_same_in_every_figure(self):
        others = [f"another-{number}" for number in range(20)]
        names = list(style.METHODS)
        assert style.choose_looks([*others, *names])[20:] == list(style.METHODS.values())
        assert {colour for colour, _ in style.METHODS.values()}.isdisjoint(style.PALETTE)
        assert {dash for _, dash in style.METHODS.values()} <= set(style.DASHES)
        assert tuple(style.SPLITS) == tables.SPLITS

    def test_a_method_unknown_to_this_module_gets_a_look_of_its_own(self):
        alone = style.choose_looks(["invented-today"])
        assert alone == style.choose_looks(["baseline", "invented-today", "deconfound-tde"])[1:2]
        (colour, dash) = alone[0]
        assert colour in style.PALETTE and dash == ""

    def test_no_two_lines_of_a_figure_look_alike(self):
        from longtail import methods

        for names in (
            list(methods.registry()),
            [f"another-{number}" for number in range(40)],
            ["baseline", *["another-0"] * 9, *["deconfound-tde"] * 9, "another-1"],
        ):
            assert len(set(style.choose_looks(names))) == len(names)
        assert len(style.choose_looks(["another-0"] * 50)) == 50  # looks repeat then

    def test_lines_of_one_method_share_its_colour(self):
        names = ["another-0", "another-1", "another-0", "deconfound", "deconfound"]
        looks = style.choose_looks(names)
        assert looks[0][0] == looks[2][0] != looks[1][0] and looks[3][0] == looks[4][0]

    def test_ten_methods_have_ten_colours(self):
        looks = style.choose_looks(f"another-{number}" for number in range(10))
        assert {colour for colour, _ in looks} == set(style.PALETTE)


def contrast(one: list[float], other: list[float]) -> float:
    """As WCAG 2.1 has it, of colours with red, green and blue from 0 to 1."""

    def luminance(colour):
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def parts_of(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def read_schemes() -> list[dict[str, str]]:
    """Return the variables of pages on light and on dark screens."""
    roots = re.findall(r":root {(.*?)}", source("style.css"), re.DOTALL)
    return [dict(re.findall(r"--(\w+): ([^;]+);", root)) for root in roots[:2]]


def test_splits_have_the_same_colours_on_pages_and_in_figures():
    light, _ = read_schemes()
    assert {name: light[name] for name in COLOURS} == COLOURS
    assert {name: style.SPLITS[name][0] for name in COLOURS} == COLOURS


def test_lines_stand_out_on_white_and_on_the_dark_page():
    _, dark = read_schemes()
    ground, kept = parts_of(dark["paper"]), int(dark["kept"].rstrip("%")) / 100
    for colour in [*(colour for colour, _ in style.METHODS.values()), *style.PALETTE]:
        assert contrast(parts_of(colour), [1, 1, 1]) >= 3
        assert contrast([kept * c + 1 - kept for c in parts_of(colour)], ground) >= 3
    for split, colour in COLOURS.items():
        assert contrast(parts_of(colour), [1, 1, 1]) >= 3
        assert contrast(parts_of(dark[split]), ground) >= 3
