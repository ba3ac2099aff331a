"""Verify files without using them: runs, exports and the cache of decoded images."""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from longtail.core.errors import UserError
from longtail.core.files import read_tensors
from longtail.core.manifest import NAME as MANIFEST
from longtail.core.manifest import DamageError, describe_damage, read_manifest, verify
from longtail.core.plain import parse_yaml, read_json, read_text
from longtail.core.seals import check_sealed_file
from longtail.data.decoding.cache import matches_hash
from longtail.runs.checkpoint import LAST, PREVIOUS
from longtail.runs.folder import FILES
from longtail.runs.lines import parse_lines
from longtail.runs.repairs import explain_repair
from longtail.runs.store import CONFIG, METRICS
from longtail.serving.model import WAY_OUT
from longtail.serving.read import (
    DESCRIPTION,
    MODEL_CONFIG,
    WEIGHTS,
    check_description,
    check_safetensors,
    is_saved,
    is_sealed,
    open_onnx,
    read_description,
)

REPORT = "report.html"
"""File of a run that is not recorded: nothing reads it, and it can be made again."""
CACHED = "[0-9a-f]{64}"
"""Regular expression of the names of arrays in the cache, without suffix."""


@dataclass
class Verification:
    """What a check of files found."""

    verified: int = 0
    """Files that hold what was written."""
    damage: list[str] = field(default_factory=list)
    """A paragraph for each damaged or missing file: what is wrong, and how it can be repaired."""
    unverified: list[Path] = field(default_factory=list)
    """Files without a recorded hash, which older versions and other programs write."""

    def check(self, verify_file: Callable[..., object], path: Path, *more: str) -> None:
        """Note whether `verify_file` accepts a file, refuses it, or finds no hash (False)."""
        try:
            if verify_file(path, *more) is False:
                self.unverified.append(path)
            else:
                self.verified += 1
        except DamageError as error:
            self.damage.append(str(error))
        except OSError as error:
            self.damage.append(f"{path} cannot be read: {error.strerror or error}")


def verify_all(path: Path) -> Verification:
    """Verify a run, an export, a saved model, a cache, or all of these in a folder.

    Hidden files and folders in a folder, such as .venv, are skipped.

    Raises:
        UserError: if there is nothing to verify.
    """
    found = Verification()
    if not path.exists():
        raise UserError(f"{path} does not exist: pass a run, an export or the cache")
    if path.is_dir():
        _verify_folder(path, found)
    else:
        found.check(_verify_file, path)
    if not (found.verified or found.damage or found.unverified):
        raise UserError(f"{path} holds nothing to verify: pass a run, an export or the cache")
    return found


def _verify_folder(folder: Path, found: Verification) -> None:
    """Verify the runs and saved models at any depth, then exports and arrays."""
    inside = [path for path in sorted(folder.rglob("*")) if not _is_hidden(path, folder)]
    marks = {path.parent for path in inside if path.name in (CONFIG, MANIFEST, MODEL_CONFIG)}
    covered: set[Path] = set()
    for place in sorted(marks):
        if _is_run(place):
            covered.update(place / name for name in _verify_run(place, found))
        elif _is_own_model(place):
            covered.add(place / WEIGHTS)
            if (place / WEIGHTS).exists():
                found.check(_verify_saved, place)
            else:
                found.damage.append(f"{place / WEIGHTS} is missing. {WAY_OUT}")
    for file in inside:
        if _has_kind(file) and file not in covered:
            found.check(KINDS[file.suffix], file)


def _is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a path in a folder is hidden there, or lies in a folder that is."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _is_own_model(folder: Path) -> bool:
    """Return whether longtail saved a model in a folder; Hugging Face uses the same names."""
    described = is_saved(folder) and read_description(folder / WEIGHTS) is not None
    return described or "blueprint" in (_list_keys(folder / MODEL_CONFIG) or ())


def _is_foreign(manifest: Path) -> bool:
    """Return whether another program wrote a manifest; invalid JSON may be ours, damaged."""
    keys = _list_keys(manifest)
    return keys is not None and len({"format", "files", "sha256"} & keys) < 2


