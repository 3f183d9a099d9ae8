"""The folds, layouts and words that run in the page, by Node's own test runner."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sgnb.widgets.bundle import BundleError, join_modules

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


def test_the_timeline_is_below_its_bar_when_minified(tmp_path: Path) -> None:
    terser = Path(__file__).parents[2] / "labextension/node_modules/.bin/terser"
    assert terser.exists(), "make setup installs it with the side panel's tools"
    script = tmp_path / "widget.mjs"
    script.write_text(join_modules("widget_timeline.js"))
    command = ["node", str(terser), str(script), "--module", "--compress", "--mangle"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert 20_000 < len(done.stdout) <= 90_000
