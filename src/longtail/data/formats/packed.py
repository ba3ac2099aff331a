"""Data sets known by name that come as parquet files, or as torchvision downloads them."""

from dataclasses import replace

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.catalogue import PACKED, data_root, find_folder
from longtail.data.formats import cifar, parquet
from longtail.data.sources import Source


def open_source(name: str, *, config: DataConfig) -> Source:
    """Open a set of `PACKED`: parquet comes first, then torchvision's files, then a download."""
    entry, root = PACKED[name], data_root(config)
    place = find_folder(name, root)
    if place is None and not (config.download and entry.torchvision):
        unpacked = f" and no {entry.folder}/" if entry.folder else ""
        missing = f"there is no {name}/train.parquet{unpacked} under {root}"
        where = missing if root else "neither --root nor $LONGTAIL_DATA is set"
        offer = (
            "Pass --root FOLDER, or --root FOLDER --download to download it there"
            if entry.torchvision
            else "Pass --root FOLDER with the folder that holds it (there is no download for it)"
        )
        raise UserError(f"{name} was not found: {where}. {offer}")
    if place is None or place.name == entry.folder:
        source = cifar.open_source(entry, root, download=config.download)
    else:
        source = parquet.open_source(parquet.find_parts(place), config=config)
        if len(source.classes) != entry.classes:
            raise UserError(
                f"{place} has {len(source.classes)} classes and {name} has {entry.classes}: "
                "pass the folder's path to take it as it is"
            )
    if entry.torchvision:
        source = replace(source, mean=cifar.CIFAR_MEAN, std=cifar.CIFAR_STD)
    return source
