"""Atomic writes, and tensors read from files."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from longtail.core.errors import UserError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a safetensors file, or is truncated: {error}. No code in it was run"
        ) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, safetensors.torch.save(plain))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and move it to `path` when the block succeeds."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {path}. The previous file is unchanged. Free some space and "
                "continue with --resume"
            ) from error
        if error.filename and Path(error.filename) not in (temporary, path, *path.parents):
            raise  # the error is about another file, read inside the block
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
