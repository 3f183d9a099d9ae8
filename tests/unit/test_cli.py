"""The ``sgnb`` command is thin: it imports no torch and passes exit codes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sgnb import cli


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sgnb.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
        check=False,
    )


def test_models_lists_the_embedded_one_and_says_how_to_pull(tmp_path):
    done = run("models", SGNB_CACHE=str(tmp_path))
    assert done.returncode == 0
    assert "smollm2-135m-instruct" in done.stdout and "sgnb models pull" in done.stdout


def test_unknown_model_is_exit_code_1_with_the_known_names(tmp_path):
    done = run("models", "pull", "gpt-9", SGNB_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert "smollm2" in done.stderr and "Traceback" not in done.stderr


def test_doctor_names_the_fix_and_fails_without_a_model(tmp_path):
    done = run("doctor", SGNB_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert "FAIL model" in done.stdout and "sgnb models pull" in done.stdout
    assert "ok   torch" in done.stdout


def test_engines_when_there_is_none(capsys):
    assert cli.main(["engines"]) == 0
    assert "No engine is running" in capsys.readouterr().out


def test_wrong_usage_is_2():
    with pytest.raises(SystemExit) as caught:
        cli.main(["nonsense"])
    assert caught.value.code == 2


def test_importing_the_kernel_side_leaves_heavy_libraries_out():
    code = (
        "import sgnb.backends.engine, sgnb.cli, sys;"
        "print([m for m in ('torch','transformers','xgrammar','tokenizers','sgnb.engine') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
