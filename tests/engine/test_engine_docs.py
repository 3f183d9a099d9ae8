"""The examples of docs/engine.md run as they stand, in their order, in one process of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"
CONCEPTS = {
    "retracted, policy, chunk, mixed, admitted, priority, decode_quantum, cancel, leader, evict, pin, flush, page_size",
    "defragment, fork, regex, thread, overlap, history, stats, record, simulate, stacks, LimitError",
    "seed, logprob, top_p",
}


def test_every_example_runs_and_every_concept_has_one(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert [name for names in CONCEPTS for name in names.split(", ") if name not in code] == []
    file = tmp_path / "page.py"
    file.write_text(code)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
