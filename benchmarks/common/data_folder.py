"""The folder of data sets, checked before a benchmark writes anything.

Benchmarks do not download: they say what is missing before the package, whose errors offer
`--download`, looks for it.
"""

from collections.abc import Iterable
from pathlib import Path

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.catalogue import PACKED, PackedSet, data_root, find_folder


def check_root(root: Path | None) -> None:
    """Raise if `--root` is not a folder."""
    if root is not None and not root.is_dir():
        raise UserError(f"--root {root}: there is no such folder. Pass the folder of the data")


def check_data(names: Iterable[str], root: Path | None) -> None:
    """Raise if a data set of `names` that has files is not under `root`, or is damaged there.

    A name may end in `:ratio`. The package checks all other sets.
    """
    folder = data_root(DataConfig(root=root))
    for name in dict.fromkeys(name.partition(":")[0] for name in names):
        if name in PACKED:
            _check_packed(name, PACKED[name], folder)


def list_missing(names: Iterable[str], root: Path | None) -> list[str]:
    """List the reason why `check_data` would refuse `names`, if there is one, for a dry run."""
    try:
        check_data(names, root)
    except UserError as error:
        return [f"the run would be refused now: {error}"]
    return []


def _check_packed(name: str, entry: PackedSet, root: Path | None) -> None:
    place = find_folder(name, root)
    if place is None:
        unpacked = f" and no {entry.folder}/" if entry.folder else ""
        missing = f"there is no {name}/train.parquet{unpacked} under {root}"
        where = missing if root else "neither --root nor $LONGTAIL_DATA is set"
        raise UserError(
            f"{name} was not found: {where}. Pass --root FOLDER with the folder that holds it"
        )
    if place.name == entry.folder and (damaged := _list_damaged(entry, place)):
        raise UserError(
            f"{place} is incomplete or damaged ({', '.join(damaged)}): delete it and unpack "
            "torchvision's archive there again"
        )


def _list_damaged(entry: PackedSet, place: Path) -> list[str]:
    """List the files of torchvision that are missing or have another hash."""
    from torchvision import datasets  # slow to import, and only needed here
    from torchvision.datasets.utils import check_integrity

    kind = getattr(datasets, entry.torchvision)
    meta = kind.meta["filename"], kind.meta["md5"]
    files = [*kind.train_list, *kind.test_list, meta]
    return [name for name, md5 in files if not check_integrity(str(place / name), md5)]
