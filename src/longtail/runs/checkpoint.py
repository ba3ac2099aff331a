"""The checkpoint of a run: a file with all that a resumed training needs."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically

FORMAT = 1


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint; the previous one stays until the new one is on disk."""
    whole = io.BytesIO()  # so that a full disk fails in a plain write with a clear error
    torch.save({"format": FORMAT, **content}, whole)
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        file.write(whole.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `write_checkpoint` wrote."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        version = content["format"]
    except Exception as error:
        raise UserError(
            f"{path} cannot be read: it was cut short or is not a checkpoint "
            f"({type(error).__name__}). Delete it and --resume starts this run from its "
            "first epoch, or use --overwrite"
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {version}, this version reads {FORMAT}: finish the run "
            f"with the version in {path.parent}/env.json, or start again with --overwrite"
        )
    return content
