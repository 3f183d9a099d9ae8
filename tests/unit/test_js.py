"""The folds, layouts and words that run in the page, by Node's own test runner."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from sgnb.widgets import bundle
from sgnb.widgets.bundle import BundleError, join_modules, packed_core, script_of

ROOT = Path(__file__).parents[2]
MOST = {"widget_timeline.js": 90_000}
"""Bytes of a minified script at most; of the others, and of the core, 60 000. What is sent is packed: about half."""
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
    """The script inside a packed one, or the core. Node imports no ``blob:``; browsers do, see tests/browser."""
    found = re.search(r'^const packed = "([^"]+)";$', small, re.MULTILINE)
    return zlib.decompress(base64.b64decode(found[1] if found else small), -15)


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


def node_says(ask: str, *arguments: Path) -> str:
    done = subprocess.run(
        ["node", "--input-type=module", "-e", ask, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_minified_widgets_are_small_and_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = shutil.which("node")
    assert node
    made = tmp_path / "made"
    done = subprocess.run(
        [node, str(ROOT / "labextension" / "minify.mjs"), str(made)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n`npm ci` in labextension/ installs what it needs"
    entries = ["program.js", *(f"widget_{kind}.js" for kind in ("graph", "kv", "timeline", "tree"))]
    assert sorted(path.name for path in made.iterdir()) == ["core.packed", *entries]
    assert bundle._packaged(tmp_path) == {} and bundle._packaged(tmp_path / "none") == {}
    monkeypatch.setattr(bundle, "MINIFIED", made)
    core = tmp_path / "core.mjs"
    core.write_bytes(unpacked(packed_core()))
    assert core.stat().st_size <= 60_000
    for entry in entries:
        small = script_of(entry)
        inner = unpacked(small)
        loader = re.sub(r"^const packed = .*\n", "", small, flags=re.MULTILINE)
        assert len(inner) + len(loader.encode()) <= MOST.get(entry, 60_000), entry
        if entry in COUNTS:
            assert b"._n(" in inner, "what JupyterLab's translations are called is not shortened"
        view = tmp_path / "view.mjs"
        view.write_bytes(inner)
        assert b'from"sgnb:core"' in inner
        view.write_bytes(inner.replace(b"sgnb:core", core.as_uri().encode()))
        ask = "import(process.argv[1]).then(m => console.log(typeof m.default.render))"
        assert node_says(ask, view) == "function"
        outer = tmp_path / "outer.mjs"
        outer.write_text(small)
        ask = "import(process.argv[1]).then(m => console.log(Object.keys(m.default).join()))"
        assert node_says(ask, outer) == "initialize,render"


def test_scripts_that_are_packed_for_other_modules_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packed ones go together: no view is taken without the core that it was made with."""
    monkeypatch.setattr(bundle, "MINIFIED", tmp_path)
    (tmp_path / "core.packed").write_text(f"// {bundle._mark()}\nQQ==\n")
    (tmp_path / "program.js").write_text("// 0\nexport default {};\n")
    assert script_of("program.js") == join_modules("program.js") and packed_core() == ""
    (tmp_path / "program.js").write_text(f"// {bundle._mark()}\nexport default {{}};\n")
    bundle._packaged.cache_clear()
    assert script_of("program.js") == "export default {};" and packed_core() == "QQ=="
    monkeypatch.setattr(bundle, "STATIC", tmp_path)  # the modules have changed
    bundle._packaged.cache_clear()
    assert packed_core() == ""
    bundle._packaged.cache_clear()
