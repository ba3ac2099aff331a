import pytest

from longtail.core.names import (
    count_noun,
    make_file_name,
    make_printable,
    make_text_printable,
    shorten,
)


def test_control_characters_and_undecodable_bytes_are_escaped() -> None:
    assert make_printable("a\x1b[2Jb\n\u202e\udce9") == "a\\x1b[2Jb\\n\\u202e\\udce9"
    assert make_printable("Füchse 狐 <b>") == "Füchse 狐 <b>"


def test_names_are_cut_and_things_counted() -> None:
    assert (shorten("lynx", 4), shorten("wolves", 4)) == ("lynx", "wol…")
    assert (count_noun(1, "image"), count_noun(2000, "image")) == ("1 image", "2,000 images")
    assert count_noun(2, "class is", "classes are") == "2 classes are"


def test_lines_of_a_text_stay():
    assert make_text_printable("a\x1b[2J\nb\r") == "a\\x1b[2J\nb\\r"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../x/y", "x-y"),
        ("/etc/passwd", "etc-passwd"),
        ("a\0b\nc", "a-b-c"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("deconfound-tde", "deconfound-tde"),
        ("é v1.5", "é-v1.5"),
        ("n" * 300, "n" * 100),
    ],
)
def test_a_file_name_is_one_safe_part(name, safe):
    assert make_file_name(name) == safe
