"""The wheel works without the repository: all that it needs is inside it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import longtail as lt
run = lt.fit("digits-lt", "deconfound-tde", out="run", epochs=1, device="cpu", alpha=1.0)
lt.report([run], "report.html")
lt.export(run, "safetensors", "model.safetensors")
from longtail.training.recipes import read_recipe
print(lt.__file__, lt.load_model("model.safetensors").classes[0])
print(read_recipe("frontier").recipe_name)
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


def test_it_trains_reports_and_exports_on_its_own(installed, tmp_path):
    own = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed / "longtail" / "__init__.py"), "0", "frontier"]
