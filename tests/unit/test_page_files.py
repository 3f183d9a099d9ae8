"""What widgets bring to a page comes whole from the kernel: no address, no import, nothing from elsewhere (B178)."""

from __future__ import annotations

import base64
import re
import zlib

import pytest

from sgnb.widgets.bundle import STATIC, packed_core, script_of

ENTRIES = ["program.js", "widget_tree.js", "widget_kv.js", "widget_timeline.js", "widget_graph.js"]
NAMESPACES = {"http://www.w3.org/2000/svg"}


def unpacked(script: str) -> str:
    """What runs in the page: a built script unpacks its view, and its one import is that of what it has unpacked; of a view
    those from the core, which is unpacked too."""
    found = re.search(r'^const packed = "([A-Za-z0-9+/=]+)";$', script, re.MULTILINE)
    if found is None:
        return script  # as it is joined from the sources
    loader = script.replace(found[1], "").replace('"sgnb:core"', "")
    (place,) = re.findall(r"\bimport\((\w)\)", loader)
    assert f"URL.revokeObjectURL({place})" in loader and "URL.createObjectURL(new Blob(" in loader
    assert (
        len(re.findall(r"\b(?:import|from)\b", loader)) == 2
        and "Array.from(" in loader
        and "//" not in loader
    )
    view = inflated(found[1]).replace('from"sgnb:core"', "")
    return re.sub(r"^import\{[\w, $]+\};", "", view) + loader + inflated(packed_core())


def inflated(packed: str) -> str:
    return zlib.decompress(base64.b64decode(packed), -15).decode()


@pytest.mark.widget
@pytest.mark.parametrize("entry", ENTRIES)
def test_B178_a_widget_is_one_script_that_loads_nothing(entry: str) -> None:
    """Offline, and in hosts that let no page fetch: no address, no further module, no worker, no frame."""
    script = unpacked(script_of(entry))
    assert len(script) > 20_000
    assert set(re.findall(r"https?://[^\"'`\s)]+", script)) <= NAMESPACES
    assert len(re.findall(r"\bimport\s*\(", script)) <= 1  # of the place that the loader made
    assert not re.search(r"\bimport\s*[\"'{*]|\bfrom\s*[\"']", script)
    for name in (
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "importScripts",
        "new Worker",
        "sendBeacon",
        "EventSource",
    ):
        assert name not in script, name
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert name not in script, name


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.css")), ids=lambda path: path.name)
def test_styles_load_nothing(path) -> None:
    style = path.read_text()
    assert "@import" not in style and not re.search(r"url\((?!\s*[\"']?data:)", style)
