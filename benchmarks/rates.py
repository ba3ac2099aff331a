"""What was measured of each way to feed a network: the figures, their file, and their table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.files import figure, write_json
from longtail.data.formats.imagenet_lt import LISTED

UNAIDED = ("ceiling", "resident")
"""Ways that have no workers."""
WAYS = (*UNAIDED, "streaming", "dataloader")
EPOCHS = 90
IMAGES = LISTED["imagenet-lt"].lists["train"][1]


@dataclass(frozen=True)
class Throughput:
    """One way of feeding the network."""

    mode: str
    """One of `WAYS`."""
    fed_by: str
    """The class that did it."""
    images: int
    """That the clock ran for."""
    workers: int
    images_per_second: float
    device_bytes: int
    """Most that was allocated on the device; 0 on the CPU."""
    host_bytes: tuple[int | None, ...]
    """Memory of this process and its workers, without file cache: before, all along, and after;
    None where it is unknown."""
    preparing_seconds: float = 0.0
    """Outside the clock: resident images decoded, unless the cache has them, and brought to the
    device; the network built and captured; warming up."""

    @property
    def seconds(self) -> float:
        """That the clock ran."""
        return self.images / self.images_per_second

    @property
    def host_growth(self) -> float | None:
        """Mean memory of the host in the second half of the time over that in the first half."""
        known = _known(self.host_bytes[1:-1])
        half = len(known) // 2
        return mean(known[-half:]) / mean(known[:half]) if half else None

    @property
    def hours(self) -> float:
        """That 90 epochs of ImageNet-LT take at this rate."""
        return EPOCHS * IMAGES / self.images_per_second / 3600


def keep(about: Mapping[str, Any], workers: int, out: Path) -> dict[str, Throughput]:
    """What `out` has by mode, if all that it depends on is as it is now.

    Code that was changed since the commit may have been changed again: nothing is known of it.

    Args:
        about: what all depends on.
        workers: that are there now; they matter only to the ways that have some.
        out: the file.
    """
    if not out.exists() or str(about["git"]).endswith("-dirty"):
        return {}
    content = json.loads(out.read_text())
    if any(content.get(name) != value for name, value in about.items()):
        return {}
    names = [field.name for field in fields(Throughput)]
    rows = [{name: way[name] for name in names} for way in content["throughputs"]]
    ways = [Throughput(**{**way, "host_bytes": tuple(way["host_bytes"])}) for way in rows]
    return {way.mode: way for way in ways if way.workers == (0 if way.mode in UNAIDED else workers)}


def modes(out: Path) -> set[str]:
    """Of all that `out` has, whatever it depends on."""
    if not out.exists():
        return set()
    return {way["mode"] for way in json.loads(out.read_text())["throughputs"]}


def put_aside(out: Path) -> None:
    """Give the file a name of its own: NAME-before-N.json with the first N that is free."""
    names = (out.with_stem(f"{out.stem}-before-{number}") for number in count(1))
    out.replace(next(name for name in names if not name.exists()))


def in_order(found: Mapping[str, Throughput]) -> list[Throughput]:
    """As `WAYS` has them."""
    return [found[mode] for mode in WAYS if mode in found]


def save(found: Sequence[Throughput], about: Mapping[str, Any], out: Path) -> None:
    """Write the figures with all that they depend on."""
    content = {
        **about,
        "throughputs": [
            {**asdict(way), "host_growth": way.host_growth, "hours_of_90_epochs": way.hours}
            for way in found
        ],
        "extrapolated": {
            f"{way.mode}: hours of 90 epochs on 8 such devices, if they did not wait": way.hours / 8
            for way in found
        },
    }
    write_json(out, content)


def table(found: Sequence[Throughput]) -> tuple[list[str], list[list[str]]]:
    """Header and rows, for a terminal."""
    ceiling = next((way.images_per_second for way in found if way.mode == "ceiling"), None)
    header = ["mode", "images/s", "of ceiling", "device GiB", "host GiB"]
    header += ["host, 2nd half / 1st", "prepared in s", "hours of 90 epochs"]
    rows = [
        [
            *(way.mode, f"{way.images_per_second:,.0f}"),
            f"{100 * way.images_per_second / ceiling:.0f} %" if ceiling else "-",
            f"{way.device_bytes / 2**30:.1f}",
            f"{max(known) / 2**30:.1f}" if (known := _known(way.host_bytes)) else "-",
            figure([way.host_growth], digits=3),
            *(f"{way.preparing_seconds:.0f}", f"{way.hours:.1f}"),
        ]
        for way in found
    ]
    return header, rows


def _known(values: Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]