def _list_keys(path: Path) -> set[str] | None:
    """Return the keys of a JSON object, an empty set for other JSON; None if it is invalid."""
    try:
        tree = read_json(path)
    except UserError:
        return None
    return set(tree) if isinstance(tree, dict) else set()


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run; other programs write such names, too."""
    if _is_foreign(folder / MANIFEST):
        return False
    marks = (LAST, PREVIOUS, METRICS, "per_class.csv")
    lost = (folder / MANIFEST).exists() and any((folder / name).exists() for name in marks)
    return lost or _is_own_config(folder / CONFIG)


def _is_own_config(path: Path) -> bool:
    """Return whether a config.yaml is that of a run; invalid YAML may be ours, damaged."""
    if not path.exists():
        return False
    try:
        tree = parse_yaml(read_text(path), str(path))
    except UserError:
        return True
    return isinstance(tree, dict) and "method" in tree


def _has_kind(file: Path) -> bool:
    """Return whether longtail verifies a file; of arrays, only those with a name of the cache."""
    foreign = file.suffix == ".npy" and not re.fullmatch(CACHED, file.stem)
    return file.suffix in KINDS and not foreign and file.is_file()


def _verify_run(folder: Path, found: Verification) -> Iterable[str]:
    """Verify the recorded files of a run and return their names; runs inside it are others."""
    try:
        entries = read_manifest(folder)
    except UserError as error:  # damage, or a format of a later version
        found.damage.append(str(error))
        return ()
    finished = (folder / "result.json").exists()
    for name, known in entries.items():
        path = folder / name
        may_lack = None in known or (finished and name in (LAST, PREVIOUS))
        if path.exists():
            found.check(verify, path, explain_repair(path))
        elif not may_lack:
            found.damage.append(f"{describe_damage(path, None, known)} {explain_repair(path)}")
    for path in (folder / name for name in FILES if name not in {*entries, MANIFEST, REPORT}):
        if path.exists() and path.name == METRICS:
            found.check(_verify_lines, path)
        elif path.exists() and not _has_kind(path):  # each kind is verified by itself
            found.unverified.append(path)
    return entries


def _verify_lines(path: Path) -> None:
    """Verify metrics.jsonl of a run that is not finished."""
    try:
        parse_lines(read_text(path))
    except ValueError as error:
        raise DamageError(f"{path} is damaged: {error}. {explain_repair(path)}") from None


def _verify_file(path: Path) -> bool | None:
    """Verify an export, an array of the cache, or a file of a run."""
    if _is_run(path.parent) and path.name in read_manifest(path.parent):
        verify(path, explain_repair(path))
    elif _has_kind(path):
        return KINDS[path.suffix](path)
    else:
        raise UserError(f"{path} is not a file that longtail verifies: pass a run or an export")
    return None


def _verify_saved(folder: Path) -> bool:
    """Verify a folder that `save_pretrained` wrote; return whether its weights hold their hash."""
    with count_as_damage():
        check_description(folder)
    return _verify_safetensors(folder / WEIGHTS)


def _verify_safetensors(path: Path) -> bool:
    """Verify a safetensors file; return whether it holds its own hash."""
    with count_as_damage():
        sealed = check_sealed_file(path, WAY_OUT)
        check_safetensors(path)
        read_tensors(path)
    return sealed


def _verify_onnx(path: Path) -> bool:
    """Verify an ONNX file; return whether it holds its own hash.

    Another one is damaged if it cannot be parsed, which only onnxruntime can tell. A sound one may
    need operators or files that are not here.
    """
    if check_sealed_file(path, WAY_OUT):
        return True
    if find_spec("onnxruntime") is None:
        return False
    try:
        open_onnx(path)
    except DamageError:
        raise
    except UserError:
        pass
    return False


@contextmanager
def count_as_damage() -> Iterator[None]:
    """Turn any error about the content of a file into one about damage."""
    try:
        yield
    except UserError as error:
        raise DamageError(str(error)) from None


def _verify_array(path: Path) -> None:
    """Verify an array of the cache."""
    if not matches_hash(path):
        raise DamageError(
            f"{path} is damaged, or an older version wrote it: the next training that needs it "
            "decodes the images again"
        )


def _verify_torch_export(path: Path) -> bool:
    """Verify a .pt2 file; return whether it holds its own hash."""
    if check_sealed_file(path, WAY_OUT):
        return True
    _verify_zip(path)
    with _open_zip(path) as archive:
        members = archive.infolist()
        about = [m for m in members if m.filename.endswith(f"/{DESCRIPTION}.json")]
        # a cut file may seem to be one of the zips inside it, after other bytes
        is_cut = not any(member.header_offset == 0 for member in members)
        if is_cut or any(is_sealed(archive.read(member).decode()) for member in about):
            raise DamageError(f"{path} is damaged: its SHA-256 is gone. {WAY_OUT}")
    return False


def _verify_arrays(path: Path) -> bool:
    """Verify the checksums of a .npz file, which has no hash; return False."""
    _verify_zip(path)
    return False


def _verify_zip(path: Path) -> None:
    """Verify the checksums of a zip file."""
    with _open_zip(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise DamageError(f"{path} is damaged in {broken}. {WAY_OUT}")


@contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DamageError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, RuntimeError) as error:
        raise DamageError(f"{path} is damaged: {error}. {WAY_OUT}") from None


KINDS: dict[str, Callable[[Path], bool | None]] = {
    ".npy": _verify_array,
    ".npz": _verify_arrays,
    ".pt2": _verify_torch_export,
    ".onnx": _verify_onnx,
    ".safetensors": _verify_safetensors,
}
"""How each kind of file outside a run is verified; False if it holds no hash."""
