"""``docs/reference.md`` has every public name, parameter and default, and the examples of the language's pages run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from whole_engine import WholeEngine

import sgnb
import sgnb.compat.sglang as compat
from sgnb.backends.mock import MockBackend
from sgnb.runtime.run_arguments import RUN_DEFAULTS, RUN_ONLY

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference.md").read_text(encoding="utf-8")
compat.uninstall()  # importing it has put it in
PAGES = ("language.md", "language-fork-select.md", "reference.md", "sglang.md")

KV = 'method="kv"'
"""An example with this needs KV."""


def rows(heading: str) -> dict[str, str]:
    """First and second column of the table under a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^#", section, flags=re.MULTILINE)[0]
    return dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", section, re.MULTILINE))


def test_every_public_name_is_there():
    words = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", code)}
    assert sorted(set(sgnb.__all__) - words) == []


def test_every_parameter_of_gen_with_its_default():
    parameters = inspect.signature(sgnb.gen).parameters.values()
    given = {p.name: repr(p.default) for p in parameters if p.kind is not p.VAR_KEYWORD}
    assert rows("Parameters of `gen`") == given


def test_every_argument_of_run_with_its_default():
    assert rows("Arguments of `run`") == {k: repr(v) for k, v in {**RUN_DEFAULTS, **RUN_ONLY}.items()}


@pytest.mark.parametrize("kind", [sgnb.State, sgnb.Group], ids=lambda kind: kind.__name__)
def test_every_method_that_a_page_shows_exists(kind):
    prefix = {"State": "s", "Group": "group"}[kind.__name__]
    shown = set(re.findall(rf"\b{prefix}\.(\w+)\(", PAGE))
    assert len(shown) >= (20 if kind is sgnb.State else 1)
    assert [name for name in shown if not hasattr(kind, name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page, tmp_path, monkeypatch):
    """In the order of the page, in one namespace, from a file: a program needs its source."""
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    assert examples or page == "language.md"
    if page == "sglang.md":
        compat.install()  # its first import does that; another test may have taken it out again
    backend = MockBackend({"legs": "8", "colour": "black"})
    engine = WholeEngine() if any(KV in example for example in examples) else None
    namespace = {"sgl": sgnb, "__name__": "docs_example"}
    try:
        for number, example in enumerate(examples):
            file = tmp_path / f"example_{number}.py"
            file.write_text(example)
            sgnb.set_default_backend(engine if KV in example else backend)
            exec(compile(example, str(file), "exec"), namespace)
    finally:
        sgnb.set_default_backend(None)
        backend.shutdown()
        if engine is not None:
            engine.shutdown()
        compat.uninstall()
