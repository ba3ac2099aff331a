"""The environment of a run: device, package versions, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("longtail", "torch", "torchvision", "timm", "lightning", "numpy")
PATIENCE = 60.0
"""Seconds that git may take to answer; on a busy machine a result would lose its commit."""


def environment(*, cuda: bool) -> dict[str, Any]:
    """Describe the device, package versions and commit of this process."""
    processor = f"CPU {platform.machine()}, {os.cpu_count()} cores"
    device = torch.cuda.get_device_name() if cuda else processor
    return {"device": device, "versions": versions(), "git": commit()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "source"
    return found


def commit() -> str | None:
    """Return the source tree's commit, or None; -dirty if files outside results/ have changed.

    A package that is installed inside another repository has none: its files are not tracked there.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    name = _git("describe", "--always")
    outside_results = (":/", ":(top,exclude)results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *outside_results)
    if not name or changed is None:
        return None
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> str | None:
    """Run git in the source tree; return its output, or None if it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.decode("utf-8", "replace").strip()
