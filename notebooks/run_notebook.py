"""Run a notebook from top to bottom and print each cell's source and answer; the file is left as it is.

    python notebooks/run_notebook.py notebooks/quickstart.ipynb

Exits with 1 at the first cell that fails, after printing its error. ``make demo`` calls it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CELL_SECONDS = 300


def answer(output: Any) -> str:
    """One output as text: what a terminal can show of it."""
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}\n"
    return str(output.data.get("text/plain", "")) + "\n"


def main(path: Path) -> int:
    """Run ``path``; returns the exit status."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            print("\n".join(f"    {line}" for line in cell.source.splitlines()), flush=True)
            started = time.monotonic()
            failed = False
            try:
                client.execute_cell(cell, index)
            except CellExecutionError:
                failed = True
            seconds = time.monotonic() - started
            print("".join(answer(output) for output in cell.outputs), end="")
            print(f"[{seconds:.1f} s]\n", flush=True)
            if failed:
                return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} NOTEBOOK")
    sys.exit(main(Path(sys.argv[1])))
