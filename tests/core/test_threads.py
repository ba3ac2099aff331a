import threading

import pytest

from longtail.core.threads import map_in_threads


def test_results_come_in_the_order_of_the_items():
    waiting = threading.Event()

    def work(number: int) -> int:
        if number == 0:  # the first ends last
            assert waiting.wait(10)
        if number == 2:
            waiting.set()
        return number**2

    assert list(map_in_threads(work, range(10), threads=3, ahead=3)) == [n**2 for n in range(10)]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_only_so_many_items_are_taken_ahead_of_the_reader(ahead: int):
    taken = []

    def items():
        for number in range(20):
            taken.append(number)
            yield number

    results = map_in_threads(str, items(), threads=2, ahead=ahead)
    for place in range(20 - ahead):
        assert next(results) == str(place)
        assert len(taken) == place + ahead


def test_an_error_reaches_the_reader_in_its_turn():
    results = map_in_threads(lambda n: 1 / n, [2, 1, 0, 4], threads=2, ahead=4)
    assert [next(results), next(results)] == [0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_work_that_has_not_begun_is_dropped_when_the_reader_stops():
    begun, go_on = [], threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        assert number == 0 or go_on.wait(10)
        return number

    results = map_in_threads(work, range(100), threads=1, ahead=50)
    assert next(results) == 0
    threading.Timer(0.2, go_on.set).start()
    results.close()
    assert len(begun) <= 3


def test_every_thread_starts_alike():
    started, worked = set(), set()

    def work(number: int) -> int:
        worked.add(threading.get_ident())
        return number

    def start() -> None:
        started.add(threading.get_ident())

    assert list(map_in_threads(work, range(9), threads=3, ahead=3, start=start)) == list(range(9))
    assert worked <= started
