"""Ctrl-C is noted once, and the handler of the program comes back."""

import os
import signal
import threading

import pytest

from longtail.core.interrupt import Terminated, defer_interrupt


@pytest.fixture(autouse=True)
def interruptible():
    """A shell starts its background jobs with Ctrl-C ignored: undo that here and in children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_is_noted_and_raised_at_the_end():
    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt), defer_interrupt(lambda: calls.append("x")) as interrupt:
        press()
        assert interrupt.requested and calls == ["x"]
        calls.append("goes on")
    assert calls == ["x", "goes on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_press_raises_at_once():
    with pytest.raises(KeyboardInterrupt), defer_interrupt(lambda: None):
        press()
        press()
        pytest.fail("must not come here")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_keeps_its_own_handler():
    own = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    seen: list[int] = []
    try:
        with defer_interrupt(lambda: None) as interrupt:
            press()
        assert seen == [1] and not interrupt.requested
    finally:
        signal.signal(signal.SIGINT, own)


def test_other_threads_leave_the_handler_alone():
    found = []

    def work() -> None:
        with defer_interrupt(lambda: None):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only forked workers inherit a handler")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_worker_goes_on():
    with defer_interrupt(lambda: None):
        child = os.fork()
        if child == 0:
            press()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_sigterm_is_noted_too_and_raises_its_own_kind():
    with pytest.raises(Terminated), defer_interrupt(lambda: None) as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(Terminated), defer_interrupt(lambda: None):
        press()
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("must not come here")
