"""Names that users gave to files and classes, made safe to print."""


def make_printable(name: str) -> str:
    r"""Escape control characters, which could steer a terminal, as in '\x1b'.

    Bytes of a file name that are not text are escaped too, because no output could encode them.
    """
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in name
    )
