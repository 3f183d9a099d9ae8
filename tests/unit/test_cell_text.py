"""Text of a cell on its way through IPython: it reaches the compiler as it was written."""

from __future__ import annotations

import random

import pytest

import sgnb.runtime.cell
from sgnb.backends.base import set_default_backend
from sgnb.backends.mock import MockBackend
from sgnb.errors import ProgramError

PIECES = [
    "'", '"', '"""', "#", "{}", "{x}", "$", "$x", "?", "??", "!", "!ls", "%", "%%", "%time", "\t", "\\", "\\n", "  ",
    "s += 'a'", "é", "日本", "\u00a0", ";", "`", "<b>", "&amp;", "...", "@", "{{", "}}", "${HOME}", "~", "*", "a?", "?a",
]  # fmt: skip


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    made = InteractiveShell(config=config)
    backend = MockBackend("x")
    set_default_backend(backend)
    made.run_line_magic("load_ext", "sgnb")
    yield made
    made.run_line_magic("unload_ext", "sgnb")
    set_default_backend(None)
    backend.shutdown()


def body_of(shell, monkeypatch, text):
    """What the compiler gets of a cell."""
    seen = []

    def capture(body, **_):
        seen.append(body)
        raise ProgramError("seen")

    monkeypatch.setattr(sgnb.runtime.cell, "start_cell", capture)
    shell.run_cell("%%sgl\n" + text, silent=True)
    return seen


def test_F43_hostile_text_reaches_the_compiler_as_it_was_written(shell, monkeypatch, capsys):
    rng = random.Random(43)
    for _ in range(60):
        lines = ["".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 4))]
        text = "\n" * rng.randint(0, 2) + "\n".join(lines) + " " * rng.randint(0, 2)
        seen = body_of(shell, monkeypatch, text)
        assert seen and seen[0].rstrip("\n") == text.rstrip("\n"), (text, seen)


@pytest.mark.parametrize("text", ["s += 'a'\r\ns += 'b'", "\ufeffs += 'a'", "s += 'a'\x0c\n", "s += '\tx'\t"])
def test_F43_line_ends_marks_and_tabs(shell, monkeypatch, capsys, text):
    (seen,) = body_of(shell, monkeypatch, text)
    # IPython itself may normalise line ends and drop a byte order mark; nothing else may change.
    normal = text.replace("\r\n", "\n").lstrip("\ufeff")
    assert seen.replace("\r\n", "\n").lstrip("\ufeff").rstrip("\n") == normal.rstrip("\n")


def test_F43_a_wrong_line_is_shown_with_its_cause(shell, capsys):
    shell.run_cell("%%sgl --tempratur 1\ns += 'a'", silent=True)
    shell.run_cell("%%sgl -o 'unclosed\ns += 'a'", silent=True)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "tempratur" in text and "quot" in text.lower()
