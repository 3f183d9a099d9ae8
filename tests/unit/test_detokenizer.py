"""DetokenizerManager against one decode of the whole output (F53)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import byte_level, metaspace

from sgnb.engine.scheduler.stop import StopScanner
from sgnb.engine.tokenizer.detokenizer import DetokenizerManager
from sgnb.messages import Chunk, Finish, ReqOutput, TokenLogprob

EXAMPLES = settings(max_examples=200, deadline=None)  # these shrink; volume is in the seeded loop
CHARS = st.text(
    alphabet=st.one_of(
        st.sampled_from("ab \n\té日한🎈\u0301\u200d👩👧🇫🇷\ufffd"), st.characters(codec="utf-8")
    ),
    max_size=16,
)


def stream(pieces: list[bytes], stops: list[bytes] = (), *, end: int | None = None) -> list[Chunk]:  # type: ignore[assignment]
    """Feed tokens as the scheduler does; the chunks."""
    manager = DetokenizerManager(pieces)
    scanner = StopScanner(list(stops))
    chunks = []
    for i, piece in enumerate(pieces):
        hit = scanner.feed(piece)
        chunks.append(manager.feed(ReqOutput(rid="r", ids=[i], visible=scanner.visible)))
        if hit:
            break
    chunks.append(manager.feed(ReqOutput(rid="r", visible=scanner.flush(), finish=Finish(type="length"))))
    assert len(manager) == 0
    return chunks


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    return [piece for piece in [*out, data[at:]] if piece]


@EXAMPLES
@given(CHARS, st.lists(st.integers(1, 4), max_size=40))
def test_any_split_of_text_gives_the_text(text: str, sizes: list[int]) -> None:
    check_text(text, sizes)


def check_text(text: str, sizes: list[int]) -> None:
    pieces = cut(text.encode(), sizes)
    chunks = stream(pieces)
    assert "".join(chunk.text for chunk in chunks) == text
    # Every increment is whole characters: all text so far is a prefix, and nothing is held that is complete.
    shown, size = "", 0
    for chunk, piece in zip(chunks, pieces, strict=False):
        shown += chunk.text
        size += len(piece)
        assert shown == text.encode()[:size].decode("utf-8", "ignore")


@EXAMPLES
@given(st.binary(max_size=24), st.lists(st.integers(1, 4), max_size=24))
def test_any_bytes_give_what_one_decode_gives(data: bytes, sizes: list[int]) -> None:
    check_bytes(data, sizes)


def check_bytes(data: bytes, sizes: list[int]) -> None:
    chunks = stream(cut(data, sizes))
    assert "".join(chunk.text for chunk in chunks) == data.decode("utf-8", "replace")


@EXAMPLES
@given(
    CHARS,
    st.lists(st.integers(1, 4), max_size=40),
    st.lists(st.text(alphabet="ab é日", min_size=1, max_size=4), max_size=3),
)
def test_no_part_of_a_stop_is_ever_shown(text: str, sizes: list[int], stops: list[str]) -> None:
    check_stops(text, sizes, stops)


def test_all_of_it_many_times() -> None:
    rng = random.Random(53)
    chars = "aab \n\té日한🎈\u0301\u200d👩🇫\ufffd"
    for _ in range(1500):
        text = "".join(rng.choices(chars, k=rng.randint(0, 14)))
        sizes = [rng.randint(1, 4) for _ in range(30)]
        check_text(text, sizes)
        check_bytes(bytes(rng.choices((*text.encode(), 0x80, 0xE2, 0xF0, 0xFF), k=rng.randint(0, 20))), sizes)
        check_stops(text, sizes, ["".join(rng.choices("ab é日", k=rng.randint(1, 4))) for _ in range(3)])


def check_stops(text: str, sizes: list[int], stops: list[str]) -> None:
    data = text.encode()
    ends = [
        (data.find(stop.encode()) + len(stop.encode()), data.find(stop.encode()))
        for stop in stops
        if stop.encode() in data
    ]
    expected = data[: min(ends)[1]] if ends else data
    chunks = stream(cut(data, sizes), [stop.encode() for stop in stops])
    assert "".join(chunk.text for chunk in chunks) == expected.decode("utf-8", "replace")


@pytest.mark.detok
def test_B099_characters_at_chunk_borders_are_not_lost() -> None:
    text = "삼겹살 먹자"
    chunks = stream([bytes([b]) for b in text.encode()])
    joined = "".join(chunk.text for chunk in chunks)
    assert joined == text
    assert "\ufffd" not in joined


@pytest.mark.detok
def test_B101_an_emoji_over_two_tokens() -> None:
    half = "🎈".encode()
    assert "".join(c.text for c in stream([b"ok ", half[:2], half[2:]])) == "ok 🎈"
    chunks = stream([b"ok ", half[:2]])
    assert [chunk.text for chunk in chunks] == ["ok ", "", "\ufffd"]


@pytest.mark.detok
@pytest.mark.parametrize("text", ["a    b", "  lead", "\t\tx\t", " ", "a\n\n\n b  "])
def test_B103_runs_of_blanks_stay(text: str) -> None:
    for tokenizer in (byte_level(), metaspace()):
        ids = tokenizer.encode(text, first=False)
        assert "".join(c.text for c in stream([tokenizer.table[i] for i in ids])) == text


@pytest.mark.detok
def test_B052_partial_bytes_are_never_shown() -> None:
    chunks = stream([bytes([b]) for b in "😨😨".encode()])
    assert [chunk.text for chunk in chunks] == ["", "", "", "😨", "", "", "", "😨", ""]


def test_ids_and_logprobs_pass_through() -> None:
    manager = DetokenizerManager([b"a", b"b"])
    probs = [TokenLogprob(id=1, logprob=-0.5, top=[(-0.5, 1)])]
    out = ReqOutput(rid="r", ids=[1], visible=0, logprobs=probs, started=True, prompt_ids=[1], output_ids=[1])
    chunk = manager.feed(out)
    assert (chunk.text, chunk.ids, chunk.logprobs, chunk.started) == ("", [1], probs, True)
    assert chunk.prompt_ids == [] and chunk.output_ids == []
    done = manager.feed(
        ReqOutput(rid="r", visible=1, finish=Finish(type="eos"), prompt_ids=[0], output_ids=[1]),
        with_ids=True,
    )
    assert (done.text, done.prompt_ids, done.output_ids) == ("b", [0], [1])


def test_unknown_ids_have_no_text() -> None:
    manager = DetokenizerManager([b"a"])
    assert manager.feed(ReqOutput(rid="r", ids=[0, 99, -1], visible=1)).text == "a"
    manager.drop("r")
    manager.drop("r")
    assert len(manager) == 0
