"""Files that are written whole or not at all, and tensors read from them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from longtail.core.errors import UserError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise UserError(
            f"{path} is no safetensors file, or was cut short: {error}. Nothing of it was run"
        ) from None


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {path}. Nothing is lost: what was there before is still there. "
                "Make room and go on with --resume"
            ) from error
        if error.filename and Path(error.filename) not in (temporary, path, *path.parents):
            raise  # it is about another file, that was read meanwhile
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
