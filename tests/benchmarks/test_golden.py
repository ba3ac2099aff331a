"""The script of golden results checks its arguments before it computes anything."""

import json

import pytest

from benchmarks import golden


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the following arguments are required: action, FILE"),
        (("check", "golden.json"), "invalid choice: 'check'"),
        (("record", "golden.json", "digit-lt"), "unknown piece 'digit-lt': choose from commands,"),
        (("compare", "none.json"), "none.json does not exist: make it with record none.json"),
        (("compare", "some.json", "detector"), "some.json has no detector: record some.json"),
    ],
)
def test_wrong_arguments_give_the_usage(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.json").write_text(json.dumps({"commands": []}))
    with pytest.raises(SystemExit) as error:
        golden.main(words)
    text = capsys.readouterr().err
    assert error.value.code == 2 and "usage: python -m benchmarks.golden" in text
    assert message in text


def test_differences_are_named_by_their_place():
    before, after = {"a": {"x": 1, "y": [2]}}, {"a": {"x": 1, "y": [3]}, "b": 4}
    assert golden.list_differences(before, after, "piece") == [
        *("piece/a/y: [2] -> [3]", "piece/b: None -> 4")
    ]
