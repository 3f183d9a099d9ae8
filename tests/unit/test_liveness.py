"""One process is named by pid and start time; its end is seen at once."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from sgnb.liveness import is_alive, open_pidfd, process_start_time


def test_own_process_is_alive_and_its_start_is_stable():
    start = process_start_time(os.getpid())
    assert start and start == process_start_time(os.getpid())
    assert is_alive(os.getpid(), start)
    assert not is_alive(os.getpid(), start + 1)  # the pid was used again (F16)
    assert not is_alive(0, 0)
    assert not is_alive(-1, 0)


def test_zombie_counts_as_dead_and_pidfd_fires():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = process_start_time(child.pid)
    fd = open_pidfd(child.pid, start)
    assert not select.select([fd], [], [], 0)[0]
    child.kill()
    assert select.select([fd], [], [], 5)[0]
    assert not is_alive(child.pid, start)  # not reaped yet
    with pytest.raises(ProcessLookupError):
        open_pidfd(child.pid, start)
    child.wait()
    child.stdin.close()
    os.close(fd)


def test_pidfd_of_another_start_is_refused():
    with pytest.raises(ProcessLookupError):
        open_pidfd(os.getpid(), process_start_time(os.getpid()) + 5)
