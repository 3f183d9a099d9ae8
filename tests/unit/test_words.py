"""Numbers and words of the views."""

from __future__ import annotations

import pytest

from sgnb.widgets import words


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.031, "31 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.10 s"),
        (0.38, "0.38 s"),
        (9.994, "9.99 s"),
        (12.34, "12.3 s"),
        (99.9, "99.9 s"),
        (2460, "41 min"),
        (7300, "2 h"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:

    assert words.duration(seconds) == shown


def test_counts_are_in_full_with_thin_spaces() -> None:
    assert words.count(1234567) == "1\u2009234\u2009567"
    assert words.count(0) == "0"
    assert words.count(None) == "–"


def test_shares() -> None:
    assert words.share(2399, 2674) == "90 %"
    assert words.share(0, 0) == "–"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 世界 😀\n\ttab", "plain ünï 世界 😀\n\ttab"),
        ("a\x1b[2Jb", "a[U+001B][2Jb"),
        ("a\rb\x08", "a[U+000D]b[U+0008]"),
        ("\u202eevil\u200b", "[U+202E]evil[U+200B]"),
        ("\ufeffx\u2028y\x85", "[U+FEFF]x[U+2028]y[U+0085]"),
        ("\U000e0041", "[U+E0041]"),
        ("\ud800", "[U+D800]"),
        ("e" + "\u0301\u0323" * 200 + "f", "e" + "\u0301\u0323" * 4 + "[+392 marks]f"),
        (
            "\u05e9\u05c1\u05b8\u05c1 \u0e19\u0e49\u0e33 e" + "\u0301" * 8,
            "\u05e9\u05c1\u05b8\u05c1 \u0e19\u0e49\u0e33 e" + "\u0301" * 8,
        ),
    ],
)
def test_hidden_characters_are_shown(text: str, shown: str) -> None:
    assert words.visible(text) == shown


def test_each_hidden_character_is_shown_also_alone() -> None:
    """Python calls some of them printable: fillers are letters to it, the grapheme joiner a mark."""
    hidden = [code for code in range(0x110000) if words.is_hidden(code)]
    assert {0x34F, 0x115F, 0x1160, 0x3164, 0x202E, 0x1B} < set(hidden)
    assert [f"{code:X}" for code in hidden if words.visible(chr(code)) != f"[U+{code:04X}]"] == []
    assert words.visible("pay\u3164pal") == "pay[U+3164]pal"


def test_start_words() -> None:
    assert words.start_words("weights", 71_000_000, 145_000_000) == "weights, 71 of 145 MB"
    assert words.start_words("weights", 710_000_000, 1_190_000_000) == "weights, 0.71 of 1.19 GB"
    assert words.start_words("kv", 0, 0) == "KV slots"
    assert words.start_words("process", 0, 0) == "process started"
