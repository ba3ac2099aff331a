"""What a person sees of a training, on a terminal and in a log."""

import io

import pytest
from rich.console import Console as Terminal

from longtail.console import Console


def test_a_training_that_fails_gives_the_terminal_back():
    output = io.StringIO()
    terminal = Terminal(file=output, force_terminal=True, color_system=None)
    with pytest.raises(ValueError), Console(terminal) as console:
        console.begin("baseline", 2, 0)
        assert output.getvalue().endswith("\x1b[?25l")  # no cursor beside the live line
        raise ValueError
    assert "\x1b[?25h" in output.getvalue()
