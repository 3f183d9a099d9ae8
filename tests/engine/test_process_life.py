"""Life and death of the two engine processes, with the stub runner: real processes, real sockets."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from process_rig import OWNER, finish, owner, streaming, until

from sgnb.backends import process
from sgnb.backends.base import get_default_backend
from sgnb.backends.engine import Engine, attach, engines, launch, own_engines
from sgnb.errors import AuthFailed, EngineDied, EngineError, EngineStartError, LimitError, NoEngine, SgnbError
from sgnb.liveness import is_alive


@pytest.fixture
def engine():
    with launch(runner="stub", stub_step_seconds=0.002) as engine:
        yield engine


@pytest.fixture(autouse=True)
def nothing_left(find_engines):
    yield
    for left in own_engines():
        left.shutdown()
    until(lambda: not find_engines(), 3)


# ---------------------------------------------------------------- start


def test_ready_generate_stop(engine, find_engines):
    assert engine.state == "idle" and engine.owner and engine.error is None
    assert get_default_backend() is engine
    assert [step.step for step in engine.progress][-1] == "ready"
    assert engine.info.model == "stub"
    assert [one.model for one in engines()] == ["stub"]
    assert len(find_engines()) == 2
    first = engine.generate("hello", sampling_params={"max_new_tokens": 8})
    assert first["prompt_ids"] == list(b"hello") and first["meta_info"]["prompt_tokens"] == 5
    assert len(first["output_ids"]) == first["meta_info"]["completion_tokens"] == 8
    folder = engine._folder
    engine.shutdown()
    engine.shutdown()
    assert engine.state == "stopped" and not folder.exists() and get_default_backend() is None
    assert not find_engines()
    with pytest.raises(EngineDied, match="stopped"):
        engine.generate("x")


def test_same_arguments_give_the_same_engine_and_others_name_restart(engine):
    assert launch(runner="stub", stub_step_seconds=0.002) is engine
    with pytest.raises(EngineStartError, match="page_size is 1, not 4") as caught:
        launch(runner="stub", stub_step_seconds=0.002, page_size=4)
    assert "%sgl restart" in caught.value.hint


def test_deterministic_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    with launch(runner="stub") as engine:
        assert engine.args.deterministic


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        ({"page_size": 3}, LimitError, "page_size"),
        ({"nonsense": 1}, LimitError, "nonsense"),
        ({"name": "No Good"}, LimitError, "engine name"),
        ({"model": "/nowhere/model.gguf"}, EngineStartError, "/nowhere/model.gguf"),
        ({"model": "no-such-model"}, EngineStartError, "no-such-model"),
        ({"model": __file__}, Exception, "test_process_life"),
        ({"model": "org/name"}, EngineStartError, "offline"),
    ],
)
def test_f4_broken_starts_end_in_time_with_words_and_a_second_start_works(
    args, kind, words, find_engines, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        launch(**args)
    assert isinstance(caught.value, SgnbError)
    assert time.monotonic() - started < 60
    until(lambda: not find_engines(), 3)
    with launch(runner="stub") as engine:
        assert engine.state == "idle"


def test_f4_engine_that_cannot_even_be_executed_shows_its_last_words(monkeypatch, tmp_path, find_engines):
    package = tmp_path / "msgspec"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('missing wheel')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(process, "_environment", lambda: {**os.environ})
    with pytest.raises(EngineStartError) as caught:
        launch(runner="stub")
    assert any("missing wheel" in line for line in caught.value.log)
    assert not find_engines()


def test_scheduler_that_cannot_load_says_why(monkeypatch):
    with pytest.raises(SgnbError) as caught:
        launch(runner="stub", max_total_tokens=10**15)
    assert "memory" in str(caught.value).lower() or "max_total_tokens" in str(caught.value)


def test_f64_two_threads_launch_one_engine(find_engines):
    found: list[Engine] = []
    threads = [threading.Thread(target=lambda: found.append(launch(runner="stub"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4 and len(set(map(id, found))) == 1
    assert len(find_engines()) == 2


def test_engine_started_from_a_thread_that_ends_lives_on():
    """PDEATHSIG follows the spawning thread; the long-lived spawner is it."""
    thread = threading.Thread(target=lambda: launch(runner="stub"))
    thread.start()
    thread.join(30)
    time.sleep(0.3)
    (engine,) = own_engines()
    assert engine.generate("x", sampling_params={"max_new_tokens": 1})["text"]


def test_current_folder_is_not_imported_from(tmp_path, monkeypatch):
    (tmp_path / "zmq.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    with launch(runner="stub") as engine:
        assert engine.state == "idle"


def test_token_is_in_no_command_line_and_no_environment(engine, find_engines):
    token = (engine._folder / "token").read_text()
    for pid in find_engines():
        assert token not in Path(f"/proc/{pid}/cmdline").read_text()
        assert token not in Path(f"/proc/{pid}/environ").read_text()
        assert os.getsid(pid) != os.getsid(0)


def test_files_and_sockets_are_private(engine):
    for path in engine._folder.iterdir():
        assert path.lstat().st_mode & 0o077 == 0, path


def test_no_tcp_and_only_unix_sockets_of_the_run_folder(engine, find_engines):
    for pid in find_engines():
        assert psutil.Process(pid).net_connections(kind="inet") == []


def test_idle_engine_uses_at_most_1_percent(engine, find_engines):
    pids = find_engines()
    engine.generate("warm", sampling_params={"max_new_tokens": 2})
    time.sleep(0.5)

    def used() -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)

    before, started = used(), time.monotonic()
    time.sleep(5)
    assert (used() - before) / (time.monotonic() - started) <= 0.01


# ---------------------------------------------------------------- death


@pytest.mark.parametrize("victim", ["tokenizer", "scheduler"])
@pytest.mark.parametrize("_", range(3))
def test_f1_killed_engine_fails_waiters_within_2_s_and_restarts(engine, victim, _, find_engines):
    thread, errors = streaming(engine)
    states: list[str] = []
    engine.on_state(states.append)
    pid = engine.pid if victim == "tokenizer" else engine.client.welcome.scheduler_pid
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    thread.join(5)
    assert time.monotonic() - started < 2.0
    (error,) = errors
    assert isinstance(error, EngineDied) and "signal 9" in str(error) and "memory" in str(error)
    assert "%sgl restart" in error.hint
    assert engine.state == "died"
    until(lambda: states[-1:] == ["died"])
    until(lambda: not find_engines(), 2)
    with pytest.raises(EngineDied):
        engine.generate("x")
    assert engine.log(5)
    again = launch(runner="stub")
    assert again is not engine and again.generate("x", sampling_params={"max_new_tokens": 1})["text"]


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "stuck"])
def test_what_a_restart_ends_is_told_to_run_again(engine, answers):
    thread, errors = streaming(engine)
    if not answers:
        os.kill(engine.pid, signal.SIGSTOP)
    engine.shutdown(restarting=True)
    thread.join(10)
    (error,) = errors
    assert isinstance(error, EngineDied) and "estarted" in error.message
    assert error.hint == "Run the cell again."


@pytest.mark.kernel_life
@pytest.mark.parametrize("_", range(3))
def test_B149_owner_killed_engine_and_folder_gone_within_2_s(_, find_engines, runtime_dir):
    child, _pid = owner("engine.generate('x', sampling_params={'max_new_tokens': 4000, 'ignore_eos': True})")
    time.sleep(0.2)
    assert len(find_engines()) == 2
    child.kill()
    assert until(lambda: not find_engines(), 5) < 2.0
    assert not (runtime_dir / "sgnb" / "main").exists()
    finish(child)


@pytest.mark.kernel_life
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6])
def test_B151_owner_killed_while_the_engine_starts(delay, find_engines):
    child, _ = owner("time.sleep(60)", wait=False)
    time.sleep(delay)
    child.kill()
    assert until(lambda: not find_engines(), 5) < 2.0
    finish(child)
    with launch(runner="stub") as engine:
        assert engine.name == "main"


@pytest.mark.kernel_life
def test_B150_owner_under_a_subreaper(find_engines):
    """The orphan gets another parent than pid 1; it is noticed all the same."""
    code = (
        "import ctypes, subprocess, sys, os, signal, time\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); child.kill(); child.wait(); print('killed', flush=True); time.sleep(30)\n"
    )
    reaper = subprocess.Popen(
        [sys.executable, "-c", code, OWNER % (True, "time.sleep(60)")],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert reaper.stdout.readline() == "killed\n"
    assert until(lambda: not find_engines(), 5) < 2.0
    finish(reaper)


def test_owner_killed_while_the_tokenizer_process_is_stopped(find_engines):
    child, pid = owner("time.sleep(60)")
    os.kill(pid, signal.SIGSTOP)
    child.kill()
    assert until(lambda: not find_engines(), 6) < 2.5
    finish(child)


@pytest.mark.parametrize("body", ["pass", "raise ValueError('x')", "sys.exit(3)", "engine.shutdown()"])
def test_f17_interpreter_exit_is_quiet_and_leaves_nothing(body, find_engines, runtime_dir):
    code = OWNER % (True, body)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.count("Traceback") == (1 if "raise" in body else 0), done.stderr
    until(lambda: not find_engines(), 2)
    assert not (runtime_dir / "sgnb" / "main").exists()


def test_f2_stopped_engine_is_not_answering_then_goes_on(engine, monkeypatch):
    monkeypatch.setattr("sgnb.backends.connection.SILENT_SECONDS", 1.5)
    thread, errors = streaming(engine)
    changes: list[bool] = []
    engine.on_state(lambda state: changes.append(engine.answering))
    os.kill(engine.pid, signal.SIGSTOP)
    until(lambda: not engine.answering, 6)
    os.kill(engine.pid, signal.SIGCONT)
    until(lambda: engine.answering, 6)
    assert False in changes and changes[-1]
    engine.abort_all()
    thread.join(10)
    assert not errors and engine.generate("x", sampling_params={"max_new_tokens": 2})["text"]


def test_f2_shutdown_ends_a_stopped_engine(find_engines):
    engine = launch(runner="stub")
    os.kill(engine.pid, signal.SIGSTOP)
    started = time.monotonic()
    engine.shutdown()
    assert time.monotonic() - started < 8 and not find_engines()


def test_engine_gets_no_interrupt_of_the_terminal(engine):
    for pid in (engine.pid, engine.client.welcome.scheduler_pid):
        os.kill(pid, signal.SIGINT)
    assert engine.generate("x", sampling_params={"max_new_tokens": 2})["text"]


def test_engine_terminated_from_outside_says_so(engine, find_engines):
    os.kill(engine.pid, signal.SIGTERM)
    until(lambda: engine.state == "died")
    assert "signal" in str(engine.error)
    until(lambda: not find_engines(), 2)


def test_stale_folder_of_a_dead_engine_is_swept_at_the_next_start(find_engines, runtime_dir):
    child, _pid = owner("time.sleep(60)")
    folder = runtime_dir / "sgnb" / "main"
    copy = runtime_dir / "copy"
    shutil.copytree(folder, copy, ignore=lambda _, names: [n for n in names if len(n) == 1])
    finish(child)
    until(lambda: not find_engines() and not folder.exists())
    shutil.move(copy, folder)
    folder.chmod(0o700)
    with launch(runner="stub") as engine:
        assert engine.name == "main"


# ---------------------------------------------------------------- forks and attached clients


@pytest.mark.kernel_life
def test_B155_f14_fork_owns_nothing_and_stops_nothing(engine):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = ""
        try:
            engine.generate("x")
        except EngineError as error:
            words = str(error)
        engine.shutdown()
        engine.release(["c1.s1"])
        os.write(write, json.dumps([words, len(own_engines())]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    words, count = json.loads(os.read(read, 10_000))
    os.close(read)
    os.close(write)
    assert "forked child" in words and count == 0
    assert engine.generate("x", sampling_params={"max_new_tokens": 2})["text"]


@pytest.mark.kernel_life
def test_B155_fork_child_that_outlives_the_owner_does_not_keep_the_engine(find_engines):
    child, _ = owner(
        "import os\nif os.fork() == 0:\n    os.close(1); time.sleep(4); os._exit(0)\nos.kill(os.getpid(), 9)"
    )
    assert until(lambda: not find_engines(), 5) < 2.5
    finish(child)


def test_two_clients_then_detach_then_owner_ends(find_engines):
    child, pid = owner("sys.stdin.readline()")
    mine = launch(runner="stub")
    assert mine.name == "main-2"
    assert {record.name for record in engines()} == {"main", "main-2"}
    guest = attach("main")
    assert attach("main") is guest and not guest.owner and guest.pid == pid
    assert get_default_backend() is guest
    guest.wait_ready(10)
    assert len(guest.clients()) == 2
    same = guest.generate("hello", sampling_params={"max_new_tokens": 6, "temperature": 0})
    assert (
        same["text"]
        == mine.generate("hello", sampling_params={"max_new_tokens": 6, "temperature": 0})["text"]
    )
    guest.shutdown()
    assert guest.state == "stopped" and is_alive(pid, 0)
    guest = attach("main")
    thread, errors = streaming(guest)
    child.kill()
    thread.join(5)
    (error,) = errors
    assert isinstance(error, EngineDied) and error.message.lower().startswith("owner ended")
    finish(child)
    assert mine.generate("x", sampling_params={"max_new_tokens": 1})["text"]


def test_attach_to_nothing_and_with_a_wrong_token(engine):
    with pytest.raises(NoEngine, match="nobody"):
        attach("nobody")
    folder = engine._folder
    saved = (folder / "token").read_bytes()
    code = "from sgnb.backends.engine import attach\nattach('main')"
    (folder / "token").write_bytes(b"0" * len(saved))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert AuthFailed.__name__ in done.stderr and "refused the token" in done.stderr
    assert engine.generate("x", sampling_params={"max_new_tokens": 2})["text"]


def ended(family: list[psutil.Process]) -> bool:
    """True when none of these processes runs."""
    return not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.kernel_life
@pytest.mark.parametrize("driver", ["inline", "thread", "process"])
def test_R8_owner_killed_with_each_driver_while_a_grammar_compiles(driver, runtime_dir):
    """Tokenizer, scheduler, runner and the compiler of grammars, which begins when it is asked for: none is left."""
    program = (
        "import threading\nfrom sgnb.backends.engine import launch\n"
        f"engine = launch(runner='stub', runner_driver={driver!r}, stub_step_seconds=0.002)\n"
        "def ask(**more):\n    engine.generate('x', sampling_params={'max_new_tokens': 4000, **more})\n"
        "threading.Thread(target=ask, kwargs={'ignore_eos': True}).start()\n"
        "ask(regex='(a|b){1,500}(c|d){1,500}')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        kernel = psutil.Process(child.pid)
        until(lambda: len(kernel.children(recursive=True)) >= (4 if driver == "process" else 3), 60)
        time.sleep(random.uniform(0.0, 1.0))
        family = kernel.children(recursive=True)
        child.kill()
    assert until(lambda: ended(family), 5) < 2.0
    assert not (runtime_dir / "sgnb" / "main").exists()


@pytest.mark.kernel_life
def test_R8_a_command_of_the_engine_ends_with_who_asked_for_it():
    """A notebook that simulates a recording, or a terminal, killed."""
    words = ["simulate", "--workload", "mixed", "--requests", "200000"]
    with subprocess.Popen([sys.executable, "-m", "sgnb.cli", *words], stderr=subprocess.DEVNULL) as child:
        terminal = psutil.Process(child.pid)
        until(lambda: terminal.children(), 30)
        time.sleep(1)
        (command,) = family = terminal.children(recursive=True)
        child.kill()
    try:
        assert until(lambda: ended(family), 5) < 2.0
    finally:
        if not ended(family):
            command.kill()
