"""What a person sees of a training, on a terminal and in a log."""

import io
import sys

import pytest
from rich.console import Console as Terminal

import longtail as lt
from longtail.core.console import Console


def test_a_training_that_fails_gives_the_terminal_back():
    output = io.StringIO()
    terminal = Terminal(file=output, force_terminal=True, color_system=None)
    with pytest.raises(ValueError), Console(terminal) as console:
        console.begin("baseline", 2, 0)
        assert output.getvalue().endswith("\x1b[?25l")  # no cursor beside the live line
        raise ValueError
    assert "\x1b[?25h" in output.getvalue()


def test_a_log_says_every_minute_how_far_a_long_epoch_is(monkeypatch):
    clock, output = [0.0], io.StringIO()
    monkeypatch.setattr("longtail.core.console.time.perf_counter", lambda: clock[0])
    with Console(Terminal(file=output)) as console:
        console.begin("baseline", 2, 0)
        for epoch, seconds in enumerate((25.0, 5.0)):  # of a step
            for done in range(1, 7):
                clock[0] += seconds
                console.step(done, 6, 600)
            console.epoch({"epoch": epoch, "loss": 1.5, "lr": 0.1, "images_per_second": 4.0})
    assert output.getvalue().splitlines() == [
        "baseline: 2 epochs",
        "epoch 1/2  step 3/6  4 images/s",  # 200 of the 600 images in 50 seconds
        "epoch 1/2  step 6/6  4 images/s",
        "     1/2  loss 1.5000  lr 0.1  4 images/s",
        "     2/2  loss 1.5000  lr 0.1  4 images/s",
    ]


def test_the_time_left_shrinks_within_an_epoch(monkeypatch):
    clock, output = [0.0], io.StringIO()
    monkeypatch.setattr("longtail.core.console.time.perf_counter", lambda: clock[0])
    with Console(Terminal(file=output)) as console:
        console.begin("baseline", 3, 0)
        for epoch in range(2):
            for done in range(1, 7):
                clock[0] += 25
                console.step(done, 6, 600)
            console.epoch({"epoch": epoch, "loss": 1.5, "lr": 0.1, "images_per_second": 4.0})
    left = [line.split("about ")[1] for line in output.getvalue().splitlines() if "about" in line]
    assert left == ["225 s left", "150 s left"]  # of nine and of six steps


def test_a_terminal_has_one_live_line(monkeypatch):
    clock, output = [0.0], io.StringIO()
    monkeypatch.setattr("longtail.core.console.time.perf_counter", lambda: clock[0])
    with Console(Terminal(file=output, force_terminal=True, color_system=None)) as console:
        console.begin("baseline", 2, 0)
        for done in range(1, 4):
            clock[0] += 0.06
            console.step(done, 6, 600)
        assert output.getvalue().count("step") == 1
        assert "epoch 1/2  step 2/6  1,667 images/s" in output.getvalue()


@pytest.mark.parametrize("seen", [True, False])
def test_fit_shows_progress_where_a_person_sees_it(seen, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: seen, raising=False)
    words = dict(epochs=1, batch_size=32, warmup=0, device="cpu", augment="none")
    lt.fit("digits-lt", "baseline", out=tmp_path / "a", **words)
    assert ("baseline on digits-lt, " in capsys.readouterr().err) is seen
    lt.fit("digits-lt", "baseline", out=tmp_path / "b", progress=False, **words)
    output = capsys.readouterr()
    assert output.err == output.out == ""
