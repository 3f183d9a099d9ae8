"""The examples of docs/constraints.md run as they stand, over the mock backend."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

import sgnb
from sgnb.backends.mock import MockBackend

PAGE = Path(__file__).parents[2] / "docs" / "constraints.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number):
    assert len(EXAMPLES) >= 4
    name = f"<constraints.md {number}>"
    linecache.cache[name] = (len(EXAMPLES[number]), None, EXAMPLES[number].splitlines(True), name)
    backend = MockBackend()
    sgnb.set_default_backend(backend)
    try:
        exec(compile(EXAMPLES[number], name, "exec", dont_inherit=True), {"__name__": "__main__"})
    finally:
        sgnb.set_default_backend(None)
        backend.shutdown()
        del linecache.cache[name]
    assert backend.log, "it asks the model"
