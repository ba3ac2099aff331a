"""The wheel works without the repository: all that it needs is inside it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers import PHOTOS, photos

ROOT = Path(__file__).parents[1]
USE = """
import sys
import longtail as lt
from longtail.cli.parser import main
from longtail.training.recipes import read_recipe

words = "train photos --method deconfound-tde --epochs 1 --backbone conv4 --device cpu -o run"
main(words.split())
main(["eval", "run"])
lt.report(["run"], "report.html")
lt.export("run", "safetensors", "model.safetensors")
print(sys.getfilesystemencoding(), lt.__file__, read_recipe("frontier").recipe_name)
print(ascii(lt.load_model("model.safetensors").classes[-1]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The content of the wheel, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", folder)
    subprocess.run([sys.executable, *build, "--quiet"], check=True, cwd=folder)
    (wheel,) = folder.glob("longtail-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


def test_only_the_package_is_in_it(installed):
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"longtail"}
    source = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*.*")}
    source = {path for path in source if "__pycache__" not in path.parts and path.suffix != ""}
    assert {path for path in source if not (installed / path).exists()} == set()


def test_it_trains_reports_and_exports_on_its_own_in_any_locale(installed, tmp_path):
    """The class has an accent, which the encoding of the C locale does not know."""
    photos(tmp_path / "photos")
    for part in ("train", "test"):
        (tmp_path / "photos" / part / PHOTOS[-1]).rename(tmp_path / "photos" / part / "é")
    own = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env={**os.environ, **own, **plain},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, first, last = done.stdout.splitlines()
    assert first == f"ascii {installed / 'longtail' / '__init__.py'} frontier"
    assert last == ascii("é")
    assert "é" in (tmp_path / "run" / "per_class.csv").read_text(encoding="utf-8")
