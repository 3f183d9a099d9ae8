"""Run folders: private, never a planted one, swept only when dead. No engine is started here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sgnb.backends import folders, process
from sgnb.config import EngineArgs
from sgnb.errors import AuthFailed, EngineError, EngineStartError, NoEngine
from sgnb.liveness import is_alive, process_start_time
from sgnb.messages import EngineRecord


@pytest.fixture
def runtime(tmp_path, monkeypatch) -> Path:
    """A short runtime folder of this test's own."""
    path = Path(f"/tmp/sgf-{os.getpid()}-{abs(hash(tmp_path)) % 10**8}")
    path.mkdir(mode=0o700)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(path))
    monkeypatch.setattr(folders, "_fallback", [])
    yield path
    for fallback in folders._fallback:
        shutil.rmtree(fallback, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def prepare():
    """``folders.prepare`` whose locks are closed at the end."""
    locks = []

    def make(**args) -> folders.RunFolder:
        folder = folders.prepare(EngineArgs(**args))
        locks.append(folder.lock)
        return folder

    make.locks = locks
    yield make
    for lock in locks:
        os.close(lock)


def record(folder: folders.RunFolder, **changes) -> None:
    spec = folder.spec
    values = {
        "name": folder.name,
        "incarnation": spec.incarnation,
        "version": spec.version,
        "pid": os.getpid(),
        "start_time": process_start_time(os.getpid()),
        "owner_pid": spec.owner_pid,
        "owner_start_time": spec.owner_start_time,
        "scheduler_pid": 0,
        "scheduler_start_time": 0,
        "model": "m",
        "sockets": spec.sockets,
        "state": "ready",
        "started": 0.0,
    }
    path = folder.path / "engine.json"
    path.write_bytes(msgspec.json.encode(EngineRecord(**{**values, **changes})))
    path.chmod(0o600)


def test_everything_is_private(runtime, prepare):
    folder = prepare()
    assert folder.path == runtime / "sgnb" / "main"
    assert folder.path.lstat().st_mode & 0o777 == 0o700
    assert folder.path.parent.lstat().st_mode & 0o777 == 0o700
    for file in ("token", "spec.json", "lock"):
        assert (folder.path / file).lstat().st_mode & 0o777 == 0o600
    assert len(folder.token) >= 32
    assert folder.token not in (folder.path / "spec.json").read_bytes()


def test_default_name_gets_a_number_and_another_name_is_refused(runtime, prepare):
    assert [prepare().name, prepare().name] == ["main", "main-2"]
    prepare(name="mine")
    with pytest.raises(EngineStartError, match="runs already") as caught:
        prepare(name="mine")
    assert "attach mine" in caught.value.hint


@pytest.mark.parametrize("plant", ["link", "file", "writable", "foreign"])
def test_f19_planted_root_is_not_used(runtime, prepare, plant, tmp_path):
    root = runtime / "sgnb"
    if plant == "link":
        target = tmp_path / "evil"
        target.mkdir(mode=0o700)
        root.symlink_to(target)
    elif plant == "file":
        root.write_text("")
    else:
        root.mkdir(mode=0o700)
        if plant == "writable":
            root.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(root, 12345, 12345)
        else:
            root.chmod(0o770)
    folder = prepare()
    assert runtime not in folder.path.parents
    assert folder.path.parent.lstat().st_mode & 0o777 == 0o700
    assert folder.path.parent.lstat().st_uid == os.geteuid()


def test_f19_planted_engine_folder_is_passed_by(runtime, prepare, tmp_path):
    root = folders.runtime_root()
    (tmp_path / "evil").mkdir(mode=0o777)
    (root / "main").symlink_to(tmp_path / "evil")
    assert prepare().name == "main-2"
    with pytest.raises(AuthFailed):
        folders.read_folder(root / "main")
    assert list((tmp_path / "evil").iterdir()) == []


def test_f24_missing_runtime_folder_is_made_and_an_unusable_one_replaced(runtime, prepare, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime / "a" / "b"))
    assert prepare().path == runtime / "a" / "b" / "sgnb" / "main"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/proc/nothing/here")
    assert "/proc" not in str(prepare().path)


