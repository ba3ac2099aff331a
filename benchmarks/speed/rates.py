"""Throughput figures of the ways to feed a network: their file and their table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common.result_files import format_spread, read_result, write_json, write_page
from longtail.data.catalogue import LISTED
from longtail.evaluation import tables

NAME = "images"
WITHOUT_WORKERS = ("ceiling", "resident")
"""Ways that have no workers."""
WAYS = (*WITHOUT_WORKERS, "streaming", "dataloader")
EPOCHS = 90
IMAGES = LISTED["imagenet-lt"].lists["train"][1]
"""Training images of ImageNet-LT, one epoch."""


@dataclass(frozen=True)
class Throughput:
    """Throughput of one way to feed the network."""

    mode: str
    """One of `WAYS`."""
    fed_by: str
    """Name of the class that fed the network."""
    images: int
    """Images processed while timed."""
    workers: int
    images_per_second: float
    device_bytes: int
    """Peak memory allocated on the device; 0 on the CPU."""
    host_bytes: tuple[int | None, ...]
    """Samples of the memory of this process and its workers, without file cache: before, during and
    after; None if unknown."""
    preparing_seconds: float = 0.0
    """Seconds outside the timed part: decoding resident images, unless cached, and copying them to
    the device; building and capturing the network; warm-up."""

    @property
    def seconds(self) -> float:
        """Seconds of the timed part."""
        return self.images / self.images_per_second

    @property
    def host_growth(self) -> float | None:
        """Mean host memory in the second half of the time, relative to the first half."""
        known = _known(self.host_bytes[1:-1])
        half = len(known) // 2
        return mean(known[-half:]) / mean(known[:half]) if half else None

    @property
    def hours(self) -> float:
        """Hours of 90 epochs of ImageNet-LT at this rate."""
        return EPOCHS * IMAGES / self.images_per_second / 3600


def read_valid(about: Mapping[str, Any], workers: int, out: Path) -> dict[str, Throughput]:
    """Read the throughputs in `out` by mode, if the present conditions are those of the file.

    Returns nothing if the code differs from its commit: it may have changed since it was measured.

    Args:
        about: conditions that all figures depend on.
        workers: present number of workers; it matters only to the ways that have some.
        out: result file.
    """
    if not out.exists() or str(about["git"]).endswith("-dirty"):
        return {}
    content = read_result(out)
    if any(content.get(name) != value for name, value in about.items()):
        return {}
    return {
        way.mode: way
        for way in _read_ways(content)
        if way.workers == (0 if way.mode in WITHOUT_WORKERS else workers)
    }


def _read_ways(content: Mapping[str, Any]) -> list[Throughput]:
    """Return the throughputs of a result file, without the figures that follow from them."""
    names = [field.name for field in fields(Throughput)]
    rows = [{name: way[name] for name in names} for way in content["throughputs"]]
    return [Throughput(**{**way, "host_bytes": tuple(way["host_bytes"])}) for way in rows]


def read_modes(out: Path) -> set[str]:
    """Read the modes in `out`, whatever its conditions."""
    if not out.exists():
        return set()
    return {way["mode"] for way in read_result(out)["throughputs"]}


def set_aside(out: Path) -> None:
    """Rename the file to NAME-before-N.json with the first free N."""
    names = (out.with_stem(f"{out.stem}-before-{number}") for number in count(1))
    out.replace(next(name for name in names if not name.exists()))


def sort_ways(found: Mapping[str, Throughput]) -> list[Throughput]:
    """Sort throughputs in the order of `WAYS`."""
    return [found[mode] for mode in WAYS if mode in found]


def save(found: Sequence[Throughput], about: Mapping[str, Any], out: Path) -> None:
    """Write the figures with the conditions that they depend on."""
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


def write_table(results: Path) -> Path:
    """Write RESULTS/images.md from RESULTS/images/images.json."""
    content = read_result(results / NAME / f"{NAME}.json")
    about = (
        f"{content['backbone']} on {content['rows']:,} rows of {content['files']:,} generated "
        f"JPEGs, batches of {content['batch_size']}; {content['device']}, {content['cores']} cores"
        ". `host GiB` is the largest sample."
    )
    return write_page(results, NAME, [about, tables.markdown(*table(_read_ways(content)))])


def table(found: Sequence[Throughput]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows."""
    ceiling = next((way.images_per_second for way in found if way.mode == "ceiling"), None)
    header = ["mode", "images/s", "of ceiling", "device GiB", "host GiB"]
    header += ["host, 2nd half / 1st", "prepared in s", "hours of 90 epochs"]
    rows = [
        [
            *(way.mode, f"{way.images_per_second:,.0f}"),
            f"{100 * way.images_per_second / ceiling:.0f} %" if ceiling else "-",
            f"{way.device_bytes / 2**30:.1f}",
            f"{max(known) / 2**30:.1f}" if (known := _known(way.host_bytes)) else "-",
            format_spread([way.host_growth], digits=3),
            *(f"{way.preparing_seconds:.0f}", f"{way.hours:.1f}"),
        ]
        for way in found
    ]
    return header, rows


def _known(values: Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]
