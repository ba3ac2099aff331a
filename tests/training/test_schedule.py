import math

import pytest

from longtail.core.config import TrainConfig
from longtail.methods.base import Stage, head_only
from longtail.training.schedule import mean_decay, rate, schedule_stages

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
