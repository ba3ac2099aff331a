from longtail.core.names import make_printable


def test_control_characters_and_undecodable_bytes_are_escaped() -> None:
    assert make_printable("a\x1b[2Jb\n\u202e\udce9") == "a\\x1b[2Jb\\n\\u202e\\udce9"
    assert make_printable("Füchse 狐 <b>") == "Füchse 狐 <b>"
