"""What a figure was made with: device, versions, commit."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("longtail", "torch", "torchvision", "timm", "lightning", "numpy")


def environment(*, cuda: bool) -> dict[str, Any]:
    """What this run is made with, on a CUDA device or not."""
    device = torch.cuda.get_device_name() if cuda else _processor()
    return {"device": device, "versions": versions(), "git": commit()}


def versions() -> dict[str, str]:
    """Of Python and of the packages that a figure depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "source"
    return found


def commit() -> str | None:
    """Commit of the source tree this package is imported from, if it is one.

    With -dirty if files were changed since, but for those under results/, which benches write.
    """
    name = _git("describe", "--always")
    but_results = (":/", ":(top,exclude)results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *but_results)
    if not name or changed is None:
        return None
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> str | None:
    """What git says in that tree, if it can."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def _processor() -> str:
    return f"CPU {platform.machine()}, {os.cpu_count()} cores"
