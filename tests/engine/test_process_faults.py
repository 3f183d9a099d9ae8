"""Faults around a running engine: death by the system, other users, full disks. Stub runner.

Rows of the fault list that have their own file: F1, F2, F4, F14, F17 in ``test_process_life``, F15 and F8 in
``test_process_generate``, F19, F21, F22, F25 in ``test_process_transport``, F23 in ``test_process_connection``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from full_disk import FullDisk
from process_rig import finish, until, works

import sgnb as sgl
from sgnb.backends import folders, process
from sgnb.backends.engine import launch, own_engines
from sgnb.errors import AuthFailed, EngineDied, EngineStartError
from sgnb.transport import ZmqLink, encode

PROMPT = "tell me a story"
NOBODY = 65534


@pytest.fixture(autouse=True)
def nothing_left(find_engines) -> Iterator[None]:
    yield
    for left in own_engines():
        left.shutdown()
    until(lambda: not find_engines(), 3)


# ---------------------------------------------------------------- F3, F7: death


@sgl.function
def story(s):
    s += PROMPT + sgl.gen("x", max_tokens=4000, ignore_eos=True)
    s += s["x"]


@pytest.mark.parametrize("victim", ["tokenizer", "scheduler"])
def test_f3_killed_by_the_system_names_signal_and_memory_within_2_s_and_keeps_the_text(victim):
    """The out-of-memory killer sends SIGKILL to one of the two processes; which one is its choice."""
    with launch(runner="stub", stub_step_seconds=0.005) as engine:
        run = story.run_async()
        until(lambda: len(run.state.text_so_far()) > len(PROMPT) + 20)
        pid = engine.pid if victim == "tokenizer" else engine.client.welcome.scheduler_pid
        before = run.state.text_so_far()
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDied) as caught:
            run.result(10)
        assert time.monotonic() - began <= 5.0  # 2 s when nothing else runs
        assert "signal 9" in str(caught.value) and "ran out of memory" in str(caught.value)
        assert run.status == "failed" and run.state.text_so_far().startswith(before)
        with pytest.raises(EngineDied, match="memory"):
            story.run()


def owner_dies_while_starting(seconds: float, find_engines: Callable[..., list[int]]) -> None:
    code = (
        "import time\nfrom sgnb.backends.engine import launch\nprint('go', flush=True)\n"
        "launch(runner='stub', wait=False)\ntime.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "go\n"
    time.sleep(seconds)
    child.kill()
    child.wait()
    took = until(lambda: not find_engines(), 10)
    finish(child)
    assert took <= 5.0, f"killed {seconds:.2f} s after the start, the engine was there for {took:.2f} s more"


def start_rounds(rounds: int, seed: int, find_engines: Callable[..., list[int]], runtime_dir: Path) -> None:
    dice = random.Random(seed)
    for _ in range(rounds):
        owner_dies_while_starting(dice.uniform(0.0, 3.0), find_engines)
    with launch(runner="stub") as engine:  # what the dead ones left is swept
        assert engine.name == "main"
        folders = [path.name for path in (runtime_dir / "sgnb").iterdir() if not path.name.startswith(".")]
        assert folders == ["main"]
        works(engine)


def test_f7_owner_killed_at_random_after_the_launch_leaves_nothing(find_engines, runtime_dir):
    start_rounds(5, 1, find_engines, runtime_dir)


@pytest.mark.soak
def test_f7_owner_killed_at_random_after_the_launch_leaves_nothing_100(find_engines, runtime_dir):
    start_rounds(100, 2, find_engines, runtime_dir)


# ---------------------------------------------------------------- F20: another user


def as_nobody(task: Callable[[], Any]) -> Any:
    """What ``task`` returns in a process of another user. Forked, since that user may not even read our interpreter."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = task()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return answer


def knock(path: str, token: bytes) -> list[str]:
    """What a client that knows path and token gets: the events of its connection, and whether a frame came."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = ZmqLink(context, path, token=token, watch=True)
    link.send(encode({"type": "hello"}))
    seen: list[str] = []
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        seen += link.events()
        if link.recv() is not None:
            seen.append("answered")
        time.sleep(0.02)
    link.close()
    context.term()
    return seen


def test_f20_another_user_is_refused_by_the_folder_and_by_the_socket(monkeypatch, runtime_dir):
    with launch(runner="stub", name="mine") as engine:
        folder, socket = engine._folder, engine.client._address.socket
        token = engine.client._address.token
        if os.geteuid() != 0:  # no other user to be had: the folder is another's
            monkeypatch.setattr(folders.os, "geteuid", lambda: os.getuid() + 1)
            with pytest.raises(AuthFailed, match="folder of this user"):
                folders.read_folder(folder)
            monkeypatch.undo()
            works(engine)
            return
        for task in (
            lambda: os.listdir(folder),
            lambda: (folder / "token").read_text(),
            lambda: Path(socket).stat().st_mode,
        ):
            assert str(as_nobody(task)).startswith("PermissionError")
        assert "connected" not in as_nobody(lambda: knock(socket, token))
        opened = [runtime_dir, runtime_dir / "sgnb", folder, Path(socket)]
        for path in opened:
            path.chmod(0o777)
        try:  # somebody opened the folder, and even the token is known: the uid is looked at
            assert as_nobody(lambda: (folder / "engine.json").exists()) is True
            refusal = as_nobody(lambda: folders.read_folder(folder)[0].name)
            assert str(refusal).startswith("AuthFailed"), refusal
            seen = as_nobody(lambda: knock(socket, token))
            assert "connected" not in seen and "answered" not in seen
            assert "connected" in knock(socket, token)
        finally:
            for path in opened:
                path.chmod(0o700)
        assert len(engine.clients()) == 1
        works(engine)


# ---------------------------------------------------------------- F63: a full disk


@pytest.fixture
def small_disk(tmp_path_factory, monkeypatch) -> Iterator[Path]:
    """A runtime folder on a disk of 256 kB; where mounting is not permitted, on the ordinary one."""
    path = tmp_path_factory.mktemp("d")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "none", str(path)],
        capture_output=True,
        check=False,
    )
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(path / "r"))
    yield path
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path, *pids: int) -> None:
    """From now on nothing can be written there: the disk is full, or the processes may not let a file grow."""
    if os.path.ismount(disk):
        with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def test_f63_engine_works_on_while_its_disk_is_full_and_ends_cleanly(small_disk, find_engines):
    with launch(runner="stub", stub_step_seconds=0.002) as engine:
        pids = find_engines(str(small_disk))
        assert len(pids) == 2
        fill(small_disk, *pids)
        for _ in range(3):
            works(engine)
        process.log_lines(engine._folder, 5)
        code = "from sgnb.backends.engine import attach\ne = attach('main')\nprint(e.state)\ne.shutdown()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "idle\n", done.stderr
        until(lambda: len(engine.clients()) == 1)
        works(engine)
        folder = engine._folder
    assert not find_engines(str(small_disk)) and not folder.exists()


def test_f63_launch_on_a_full_disk_is_refused_with_words_and_works_once_there_is_room(
    small_disk, monkeypatch, find_engines
):
    refused = 0
    for nth in range(1, 40):
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, nth)
            try:
                launch(runner="stub", wait=False).shutdown()
            except EngineStartError as error:
                assert "No space left" in str(error) and "disk" in error.hint, nth
                refused += 1
        root = small_disk / "r" / "sgnb"
        left = [path.name for path in root.iterdir() if path.name != ".lock"] if root.exists() else []
        assert left == [], nth
        if not disk.failed:
            break
    assert refused > 3
    with launch(runner="stub") as engine:
        works(engine)
