"""``python -m sgnb.engine models …``: the terminal's view of the model store.

A short-lived process of its own, started by the CLI and by ``make setup``. Prints; no engine is started here.
"""

from __future__ import annotations

import sys

from tqdm import tqdm

from sgnb.config import DEFAULT_MODEL
from sgnb.engine.model_store import cache_dir, list_models, pull
from sgnb.errors import SgnbError


def models(action: str, name: str | None) -> int:
    """``list`` or ``pull``; returns the exit code."""
    try:
        return _pull(name or DEFAULT_MODEL) if action == "pull" else _list()
    except SgnbError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _list() -> int:
    for model in list_models():
        size = f"{model.size / 1e6:,.0f} MB"
        where = str(model.path) if model.path else f"not here: sgnb models pull {model.name}"
        print(f"{model.name:<28} {size:>10}  {model.license or '-':<12} {where}")
    print(f"Cache: {cache_dir()}. Any .gguf file, safetensors folder or hub id can be launched too.")
    return 0


def _pull(name: str) -> int:
    bar: tqdm[None] | None = None
    current = ""

    def report(step: str, done: int, total: int) -> None:
        nonlocal bar, current
        if bar is None or step != current:
            if bar is not None:
                bar.close()
            bar, current = tqdm(desc=step, total=total or None, unit="B", unit_scale=True), step
        bar.update(done - bar.n)

    try:
        path = pull(name, report)
    finally:
        if bar is not None:
            bar.close()
    print(path)
    return 0
