"""What docs/recording.md and docs/simulator.md show is run as it stands, in their order, in one folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_runs(tmp_path):
    ran = {"python": 0, "sh": 0}
    for page in ("recording.md", "simulator.md"):
        for kind, text in _BLOCK.findall((DOCS / page).read_text()):
            commands = (
                [[sys.executable, "-c", text]]
                if kind == "python"
                else [
                    [sys.executable, "-m", "sgnb.cli", *shlex.split(line)[1:]]
                    for line in text.splitlines()
                    if line
                ]
            )
            for command in commands:
                done = subprocess.run(
                    command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
                )
                assert done.returncode == 0, f"{page}: {text}\n{done.stdout}\n{done.stderr}"
                ran[kind] += 1
    assert ran["python"] >= 3 and ran["sh"] >= 4
    assert (tmp_path / "run.json").stat().st_size > 1000
