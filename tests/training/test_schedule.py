import math

import pytest

from longtail.core.config import TrainConfig
from longtail.methods.base import Stage, head_only
from longtail.training.schedule import (
    ends_in_warmup,
    mean_decay,
    rate,
    schedule_stages,
    step_rates,
)

PAPER = TrainConfig()


def test_the_cifar_schedule_is_the_papers():
    rates = [rate(PAPER, epoch, (0, 200)) for epoch in range(200)]
    assert rates[:5] == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
    assert set(rates[5:120]) == {0.2}
    assert rates[120:160] == pytest.approx([0.002] * 40)
    assert rates[160:] == pytest.approx([0.00002] * 40)


def test_cosine_starts_at_the_peak_and_nears_zero():
    train = TrainConfig(schedule="cosine", warmup=0)
    rates = [rate(train, epoch, (0, 90)) for epoch in range(90)]
    assert rates[0] == train.lr
    assert rates[45] == pytest.approx(train.lr / 2)
    assert rates == sorted(rates, reverse=True) and 0 < rates[-1] < 1e-3


def test_mean_decay_lengthens_its_window_as_the_rate_falls():
    train = TrainConfig(mean_decay="rate")
    assert mean_decay(train, 0.2) == pytest.approx(0.9)
    assert mean_decay(train, 0.01) == pytest.approx(1 - 0.1 * 50 * 0.01)
    assert mean_decay(train, 0.0) == 1.0
    assert mean_decay(PAPER, 0.01) == 0.9


def test_stages_that_carry_on_share_one_schedule():
    first, second = schedule_stages([Stage(share=0.8), Stage(share=0.2)], 200)
    assert (first.start, first.stop, second.start, second.stop) == (0, 160, 160, 200)
    assert first.span == second.span == (0, 200)
    assert first.fresh and not second.fresh


@pytest.mark.parametrize(
    "second", [Stage(trains=head_only, share=0.1), Stage(prepare=lambda *a: None, share=0.1)]
)
def test_a_stage_that_prepares_or_trains_other_weights_starts_afresh(second):
    stages = schedule_stages([Stage(), second], 200)
    assert stages[0].span == (0, 200)
    assert stages[1].span == (200, 220) and stages[1].fresh


def test_shares_are_rounded_together():
    assert schedule_stages([Stage(share=0.5), Stage(share=0.5)], 5)[-1].stop == 5


def test_a_short_later_stage_leaves_its_warm_up():
    rates = [rate(PAPER, epoch, (30, 33)) for epoch in range(30, 33)]
    assert rates[0] == PAPER.lr
    rates = [rate(PAPER, epoch, (200, 220)) for epoch in range(200, 220)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.2])


def test_few_epochs_are_shared_and_not_exceeded():
    stops = [stage.stop for stage in schedule_stages([Stage(share=0.8), Stage(share=0.2)], 2)]
    assert stops == [1, 2]


def test_a_stage_has_at_least_one_epoch():
    assert schedule_stages([Stage(share=0.01)], 2)[0].stop == 1
    assert math.isfinite(rate(PAPER, 0, (0, 1)))


@pytest.mark.parametrize(("epochs", "steps"), [(3, 7), (1, 9), (4, 10)])
def test_one_cycle_rises_over_a_tenth_of_the_steps_then_follows_a_cosine(epochs, steps):
    train = TrainConfig(schedule="one-cycle", lr=0.4)
    span = (2, 2 + epochs)
    rates = [r for epoch in range(*span) for r in step_rates(train, epoch, span, steps)]
    total, warmup = epochs * steps, epochs * steps // 10
    expected = []
    for step in range(total):
        if step < warmup:
            expected.append(0.4 * (step + 1) / (warmup + 1))
        else:
            part = (step - warmup) / (total - warmup)
            expected.append(0.4 * (1 + math.cos(math.pi * part)) / 2)
    assert rates == pytest.approx(expected, rel=1e-12)
    assert max(rates) == rates[warmup] == 0.4
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True) and 0 < rates[-1] < 0.02


def test_other_schedules_have_one_rate_per_epoch():
    for train in (PAPER, TrainConfig(schedule="cosine")):
        for epoch in (0, 3, 30):
            assert step_rates(train, epoch, (0, 40), 6) == [rate(train, epoch, (0, 40))] * 6


@pytest.mark.parametrize(
    ("options", "epochs", "ends"),
    [
        ({}, 5, True),
        ({}, 4, True),
        ({}, 6, False),
        ({"warmup": 0}, 1, False),
        ({"warmup": 1}, 1, False),
        ({"schedule": "cosine"}, 5, True),
        ({"schedule": "one-cycle"}, 5, False),
    ],
)
def test_a_schedule_that_only_rises_is_noticed(options, epochs, ends):
    train = TrainConfig(**options)
    assert ends_in_warmup(train, (0, epochs)) is ends
    assert not ends_in_warmup(train, (7, 7 + epochs))  # a later stage warms up over a tenth
