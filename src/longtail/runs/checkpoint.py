"""The checkpoint of a run: a file with all that a resumed training needs.

The checkpoint before the last one is kept, and is used if the last one is damaged.
"""

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from longtail.core.errors import UserError
from longtail.core.manifest import DamageError, read_manifest, replace_recorded, verify

logger = logging.getLogger(__name__)

FORMAT = 1
LAST, PREVIOUS = "last.pt", "previous.pt"


def write_checkpoint(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint; the last one stays until the new one is on disk, and then as previous."""
    whole = io.BytesIO()  # so that a full disk fails in a plain write with a clear error
    torch.save({"format": FORMAT, **content}, whole)
    with replace_recorded(folder / LAST, keep=folder / PREVIOUS) as temporary:
        temporary.write_bytes(whole.getbuffer())


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, the last one first."""
    return [folder / name for name in (LAST, PREVIOUS) if (folder / name).exists()]


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read the last checkpoint, or the previous one if that is damaged; None if there is none."""
    read_manifest(folder)  # damage to it is no reason to doubt both checkpoints
    damage: DamageError | None = None
    for path in list_checkpoints(folder):
        try:
            content = _read(path)
        except DamageError as error:
            damage = damage or error
            continue
        if damage:
            logger.warning("%s %s of epoch %d is used", damage, path, content["epoch"])
        return content
    if damage:
        raise DamageError(
            f"{damage} Delete {' and '.join(path.name for path in list_checkpoints(folder))} in "
            f"{folder}, and --resume starts this run from its first epoch; or use --overwrite"
        )
    return None


@contextmanager
def explain_restoring(folder: Path) -> Iterator[None]:
    """Name the run in errors about a checkpoint that is readable and does not fit the training."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        reason = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"the training cannot go on from {folder}/{LAST} ({reason}): copy it again, or start "
            "again with --overwrite"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    """Read one checkpoint."""
    try:
        content: dict[str, Any] = torch.load(verify(path), map_location="cpu", weights_only=True)
        version, _ = content["format"], content["epoch"]
    except UserError:
        raise
    except Exception as error:
        raise DamageError(
            f"{path} cannot be read: it was cut short or is not a checkpoint "
            f"({type(error).__name__})."
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {version}, this version reads {FORMAT}: finish the run "
            f"with the version in {path.parent}/env.json, or start again with --overwrite"
        )
    return content
