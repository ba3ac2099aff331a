"""The first line of a report: the best method, and what it is compared with."""

from collections.abc import Sequence
from typing import Any

from longtail.evaluation import tables
from longtail.reporting.finding import find_best, state_finding


def group(label: str, values: Sequence[float], **fields: Any) -> tables.SeedGroup:
    """Made-up results of one method, one for each value."""
    results = [
        {
            **{"method": label, "data": "plants", "ratio": None, "backbone": "resnet18"},
            **{"epochs": 40, "alpha": None, "sweep": {}, "per_class": [value, value]},
            **{"options": {}},
            **{"overall": value + 1, "many": None, "medium": None, "few": None, **fields},
        }
        for value in values
    ]
    return tables.SeedGroup(label, tuple(results))


def state(*groups: tables.SeedGroup, measure: str = "class mean") -> str:
    return state_finding(groups, measure)


def test_the_best_is_compared_with_the_baseline():
    best = group("deconfound-tde", [51.0, 52.4])
    found = state(group("baseline", [43.3]), group("lws", [50.0]), best)
    assert found == (
        "deconfound-tde reaches 51.7 ± 1.0 % class mean on plants, 8.4 points above baseline; "
        "resnet18, 40 epochs, 2 seeds."
    )
    assert find_best([group("a", [1.0]), group("b", [2.0]), group("c", [2.0])], "overall") == 1


def test_a_lead_inside_the_interval_of_every_seed_is_called_so():
    noise = {"intervals": {"class_mean": [45.0, 57.0], "overall": None}}
    best, rival = group("auto", [51.0, 52.4], **noise), group("lws", [50.0])
    assert "1.7 points above lws, within its own 95 % interval;" in state(best, rival)
    assert "points above lws;" in state(best, rival, measure="overall")
    assert "8.7 points above lws;" in state(best, group("lws", [43.0]))


def test_one_seed_has_no_deviation_and_overall_is_called_accuracy():
    found = state(group("lws", [50.0]), group("crt", [48.0]), measure="overall")
    assert found.startswith("lws reaches 51.0 % accuracy on plants, 2.0 points above crt;")
    assert found.endswith("40 epochs, 1 seed.")


def test_the_best_may_be_the_baseline_or_level():
    found = state(group("baseline", [43.0]), group("crt", [41.0]), group("lws", [42.0]))
    assert "baseline reaches 43.0 % class mean on plants, 1.0 points above lws;" in found
    assert ", level with baseline;" in state(group("baseline", [43.01]), group("lws", [43.04]))


def test_alone_it_is_compared_with_alpha_0_or_nothing():
    assert state(group("lws", [50.0])).startswith("lws reaches 50.0 % class mean on plants; resnet")
    at_zero = {"0": {"overall": 40.0, "class_mean": 44.0}}
    found = state(group("deconfound-tde", [50.0], alpha=1.5, sweep=at_zero))
    assert ", 6.0 points above alpha 0;" in found
    found = state(group("deconfound-tde", [40.0], alpha=1.5, sweep=at_zero))
    assert ", 4.0 points below alpha 0;" in found
    older = {"0": {"overall": 40.0}}
    assert "alpha" not in state(group("deconfound-tde", [40.0], alpha=1.5, sweep=older))


def test_a_frozen_network_is_called_so():
    assert "; resnet18, frozen, 40" in state(group("lws", [50.0], train={"freeze": True}))


def test_no_test_images_at_all_is_no_error():
    empty = group("lws", [0.0], per_class=[None, None])
    assert state(empty).startswith("lws reaches - % class mean")


def test_the_epochs_of_every_stage_are_stated():
    def epochs(method: str, number: int, **options: Any) -> str:
        found = state(group(method, [50.0], epochs=number, options=options))
        return found.removesuffix(", 1 seed.").partition("; resnet18, ")[2]

    assert epochs("baseline", 200) == "200 epochs"
    assert epochs("baseline", 1) == "1 epoch"
    assert epochs("decouple-crt", 200) == "200 + 20 epochs"  # a tenth, by default
    assert epochs("decouple-lws", 90, share=0.5) == "90 + 45 epochs"
    assert epochs("decouple-crt", 10) == "10 + 1 epochs"
    assert epochs("oltr", 1200) == "1,200 + 1,200 epochs"
    assert epochs("ldam-drw", 200) == "200 epochs"  # two losses in one schedule
    assert epochs("no-longer-known", 200) == "200 epochs"
    assert epochs("oltr", 200, no_longer_known=1) == "200 epochs"
