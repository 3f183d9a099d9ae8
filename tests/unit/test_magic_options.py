"""The magic lines: cutting, comments, escapes, types, mistakes."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from sgnb import magic_options as options
from sgnb.config import EngineArgs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-o out # a comment", ["-o", "out"]),
        ("# only a comment", []),
        ("model#1", ["model#1"]),
        ('--stop "# not one"', ["--stop", "# not one"]),
        ("--stop '#' # one", ["--stop", "#"]),
        (r"--stop \# x", ["--stop", "#", "x"]),
        ("{x} $y", ["{x}", "$y"]),
        ("", []),
    ],
)
def test_lines_are_cut_as_by_a_shell(line: str, words: list[str]) -> None:
    assert options.split_line(line) == words


def test_cell_options() -> None:
    parsed = options.parse_cell(
        r'-o out --max-tokens 5 --temperature 0 --stop "\n\n" --stop "\\n" --background'
    )
    assert parsed.out == "out"
    assert parsed.background
    assert not parsed.debug
    assert parsed.defaults == {"max_new_tokens": 5, "temperature": 0.0, "stop": ["\n\n", "\n"]}
    assert options.parse_cell("").defaults == {}


def test_escapes() -> None:
    assert options.unescape(r"a\tb\\n\x") == "a\tb\\n\\x"
    assert options.unescape("\\") == "\\"


def test_every_engine_argument_is_a_flag_with_its_type() -> None:
    model, args = options.parse_launch(
        [
            "tiny.gguf",
            "--name",
            "second",
            "--max-total-tokens",
            "100",
            "--deterministic",
            "--stub-step-seconds",
            "0.5",
        ]
    )
    assert model == "tiny.gguf"
    assert args == {
        "name": "second",
        "max_total_tokens": 100,
        "deterministic": True,
        "stub_step_seconds": 0.5,
    }
    assert set(options.engine_flags().values()) == set(EngineArgs.__struct_fields__) - {"model"}
    assert options.parse_launch([]) == (None, {})


@pytest.mark.parametrize(
    "words", [["--name", "No Good"], ["--dtype", "int3"], ["a", "b"], ["--threads", "0"], ["--name"]]
)
def test_bad_launch_lines_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        options.parse_launch(words)
    assert "\n" not in str(caught.value)


def test_every_command_has_a_handler() -> None:
    from sgnb.magics import SglMagics

    for name in options.COMMANDS:
        assert callable(getattr(SglMagics, f"_{name}"))


def test_record_takes_a_file_or_a_stop() -> None:
    start = options.parse_record(["start", "run.sgnb", "--no-text", "--seconds", "5"])
    assert (start.action, start.file, start.text, start.seconds) == ("start", "run.sgnb", False, 5.0)
    assert options.parse_record(["stop"]).action == "stop"
    assert options.parse_record([]).action is None
    assert options.parse_record(["stop", "run.sgnb"]).file == "run.sgnb"
    for wrong in (["start"], ["stop", "--no-text"], ["--seconds", "3"], ["pause"], ["start", "a", "b"]):
        with pytest.raises(UsageError, match="%sgl record"):
            options.parse_record(wrong)
