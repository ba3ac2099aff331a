"""The rules that compete in `auto`, and those that --rule pins."""

from functools import partial

import pytest

from longtail import methods
from longtail.core.errors import UserError
from longtail.methods import auto
from longtail.methods.decouple import use_class_means
from longtail.methods.logit_adjustment import subtract_prior
from longtail.methods.self_prior import subtract_self_prior


def test_candidates_stand_in_the_order_in_which_ties_are_decided():
    strengths = [f"{i / 4:g}" for i in range(1, 9)]
    alphas = [f"{i / 4:g}" for i in range(1, 13)]
    assert list(auto.CANDIDATES) == [
        *(f"self-prior:{strength}" for strength in strengths),
        *(f"tde:{alpha}" for alpha in alphas),
        *(f"logit-adjustment:{strength}" for strength in strengths),
        *("nearest-mean", "as-trained"),
    ]


def test_the_choice_is_open_and_needs_two_held_out_images_a_class():
    method = methods.build("auto")
    choice = method.choice
    assert choice.option == "rule" and choice.grid == auto.CANDIDATES and choice.rivals == ()
    assert choice.default == "self-prior:1" and choice.least_images == 2
    assert method.training == "deconfound" and set(method.post_hoc) == {"rule", "thorough"}
    assert methods.build("auto", {"thorough": "true"}).choice.rivals == auto.RIVALS
    assert auto.RIVALS == ("deconfound-balanced", "balanced-softmax")


@pytest.mark.parametrize("rule", auto.CANDIDATES)
def test_each_candidate_can_be_pinned(rule):
    method = methods.build("auto", {"rule": rule})
    name, _, strength = rule.partition(":")
    assert method.choice is None and method.training == "deconfound"
    assert method.needs_counts == (name == "logit-adjustment")
    if name == "tde":
        assert method.alpha == float(strength) and method.rule is None
    elif name == "as-trained":
        assert method.alpha == 0 and method.rule is None
    elif name == "nearest-mean":
        assert method.rule is use_class_means
    else:
        rules = {"self-prior": (subtract_self_prior, "strength")}
        function, word = rules.get(name, (subtract_prior, "tau"))
        assert isinstance(method.rule, partial) and method.rule.func is function
        assert method.rule.keywords == {word: float(strength)}


@pytest.mark.parametrize("rule", auto.RIVALS)
def test_a_rival_that_won_is_the_method_of_that_name(rule):
    """It has the options that `auto` was trained with."""
    own = {"heads": 4, "tau": 8.0, "gamma": 0.5} if rule == "deconfound-balanced" else {}
    won = methods.build("auto", {"rule": rule, "heads": 4, "tau": 8.0, "gamma": 0.5})
    rival, head = methods.build(rule, own), won.head(8, 3)
    assert won.choice is None and won.training == rule
    assert won.stages[0].loss.func is rival.stages[0].loss.func
    assert repr(head) == repr(rival.head(8, 3))
    assert getattr(head, "heads", 4) == 4


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("self-prio:1", "unknown --rule 'self-prio:1'. Did you mean 'self-prior:1'"),
        ("tde:much", "--rule tde:much needs a number from 0 up, as in --rule tde:1"),
        ("tde:-1", "--rule tde:-1 needs a number from 0 up"),
        ("self-prior:nan", "--rule self-prior:nan needs a number from 0 up"),
        ("logit-adjustment:inf", "--rule logit-adjustment:inf needs a number from 0 up"),
    ],
)
def test_an_unknown_rule_is_an_error(rule, message):
    with pytest.raises(UserError, match=message):
        methods.build("auto", {"rule": rule})
