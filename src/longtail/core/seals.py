"""Seals: the SHA-256 of a file inside the file, so that it survives copying.

A writer puts `BLANK` into the metadata of the file, and `seal` overwrites it with the hash of all
bytes. A reader puts the blank back and compares.
"""

import hashlib
import mmap
from pathlib import Path

from longtail.core.manifest import DamageError

MARK = b"longtail-sha256:"
DIGITS = 64
BLANK = (MARK + b"0" * DIGITS).decode()
"""Text that a writer puts into the metadata of a file."""
KEY = "sha256"
"""Key of the seal in the metadata of a file."""


def seal(content: bytes) -> bytes:
    """Return the content of a file with its hash in place of its only `BLANK`."""
    start = content.index(BLANK.encode()) + len(MARK)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + DIGITS :]


def check_seal(content: bytes | mmap.mmap, source: str, way_out: str) -> bool:
    """Return whether a file has a seal; one that does not match its content is refused.

    Errors name the file `source` and end with `way_out`.
    """
    place = content.find(MARK)
    if place < 0:
        return False
    start = place + len(MARK)
    sha = hashlib.sha256()
    with memoryview(content) as view:
        found = bytes(view[start : start + DIGITS])
        for part in (view[:start], b"0" * DIGITS, view[start + DIGITS :]):
            sha.update(part)
            if isinstance(part, memoryview):
                part.release()
    if found != sha.hexdigest().encode():
        raise DamageError(f"{source} is damaged: its SHA-256 is not the one it holds. {way_out}")
    return True


def check_sealed_file(path: Path, way_out: str) -> bool:
    """Check the seal of a file without reading the whole file into memory."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DamageError(f"{path} cannot be read: {error.strerror}. {way_out}") from None
    with file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return check_seal(content, str(path), way_out)
        except ValueError as error:
            if isinstance(error, DamageError):
                raise
            return False  # an empty file
