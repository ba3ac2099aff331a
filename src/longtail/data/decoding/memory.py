"""Memory of the host: whether a data set fits, told before it is read."""

import os
from pathlib import Path

from longtail.data.decoding.cache import CachedStore, free_room
from longtail.data.sources import Source

GIB = 2**30


def free() -> int | None:
    """Bytes that may still be taken, by the machine and by the container; None if unknown."""
    bounds = [bound for bound in (_machine(), _container()) if bound is not None]
    return min(bounds, default=None)


def shortage(source: Source, *, copies: float = 1.0) -> str:
    """Why a source does not fit, with the sizes and the image size that would; empty if it does.

    Decoded images that are kept on disk are memory-mapped and count for nothing.

    Args:
        source: what is about to be read.
        copies: how often the training part is held at the worst moment.
    """
    spare = free()
    if spare is None:
        return ""
    parts = source.parts.values()
    read = 0 if _all_kept(source) else sum(map(len, parts))
    rows = read + (copies - 1) * len(source.train)
    each = max(part.store.row_bytes() for part in parts)
    if rows * each <= spare:
        return ""
    side = int((spare / rows / 3) ** 0.5)
    return (
        f"{rows:,.0f} images of {each:,} bytes would take {rows * each / GIB:.1f} GiB of memory "
        f"and {spare / GIB:.1f} GiB are free: pass --image-size {max(side, 1)} or less, cut the "
        "data (DATA:ratio), or use a machine with more memory"
    )


def _all_kept(source: Source) -> bool:
    """Whether all decoded images are on disk already, or there is room for them."""
    unwritten = 0
    for part in source.parts.values():
        if not isinstance(part.store, CachedStore):
            return False
        unwritten += part.store.unwritten(part.rows)
    return not unwritten or unwritten < free_room()


def _machine() -> int | None:
    """Memory the kernel could give, with what it only caches; else all there is."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _container(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the container's own limit leaves; its file cache does not count, it is given up."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = {name: int(value) for name, value in pairs}.get("inactive_file", 0)
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + cached