def test_f24_no_folder_at_all_is_one_clear_error(runtime, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/proc/nothing")
    monkeypatch.setattr(folders, "_temporary_base", lambda: Path("/proc/nothing"))
    with pytest.raises(EngineStartError, match="no private folder") as caught:
        folders.runtime_root()
    assert "JUPYTER_RUNTIME_DIR" in caught.value.hint


def test_f24_long_paths_put_the_sockets_elsewhere(runtime, prepare, monkeypatch):
    deep = runtime / ("d" * 60) / ("é" * 20)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(deep))
    folder = prepare()
    sockets = Path(folder.spec.sockets["client"]).parent
    assert deep in folder.path.parents and deep not in sockets.parents
    assert len(os.fsencode(folder.spec.sockets["client"])) <= 100
    assert sockets.lstat().st_mode & 0o777 == 0o700
    folders.discard(folder.path)
    assert not sockets.exists() and not folder.path.exists()


def test_sweep_takes_dead_folders_and_leaves_live_and_foreign_ones(runtime, prepare):
    live, dead = prepare(), prepare()
    os.close(dead.lock)
    prepare.locks.remove(dead.lock)
    foreign = live.path.parent / "not-ours"
    foreign.mkdir(mode=0o755)
    foreign.chmod(0o755)
    folders.sweep()
    assert live.path.exists() and not dead.path.exists() and foreign.exists()


def test_sweep_kills_only_what_is_surely_ours(runtime, prepare):
    """F16: a pid that is used again has another start time; a process that is no engine is left alone."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours = subprocess.Popen([sys.executable, "-c", "input()", "sgnb.engine"], stdin=subprocess.PIPE)
    start = process_start_time(ours.pid)
    try:
        for pid, when, ends in (
            (ours.pid, start + 1, False),
            (other.pid, process_start_time(other.pid), False),
            (ours.pid, start, True),
        ):
            folder = prepare()
            record(folder, pid=0, start_time=0, scheduler_pid=pid, scheduler_start_time=when)
            os.close(folder.lock)
            prepare.locks.remove(folder.lock)
            folders.sweep()
            assert not folder.path.exists()
            if ends:
                assert ours.wait(5) == -9
            else:
                assert is_alive(pid, 0)
    finally:
        for child in (other, ours):
            child.kill()
            child.wait()
            child.stdin.close()


def test_attach_refuses_what_is_not_private_or_not_running(runtime, prepare):
    root = folders.runtime_root()
    with pytest.raises(NoEngine, match="No engine is named"):
        folders.read_folder(root / "nobody")
    folder = prepare()
    with pytest.raises(EngineError, match="just being started"):
        folders.read_folder(folder.path)
    record(folder)
    assert folders.read_folder(folder.path)[1] == folder.token
    assert [found.name for found in folders.list_records()] == ["main"]
    (folder.path / "token").chmod(0o644)
    with pytest.raises(AuthFailed, match="0600"):
        folders.read_folder(folder.path)
    (folder.path / "token").chmod(0o600)
    (folder.path / "engine.json").write_text("{")
    with pytest.raises(EngineError, match="another version"):
        folders.read_folder(folder.path)
    folder.path.chmod(0o755)
    with pytest.raises(AuthFailed, match="0700"):
        folders.read_folder(folder.path)
    folder.path.chmod(0o700)


def test_log_is_shown_without_escapes_and_bounded(tmp_path):
    text = "first\n" + "x" * 300_000 + "\n\x1b[31mred\x1b[0m \x1b]0;title\x07and\x08 \x9bmore\r\n\n"
    (tmp_path / "engine.log").write_text(text)
    assert process.log_lines(tmp_path, 5)[-1] == "red and more"
    assert "first" not in process.log_lines(tmp_path, 100)
    assert process.log_lines(tmp_path / "nowhere", 5) == []


def test_environment_keeps_the_current_folder_out(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    env = process._environment()
    assert env["PYTHONSAFEPATH"] == "1"
    assert env["PYTHONPATH"].endswith("/somewhere")
