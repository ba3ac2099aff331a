"""Atomic writes, and tensors read from files."""

import errno
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from longtail.core.errors import UserError

SHOWN = 40
"""Bytes of another program's file that an error shows."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a safetensors file, or is truncated: {error}. No code in it was run"
        ) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, whole or not at all."""
    write_bytes(path, encode_tensors(tensors))


def encode_tensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, metadata)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replace_atomically(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and move it to `path` when the block succeeds.

    A durable file is on disk, whole and under its name, before this returns. A link stays, and the
    file that it leads to is replaced; devices and the like are refused.
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else path
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        check_replaceable(path)
        _make_folder(path.parent)
        temporary.unlink(missing_ok=True)  # a stranger may have put a link there
        yield temporary
        if durable:
            sync_file(temporary)
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {path}. The previous file is unchanged. Free some space and "
                "repeat the command (a training with --resume)"
            ) from error
        if error.filename and Path(error.filename) not in (temporary, path, *path.parents):
            raise  # the error is about another file, read inside the block
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Refuse to replace a device, a pipe or a folder; long work asks before it begins."""
    circle = not path.exists() and os.path.islink(os.path.realpath(path))
    if circle or (path.exists() and not path.is_file()):
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise UserError(f"{path} is {kind} and is not replaced: choose another file")


def check_own(path: Path, mark: bytes, command: str) -> None:
    """Refuse to replace a file that `command` did not write; long work asks before it begins.

    Every file of the command matches the regular expression `mark`. An empty file is replaced.
    """
    check_replaceable(path)
    try:
        size = path.stat().st_size if path.exists() else 0
        if not size:
            return
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if re.search(mark, content):
                return
            start = content[:SHOWN]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    first = (start.decode(errors="ignore").splitlines() or [""])[0]
    what = f"it begins with '{first}'" if first.isprintable() and first else f"{size:,} bytes"
    raise UserError(
        f"{path} was not written by {command} ({what}) and is not replaced: choose another name or "
        "delete it"
    )


def _make_folder(folder: Path) -> None:
    """Make a folder and those that lead to it, and bring their names to disk."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def sync_file(path: Path) -> None:
    """Bring the content of a file to disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk, on systems that can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folder
        return
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems sync no folder
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(descriptor)
