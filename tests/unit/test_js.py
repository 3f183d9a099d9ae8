"""The folds, layouts and words that run in the page, by Node's own test runner."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from sgnb.widgets import bundle
from sgnb.widgets.bundle import BundleError, join_modules, script_of

ROOT = Path(__file__).parents[2]
MOST = {"widget_timeline.js": 90_000}
"""Bytes a widget's script may have, minified and packed; the others 60 000."""
UNPACKED = {
    "program.js": 76_500,
    "widget_timeline.js": 96_000,
    "widget_tree.js": 74_500,
    "widget_kv.js": 69_500,
}
"""Bytes that a page unpacks; the others 60 000."""
COUNTS = ("widget_kv.js", "widget_timeline.js", "widget_tree.js")
"""Widgets whose words have plurals."""
TESTS = sorted((Path(__file__).parents[1] / "js").glob("test_*.mjs"))


@pytest.mark.parametrize("path", TESTS, ids=[path.stem for path in TESTS])
def test_page_modules(path: Path) -> None:
    node = shutil.which("node")
    assert node, "Node 20 or newer is needed, as for make setup"
    done = subprocess.run([node, "--test", str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("kind", ["tree", "kv", "timeline", "graph"])
def test_widgets_are_one_script(kind: str, tmp_path: Path) -> None:
    script = join_modules(f"widget_{kind}.js")
    path = tmp_path / "widget.mjs"
    path.write_text(script)
    done = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert script.count("export default") == 1 and "import " not in script.split("export default")[0].split(
        "\n"
    )


def unpacked(small: str) -> bytes:
    """The script inside a packed one. Node imports no ``blob:``; browsers do, see tests/browser."""
    found = re.search(r'^const packed = "([^"]+)";$', small, re.MULTILINE)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1]), -15)


def test_modules_in_another_form_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgnb.widgets.bundle.STATIC", tmp_path)
    join_modules.cache_clear()
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nconst a = b;\nexport default a;\n')
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = 1;\n')
    with pytest.raises(BundleError, match="circle"):
        join_modules("a.js")
    (tmp_path / "b.js").write_text('import x from "y";\nexport const b = 1;\n')
    with pytest.raises(BundleError, match="not in the form"):
        join_modules("a.js")
    (tmp_path / "b.js").write_text("export const b = 1;\n")
    assert "const m_b" in join_modules("a.js")
    join_modules.cache_clear()


def test_minified_widgets_are_small_and_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = shutil.which("node")
    assert node
    environment = {**os.environ, "PYTHON": sys.executable}
    script = str(ROOT / "labextension" / "minify.mjs")
    made = subprocess.run(
        [node, script, str(tmp_path)], capture_output=True, text=True, timeout=200, env=environment
    )
    assert made.returncode == 0, f"{made.stderr[-2000:]}\n`npm ci` in labextension/ installs what it needs"
    entries = sorted(path.name for path in tmp_path.iterdir())
    assert entries == ["program.js", *(f"widget_{kind}.js" for kind in ("graph", "kv", "timeline", "tree"))]
    monkeypatch.setattr(bundle, "MINIFIED", tmp_path)
    for entry in entries:
        small = script_of(entry)
        assert len(small.encode()) <= MOST.get(entry, 60_000), entry
        assert small != join_modules(entry)
        inner = unpacked(small)
        assert len(inner) <= UNPACKED.get(entry, 60_000), entry
        if entry in COUNTS:
            assert b"._n(" in inner, "what JupyterLab's translations are called is not shortened"
        (tmp_path / "widget.mjs").write_bytes(inner)
        ask = "import(process.argv[1]).then(m => console.log(typeof m.default.render))"
        done = subprocess.run(
            [node, "-e", ask, str(tmp_path / "widget.mjs")], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == "function", done.stderr
    # Of other modules than these: the joined form.
    (tmp_path / "program.js").write_text("// 0\nexport default {};\n")
    assert script_of("program.js") == join_modules("program.js")
