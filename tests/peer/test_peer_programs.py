"""Every program of ``programs_*.py`` gives the same in sgnb as in SGLang's own interpreter, over one fake model.

Compared: text, messages, variables, returned value and every prompt the model saw. What differs on purpose has a test of its
own in ``test_peer_differences.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_model import Answers, peer_backend
from sglang_peer import NAME, load_file, load_peer

import sgnb.compat.sglang as compat
from sgnb.backends.mock import MockBackend

FILES = [Path(__file__).with_name(f"programs_{part}.py") for part in ("text", "forks")]


def ours() -> list:
    compat.install()
    try:
        return [case for path in FILES for case in load_file(path, f"{path.stem}_of_sgnb").CASES]
    finally:
        compat.uninstall()


CASES = ours()


@pytest.fixture(scope="module")
def theirs():
    load_peer()
    return [case for path in FILES for case in load_file(path, f"{path.stem}_of_sglang", NAME).CASES]


def runs(case, backend):
    """The states the program ends in; programs it calls use the default backend."""
    _, program, args, kwargs, _, batch = case
    sgl = program.func.__globals__["sgl"]
    sgl.set_default_backend(backend)
    try:
        if batch is not None:
            return list(program.run_batch(batch, num_threads=2))
        return [program.run(*args, **kwargs)]
    finally:
        sgl.set_default_backend(None)


def seen(states, variables):
    """What a user can see of the states."""
    return [
        {
            "text": state.text(),
            "messages": state.messages(),
            "variables": {name: state[name] for name in variables(state)},
            "value": state.ret_value,
        }
        for state in states
    ]


def own_variables(state):
    return [name for name in state.names() if not name.startswith("gen_")]


def peer_variables(state):
    return [name for name in state.stream_executor.variables if name is not None]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case[0] for case in CASES])
def test_same_as_sglang(number, theirs):
    assert len(theirs) == len(CASES)
    here, there = Answers(CASES[number][4]), Answers(CASES[number][4])
    backend = MockBackend(here)
    mine = seen(runs(CASES[number], backend), own_variables)
    peer = seen(runs(theirs[number], peer_backend(there)), peer_variables)
    backend.shutdown()
    assert mine == peer
    assert sorted(here.prompts) == sorted(there.prompts)


def test_enough_programs():
    names = [case[0] for case in CASES]
    assert len(set(names)) == len(names) >= 60


def test_programs_run_compiled():
    assert [case[0] for case in CASES if case[1].program.reason] == []
