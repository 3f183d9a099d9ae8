"""Get SGLang's front end, which the tests of this folder compare with: its wheel's pure Python files, nothing else.

    python tests/peer/get_sglang.py FOLDER

The wheel comes through pip from the package index, without its dependencies, into a temporary folder; ``sglang/lang`` and
``sglang/test/test_programs.py`` are unpacked into FOLDER. ``make`` calls it. Nothing of SGLang is part of this project.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.5.23"
WANTED = ("sglang/lang/", "sglang/test/test_programs.py", "sglang/version.py")
# The files are the same in every wheel of the version: take one that is there whatever machine this is.
PLATFORM = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_34_x86_64")


def main(folder: Path) -> None:
    """Unpack the wanted files of the wheel into ``folder``. Raises CalledProcessError when pip finds no wheel."""
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [*pip, "--only-binary=:all:", *PLATFORM, "-d", downloads, f"sglang=={VERSION}"], check=True
        )
        with zipfile.ZipFile(next(Path(downloads).glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if name.startswith(WANTED)]
            missing = [start for start in WANTED if not any(name.startswith(start) for name in names)]
            if missing:
                raise SystemExit(f"the wheel of sglang {VERSION} lacks {', '.join(missing)}")
            wheel.extractall(folder, names)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(Path(sys.argv[1]))
