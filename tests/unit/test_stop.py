"""StopScanner and kept_prefix against a search in the whole text (F54)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgnb.engine.scheduler.stop import StopHit, StopScanner, incomplete_tail, kept_prefix
from sgnb.errors import LimitError
from sgnb.sampling_params import SamplingParams

EXAMPLES = settings(max_examples=200, deadline=None)  # these shrink; volume is in the seeded loops


def whole_text(text: bytes, stops: list[bytes]) -> StopHit | None:
    """The oracle: all occurrences of all stops; earliest end, then earliest start, then list order."""
    found = [
        (at + len(stop), at, index)
        for index, stop in enumerate(stops)
        for at in range(len(text))
        if text.startswith(stop, at)
    ]
    if not found:
        return None
    end, start, index = min(found)
    return StopHit(start, end, index)


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    out.append(data[at:])
    return [piece for piece in out if piece]


def run(tokens: list[bytes], stops: list[bytes]) -> tuple[StopScanner, list[int], int]:
    scanner = StopScanner(stops)
    visible = []
    for number, token in enumerate(tokens):
        hit = scanner.feed(token)
        visible.append(scanner.visible)
        if hit is not None:
            return scanner, visible, number + 1
    return scanner, visible, len(tokens)


def alphabet(chars: str, size: int) -> st.SearchStrategy[str]:
    return st.text(alphabet=chars, max_size=size)


TEXTS = st.one_of(alphabet("ab", 24), alphabet("aé🎈日", 12), alphabet("ab\n #", 24), st.text(max_size=16))
SIZES = st.lists(st.integers(1, 5), max_size=24)


@EXAMPLES
@given(
    TEXTS,
    st.lists(
        st.one_of(*(st.text(alphabet=chars, min_size=1, max_size=5) for chars in ("ab", "aé🎈日", "ab\n #"))),
        max_size=4,
    ),
    SIZES,
)
def test_equals_the_search_in_the_whole_text(text: str, stops: list[str], sizes: list[int]) -> None:
    check_scan(text, stops, sizes)


def test_equals_the_search_in_the_whole_text_many_times() -> None:
    rng = random.Random(54)
    for number in range(6000):
        chars = ("ab", "aé🎈日", "ab\n #")[number % 3]
        text = "".join(rng.choices(chars, k=rng.randint(0, 20)))
        stops = ["".join(rng.choices(chars, k=rng.randint(1, 5))) for _ in range(rng.randint(0, 4))]
        check_scan(text, stops, [rng.randint(1, 5) for _ in range(20)])


def check_scan(text: str, stops: list[str], sizes: list[int]) -> None:
    data, wanted = text.encode(), [stop.encode() for stop in stops]
    tokens = split(data, sizes)
    scanner, visible, used = run(tokens, wanted)
    expected = whole_text(data, wanted)
    assert scanner.hit == expected
    assert visible == sorted(visible)
    if expected is None:
        assert scanner.flush() == len(data)
        return
    # Found at the token that completes it, never later; nothing of it was ever visible.
    assert sum(map(len, tokens[: used - 1])) < expected.end <= sum(map(len, tokens[:used]))
    assert max(visible) == scanner.visible == expected.start
    kept, leftover = kept_prefix(range(used), tokens, expected.start)
    assert b"".join(tokens[:kept]) + leftover == data[: expected.start]
    b"".join(tokens[:kept]).decode()
    leftover.decode()


@EXAMPLES
@given(st.lists(st.binary(min_size=1, max_size=4), max_size=10), st.data())
def test_kept_prefix_is_the_longest_on_a_character_border(tokens: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(tokens)
    cut = data.draw(st.integers(0, len(whole)))
    kept, leftover = kept_prefix(range(len(tokens)), tokens, cut)
    ends = [sum(map(len, tokens[:n])) for n in range(len(tokens) + 1)]
    fits = [n for n, end in enumerate(ends) if end <= cut and not incomplete_tail(whole[:end])]
    assert kept == max(fits)
    assert leftover == whole[ends[kept] : cut]


@given(st.text(min_size=1, max_size=6), st.data())
def test_incomplete_tail_counts_the_bytes_of_a_begun_character(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cut = data.draw(st.integers(0, len(whole)))
    border = cut
    while border and border < len(whole) and whole[border] & 0xC0 == 0x80:
        border -= 1
    assert incomplete_tail(whole[:cut]) == cut - border


def test_invalid_bytes_are_finished_characters() -> None:
    assert incomplete_tail(b"\xff") == 0
    assert incomplete_tail(b"a\x80\x80") == 0
    assert incomplete_tail(b"\xe0\x80") == 0
    assert incomplete_tail(b"\xf0\x9f\x8e") == 3
    assert kept_prefix([0, 1], [b"\xff", b"a"], 2) == (2, b"")


def test_an_id_beyond_the_table_has_no_bytes() -> None:
    assert kept_prefix([0, 7, 0], [b"x"], 2) == (3, b"")


@pytest.mark.stop
def test_B087_stop_inside_one_token() -> None:
    scanner, _, _ = run([b"ab", b"xyz"], [b"xy"])
    assert scanner.hit == StopHit(2, 4, 0)
    assert kept_prefix([0, 1], [b"ab", b"xyz"], scanner.visible) == (1, b"")
    scanner, _, _ = run([b"axyz"], [b"xy"])
    assert kept_prefix([0], [b"axyz"], scanner.visible) == (0, b"a")


@pytest.mark.stop
def test_B088_stop_of_several_tokens_never_shows() -> None:
    tokens = [b"Fine.", b"\n", b"\n", b"User", b":"]
    _, visible, _ = run(tokens, [b"\n\nUser:"])
    assert visible == [5] * 5


@pytest.mark.stop
@pytest.mark.parametrize("stop", ["", [""], ["", "\n"]])
def test_B092_an_empty_stop_is_refused(stop: object) -> None:
    with pytest.raises(LimitError, match="stop string is empty"):
        SamplingParams.make({"stop": stop})
    with pytest.raises(ValueError, match="empty"):
        StopScanner([b""])


@pytest.mark.stop
@EXAMPLES
@given(alphabet("ab é\n", 10), SIZES)
def test_B094_a_long_stop_is_found_over_all_splits(before: str, sizes: list[int]) -> None:
    stop = "one é stop#!"  # 12 characters, one of two bytes
    data = (before + stop + "tail").encode()
    for tokens in (split(data, sizes), [bytes([b]) for b in data]):
        scanner, _, _ = run(tokens, [stop.encode()])
        assert scanner.hit == whole_text(data, [stop.encode()])


@pytest.mark.stop
def test_B095_text_is_held_only_while_it_may_become_a_stop() -> None:
    scanner = StopScanner([b"###"])
    seen = [scanner.visible for token in (b"O", b"nce", b" #", b"#", b"1") if scanner.feed(token) is None]
    assert seen == [1, 4, 5, 5, 8]
    assert scanner.visible == scanner.total == 8


def test_list_order_decides_between_equal_occurrences() -> None:
    scanner, _, _ = run([b"xab"], [b"ab", b"ab"])
    assert scanner.hit == StopHit(1, 3, 0)
    # The earliest end wins over the order of the list, and then the earliest start.
    assert run([b"aabb"], [b"abb", b"aab"])[0].hit == StopHit(0, 3, 1)
    assert run([b"cab"], [b"b", b"ab"])[0].hit == StopHit(1, 3, 1)
