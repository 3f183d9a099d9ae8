"""What may stand in no file of the project, and what may stand in no file of the product."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written in two parts, so that this file is not its own finding.
HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry." + "npmjs",
    "yarn" + "pkg.com",
    "deb." + "debian.org",
]
UNSAFE = {
    "pickle": re.compile(r"\bpickle\b"),
    "eval or exec of text": re.compile(r"(?<![\w.])(?:eval|exec)\("),
    "torch.load": re.compile(r"\btorch\.load\("),
    "innerHTML": re.compile(r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write)\b"),
    "a TCP address": re.compile(r"tcp://"),
    "a shell": re.compile(r"shell=True|os\.system\("),
}
# A program is made of the user's own cell or function and runs in the user's own kernel.
ALLOWED = {("eval or exec of text", place) for place in ("sgnb/lang/frontend/", "sgnb/runtime/")}


@functools.cache
def files(*folders: str) -> list[Path]:
    """The project's own text files below ``folders``: what git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / line for line in listed.splitlines() if not line.endswith((".png", ".gguf"))]
    return [path for path in paths if path.is_file()]


@functools.cache
def code_of(path: Path) -> str:
    """The file without comments and, in Python, without docstrings: those may speak of what is forbidden."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return "\n".join(
            line for line in text.splitlines() if not line.lstrip().startswith(("//", "*", "/*"))
        )
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            node.value.value = ""
    return ast.unparse(tree)


def test_no_file_names_a_registry_host() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in files()
        for host in HOSTS
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert not found


def test_lock_file_holds_no_download_addresses() -> None:
    assert '"resolved": "http' not in (ROOT / "labextension" / "package-lock.json").read_text()


@pytest.mark.parametrize("rule", UNSAFE)
def test_product_does_without(rule: str) -> None:
    product = [path for path in files("sgnb", "labextension/src") if path.suffix in (".py", ".ts", ".js")]
    assert product
    found = []
    for path in product:
        name = str(path.relative_to(ROOT))
        if any(rule == allowed and name.startswith(place) for allowed, place in ALLOWED):
            continue
        found += [
            f"{name}: {line.strip()}" for line in code_of(path).splitlines() if UNSAFE[rule].search(line)
        ]
    assert not found
