"""The wheel: what it carries, and that it is built without Node once the side panel is."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "sgnb" / "labextension"
SHARED = "sgnb-{version}.data/data/share/jupyter/labextensions/sgnb/"
BUNDLE_LIMIT = 120_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The project's wheel, built in this environment with neither node nor npm to be found."""
    assert (BUILT / "static" / "style.js").exists(), "the side panel is not built: make setup"
    folder = tmp_path_factory.mktemp("wheel")
    env = dict(os.environ, PATH=str(folder))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("sgnb-*.whl")
    return zipfile.ZipFile(path)


def test_wheel_carries_the_package_the_panel_and_the_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    version = Path(wheel.filename or "").name.split("-")[1]
    shared = SHARED.format(version=version)
    for name in (
        "sgnb/__init__.py",
        "sgnb/magics.py",
        "sgnb/engine/__main__.py",
        "sgnb/widgets/static/program.js",
    ):
        assert name in names
    assert f"sgnb-{version}.dist-info/licenses/LICENSE" in names
    panel = sorted(name.removeprefix(shared) for name in names if name.startswith(shared))
    assert {"install.json", "package.json", "static/style.js", "schemas/sgnb/plugin.json"} <= set(panel)
    assert any(name.startswith("static/remoteEntry.") for name in panel)
    assert panel == sorted(
        name.removeprefix("sgnb/labextension/") for name in names if "sgnb/labextension/" in name
    )


def test_wheel_carries_nothing_else(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert name.split("/")[0].startswith(("sgnb", "sgnb-")), name
        assert not name.endswith((".map", ".pyc", ".ts", "build_log.json")), name
        assert "node_modules" not in name


def test_panel_is_small_and_of_the_package_version() -> None:
    # what the page loads for the panel; a widget's script comes with the widget and has a bar of its own (test_js)
    files = [path for path in BUILT.rglob("*") if path.is_file() and "widgets" not in path.parts[-2:]]
    assert any(path.name.startswith("remoteEntry.") for path in files)
    size = sum(len(gzip.compress(path.read_bytes())) for path in files)
    assert size < BUNDLE_LIMIT
    built = json.loads((BUILT / "package.json").read_text())
    source = json.loads((ROOT / "labextension" / "package.json").read_text())
    import sgnb

    assert built["version"] == source["version"] == sgnb.__version__
