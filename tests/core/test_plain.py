"""Plain values from files: every damaged file is an error that names it."""

import pytest
import yaml

from longtail.core.errors import UserError
from longtail.core.plain import check_fields, fits, parse_json, parse_yaml, read_text

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lr: 0x_", "not readable YAML"),
        ("day: 2020-99-99", "not readable YAML"),
        ("when: 2020-01-01 25:61:61", "not readable YAML"),
        ("[" * 5000, "nested too deeply"),
        ("- " * 5000, "nested too deeply"),
        (BOMB, "more than 100,000 values"),
        ("a: &a [*a]", "more than 100,000 values"),
        ("!!python/object/apply:os.system [ls]", "not readable YAML"),
        ("\0", "not readable YAML"),
    ],
)
def test_bad_yaml_is_refused(text, reason):
    with pytest.raises(UserError, match=f"^r.yaml .*{reason}"):
        parse_yaml(text, "r.yaml")


def test_good_yaml_is_read():
    assert parse_yaml("a: &x {lr: 1}\nb: *x", "r.yaml") == {"a": {"lr": 1}, "b": {"lr": 1}}
    assert parse_yaml("", "r.yaml") is None


def test_the_loader_that_ships_reads_what_is_written():
    """Other tests read it with the quicker loader in C."""
    names = ["on", "1e3", "1_000", "0x1f", "null", "a: b", "- x", "é\u2028 #", "'", '"', ""]
    tree = {"names": {name: name for name in names}, "lr": 1e-05, "large": 1e20, "few": None}
    assert parse_yaml(yaml.safe_dump(tree, sort_keys=False), "r.yaml") == tree


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "9" * 5000, "nul"])
def test_bad_json_is_refused(text):
    with pytest.raises(UserError, match="^r.json is "):
        parse_json(text, "r.json")


def test_text_is_utf8_and_a_folder_is_not_a_file(tmp_path):
    file = tmp_path / "é.txt"
    file.write_bytes("é".encode())
    assert read_text(file) == "é"
    file.write_bytes("é".encode("latin-1"))
    for path in (file, tmp_path, tmp_path / "missing", tmp_path / ("n" * 300)):
        with pytest.raises(UserError, match="cannot be read"):
            read_text(path)


def test_types_of_plain_values():
    assert fits([1, 2.5, None], list[float | None]) and not fits([True], list[float])
    assert fits([[1, 2]], tuple[tuple[int, int], ...])
    assert not fits([[1]], tuple[tuple[int, int], ...])
    assert fits({"a": {"b": None}}, dict[str, dict[str, float | None]]) and not fits(
        [], dict[str, int]
    )
    with pytest.raises(UserError, match=r"r.json is damaged: its x is missing. Copy it"):
        check_fields({}, {"x": int}, "r.json", "Copy it")
    with pytest.raises(UserError, match=r"r.json is damaged: it is not a mapping. Copy it"):
        check_fields(None, {}, "r.json", "Copy it")
