"""``python -m sgnb.engine doctor``: what works on this machine, with the fix for each thing that does not.

A short-lived process of its own; here because only the engine's side may import torch. Looks and reports; it changes
nothing and opens no connection. A check is a function that returns a Finding; it must not raise for what it looks for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jupyter_core.paths import jupyter_path, jupyter_runtime_dir

from sgnb.config import DEFAULT_MODEL
from sgnb.engine.model_store import resolve
from sgnb.errors import SgnbError
from sgnb.transport import MAX_PATH_BYTES, fits_socket_path


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. ``essential``: without it nothing runs. ``fix`` is one sentence or command."""

    name: str
    good: bool
    words: str
    fix: str = ""
    essential: bool = False


def doctor() -> int:
    """Print all findings; 0 when the essentials work."""
    findings = [check() for check in CHECKS]
    for found in findings:
        mark = "ok  " if found.good else ("FAIL" if found.essential else "no  ")
        print(f"{mark} {found.name:<18} {found.words}")
        if not found.good and found.fix:
            print(f"     {'':<18} {found.fix}")
    failed = [found.name for found in findings if found.essential and not found.good]
    print(f"The essentials do not work: {', '.join(failed)}." if failed else "The essentials work.")
    return 1 if failed else 0


def _python() -> Finding:
    words = f"{sys.version.split()[0]} ({sys.executable})"
    return Finding("Python", sys.version_info >= (3, 11), words, "Use Python 3.11 or newer.", essential=True)


def _torch() -> Finding:
    try:
        import torch  # noqa: PLC0415  a broken installation is what this check looks for
    except Exception as error:
        return Finding(
            "torch", False, f"{type(error).__name__}: {error}", "pip install torch", essential=True
        )
    return Finding("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads", essential=True)


def _gpu() -> Finding:
    try:
        import torch  # noqa: PLC0415
    except Exception:
        return Finding("GPU", False, "torch does not import")
    if not torch.cuda.is_available():
        return Finding("GPU", False, "none found; models run on the CPU")
    name, memory = torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory
    return Finding("GPU", True, f"{name}, {memory / 1e9:.0f} GB")


def _attention() -> Finding:
    names = ["torch_native"]
    names += [name for name in ("triton", "flashinfer") if importlib.util.find_spec(name)]
    missing = len(names) < 3
    return Finding(
        "attention",
        True,
        ", ".join(names) + (" (triton and flashinfer are for GPUs: sgnb[gpu])" if missing else ""),
    )


def _compiler() -> Finding:
    path = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    fix = "Only needed for compiled kernels: apt install gcc (or your system's compiler)."
    return Finding("C compiler", path is not None, path or "none found", fix)


def _model() -> Finding:
    try:
        return Finding("model", True, str(resolve(DEFAULT_MODEL).path), essential=True)
    except SgnbError as error:
        return Finding("model", False, error.message, error.hint, essential=True)


def _runtime_dir() -> Finding:
    folder = Path(jupyter_runtime_dir())
    fix = "Set JUPYTER_RUNTIME_DIR to a folder of yours."
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("runtime folder", False, f"{folder}: {error}", fix, essential=True)
    return Finding("runtime folder", True, str(folder), essential=True)


def _sockets() -> Finding:
    folder = Path(jupyter_runtime_dir()) / "sgnb" / "main"
    if fits_socket_path(folder, ("c",)):
        return Finding("socket paths", True, "short enough")
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    words = f"{folder} is over {MAX_PATH_BYTES} bytes; sockets go to a private folder in {base}"
    return Finding(
        "socket paths", os.access(base, os.W_OK), words, "Set JUPYTER_RUNTIME_DIR to a short path."
    )


def _extension() -> Finding:
    for folder in jupyter_path("labextensions"):
        if (Path(folder) / "sgnb" / "package.json").is_file():
            return Finding("browser extension", True, str(Path(folder) / "sgnb"))
    fix = "Cells work without it; the side panel needs it: pip install --force-reinstall sgnb"
    return Finding("browser extension", False, "not installed for JupyterLab", fix)


def _kernel() -> Finding:
    missing = [name for name in ("IPython", "ipykernel", "anywidget") if not importlib.util.find_spec(name)]
    words = (
        f"not installed: {', '.join(missing)}" if missing else "IPython, ipykernel and anywidget are there"
    )
    return Finding("notebook kernel", not missing, words, "pip install sgnb[lab]")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _gpu,
    _attention,
    _compiler,
    _model,
    _runtime_dir,
    _sockets,
    _extension,
    _kernel,
)
