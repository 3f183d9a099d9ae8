"""Caches, records and run folders on a full, read-only or damaged disk, and with two writers (F63, F64, B156)."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf_files
import pytest
from full_disk import FullDisk
from test_tokenizer import gguf_bytes

from sgnb.backends import folders, process
from sgnb.config import EngineArgs
from sgnb.engine.launch import bound_log, write_record
from sgnb.engine.model_store import ModelPath
from sgnb.engine.tokenizer.cache_file import read_cached, write_cached
from sgnb.engine.tokenizer.tokenizer import load_tokenizer
from sgnb.errors import EngineStartError
from sgnb.messages import EngineRecord

ROOT = Path(__file__).parents[2]
TEXT = "a word, 日本 and <|im_end|>"


def every_write(check: Callable[[FullDisk, int], None]) -> int:
    """Let the first write fail, then the second, and so on; how many there are."""
    for nth in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, nth)
            check(disk, nth)
        if not disk.failed:
            return nth - 1
    raise AssertionError("it never stops writing")


# ---------------------------------------------------------------- the tokenizer's cache


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPath:
    """A GGUF file with a small tokenizer, and a cache of its own."""
    monkeypatch.setenv("SGNB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_files.File(metadata=gguf_bytes()).build())
    return ModelPath("tiny", path, "gguf")


def cache_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "models" / "tokenizers").iterdir())


def test_F63_a_cache_whose_nth_write_fails_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"

    def check(_: FullDisk, nth: int) -> None:
        shutil.rmtree(path.parent, ignore_errors=True)
        write_cached(path, b"content")
        left = sorted(path.parent.iterdir()) if path.parent.exists() else []
        assert left in ([], [path]), nth
        assert read_cached(path) in (None, b"content")

    assert every_write(check) >= 4
    assert read_cached(path) == b"content"


def test_F63_tokenizer_loads_without_a_disk(
    model: ModelPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = load_tokenizer(model).encode(TEXT)
    monkeypatch.setenv("SGNB_CACHE", os.environ["SGNB_CACHE"] + "-full")
    FullDisk(monkeypatch, 1, for_good=True)
    assert load_tokenizer(model).encode(TEXT) == expected
    assert "cannot be cached" in caplog.text and "No space left" in caplog.text


def damages(data: bytes) -> dict[str, bytes]:
    """Ways in which a disk or another program spoils a file; most leave text that still parses."""
    dice = random.Random(1)
    out = {
        "empty": b"",
        "half": data[: len(data) // 2],
        "zeros": bytes(len(data)),
        "longer": data + b" ",
        "other": b"{}",
    }
    for number in range(20):
        at = dice.randrange(len(data))
        out[f"bit {number}"] = data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
        out[f"page {number}"] = data[:at] + data[at + 64 :]
    return {name: damaged for name, damaged in out.items() if damaged != data}


@pytest.mark.kernel_life
def test_B156_a_damaged_cache_file_is_made_again_and_work_goes_on(
    model: ModelPath, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = load_tokenizer(model).encode(TEXT)
    good = {path: path.read_bytes() for path in cache_files(tmp_path)}
    assert good
    for path, data in good.items():
        for name, damaged in damages(data).items():
            caplog.clear()
            path.write_bytes(damaged)
            with caplog.at_level(logging.WARNING):
                assert read_cached(path) is None, name
            assert "made again" in caplog.text and path.name in caplog.text
        assert load_tokenizer(model).encode(TEXT) == expected
        assert path.read_bytes() == data, "made again"
    for path in good:  # a folder in its place cannot be replaced: only the log knows
        path.unlink()
        path.mkdir()
    assert load_tokenizer(model).encode(TEXT) == expected


@pytest.mark.kernel_life
def test_B156_F64_two_processes_convert_at_once(model: ModelPath, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from sgnb.engine.model_store import ModelPath\n"
        "from sgnb.engine.tokenizer.tokenizer import load_tokenizer\n"
        "sys.stdin.readline()\n"
        "for _ in range(5):\n"
        "    print(load_tokenizer(ModelPath('tiny', Path(sys.argv[1]), 'gguf')).encode(sys.argv[2]))\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(model.path), TEXT],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for child in children:  # all have imported what they need, or wait for their turn to read
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60) for child in children]
    expected = f"{load_tokenizer(model).encode(TEXT)}\n" * 5
    assert [out for out, _ in answers] == [expected] * 3, answers
    assert not [path for path in cache_files(tmp_path) if path.name.startswith(".tmp-")]


# ---------------------------------------------------------------- run folders


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(path))
    monkeypatch.setattr(folders, "_fallback", [])
    yield path
    for fallback in folders._fallback:
        shutil.rmtree(fallback, ignore_errors=True)


def test_F63_a_run_folder_whose_nth_write_fails_is_one_clear_error_and_nothing_is_left(runtime: Path) -> None:
    outcomes: set[str] = set()

    def check(disk: FullDisk, nth: int) -> None:
        try:
            folder = folders.prepare(EngineArgs(name="disk"))
        except EngineStartError as error:
            assert "No space left" in str(error) and str(runtime) in str(error), nth
            assert "disk" in error.hint
            outcomes.add("refused")
            left = runtime / "sgnb"
            assert not left.exists() or [p for p in left.iterdir() if p.name != ".lock"] == [], nth
        else:  # the root itself failed: another place was found
            outcomes.add("elsewhere" if disk.failed else "fine")
            os.close(folder.lock)
            shutil.rmtree(folder.path)

    assert every_write(check) >= 5
    assert outcomes >= {"refused", "fine"}


def test_F63_a_log_that_cannot_be_made_is_one_clear_error(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.prepare(EngineArgs(name="disk"))
    with monkeypatch.context() as patch:
        FullDisk(patch, 1)
        with pytest.raises(EngineStartError, match="No space left") as caught:
            process.EngineProcess(folder)
    assert "disk" in caught.value.hint
    assert not folder.path.exists()
    os.close(folders.prepare(EngineArgs(name="disk")).lock)


def test_F63_a_record_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = EngineRecord(
        name="disk", incarnation="i", version="1", pid=1, start_time=1, owner_pid=1, owner_start_time=1,
        scheduler_pid=1, scheduler_start_time=1, model="m", sockets={}, state="ready", started=0.0,
    )  # fmt: skip
    write_record(tmp_path, record)
    whole = (tmp_path / "engine.json").read_bytes()

    def check(disk: FullDisk, nth: int) -> None:
        write_record(tmp_path, record)
        assert (tmp_path / "engine.json").read_bytes() == whole, nth
        assert [path.name for path in tmp_path.iterdir()] == ["engine.json"], nth

    assert every_write(check) >= 2
    assert "engine.json was not written" in caplog.text


def test_F63_a_log_that_cannot_be_cut_stays(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"

    with pytest.MonkeyPatch.context() as patch:
        path.write_bytes(b"x\n" * (1 << 20))
        FullDisk(patch, 1)
        bound_log(tmp_path)
        assert path.stat().st_size == 2 << 20
    bound_log(tmp_path)
    assert path.stat().st_size <= 1 << 20
