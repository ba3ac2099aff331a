"""Cells of CSV files that a spreadsheet must not run as formulas."""

import csv
import io

import pytest

from longtail.core.spreadsheets import escape_cell, restore_cell
from longtail.evaluation.result import csv_text

NAMES = [
    *("=1+1", "+a", "-a", "@sum(A1)", "\tx", "\rx", "a\r\nb"),
    *("'=1", "''-", "plain", "'s", "", "a=b", "-1"),
]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_starts_like_a_formula_and_all_come_back(name):
    cell = escape_cell(name)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert restore_cell(cell) == name
    assert (cell == name) == (name in ("plain", "a\r\nb", "'s", "", "a=b"))


def test_numbers_stay_numbers():
    assert [escape_cell(value) for value in (-1.5, -2, 0.0, None)] == [-1.5, -2, 0.0, None]


def test_a_table_comes_back_from_its_text():
    text = csv_text(("class", "gain"), [(name, -1.25) for name in NAMES])
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [restore_cell(row["class"]) for row in rows] == NAMES
    assert {row["gain"] for row in rows} == {"-1.25"}
