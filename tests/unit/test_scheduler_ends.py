"""How a generation ends, and what is refused at the door; on the stub runner."""

from __future__ import annotations

import pytest
from scheduler_rig import BYTES, Rig, alone

from sgnb.engine.model_executor.stub_runner import STUB_EOS
from sgnb.errors import LimitError
from sgnb.messages import SessionDecode

PROMPT = b"The quick brown fox jumps over the lazy dog. "


def end(told) -> tuple:
    return (told.finish.type, told.finish.matched)


# ------------------------------------------------------------ ends


def test_eos_is_not_part_of_the_text_and_ignore_eos_goes_on():
    for n in range(1, 60):
        prompt = PROMPT + b"%d" % n
        told = alone(prompt, max_new_tokens=200)
        if told.finish.type == "eos":
            break
    assert end(told) == ("eos", STUB_EOS)
    assert told.ids[-1] == STUB_EOS
    assert told.meta.kept_tokens == len(told.ids) - 1 == told.visible[-1]
    assert told.output_ids == told.ids[:-1]
    longer = alone(prompt, max_new_tokens=len(told.ids) + 3, ignore_eos=True)
    assert longer.ids[: len(told.ids)] == told.ids
    assert end(longer) == ("length", None)
    least = alone(prompt, max_new_tokens=200, min_new_tokens=len(told.ids) + 2)
    assert len(least.ids) > len(told.ids)
    assert STUB_EOS not in least.ids[: len(told.ids) + 2]


def test_stop_id_beats_eos_and_is_banned_below_min_new_tokens():
    plain = alone(PROMPT, max_new_tokens=12, ignore_eos=True)
    stop = plain.ids[3]
    told = alone(PROMPT, max_new_tokens=12, stop_token_ids=[stop])
    first = plain.ids.index(stop)
    assert end(told) == ("stop", stop)
    assert told.output_ids == plain.ids[:first]
    late = alone(PROMPT, max_new_tokens=12, min_new_tokens=10, stop_token_ids=[stop])
    assert stop not in late.ids[:10]
    assert end(alone(PROMPT, max_new_tokens=50, stop_token_ids=[STUB_EOS, stop]))[0] == "stop"


@pytest.mark.stop
def test_stop_string_spans_tokens_and_frees_what_is_beyond():
    plain = alone(PROMPT, max_new_tokens=30, ignore_eos=True)
    stop = bytes(plain.ids[6:10]).decode()
    cut = bytes(plain.ids).index(stop.encode())
    rig = Rig()
    told = rig.run(1, PROMPT, max_new_tokens=30, ignore_eos=True, stop=[stop])
    assert end(told) == ("stop", stop)
    assert told.text == bytes(plain.ids)[:cut]
    assert max(told.visible) == cut, "no part of the stop was ever shown"
    assert told.output_ids == plain.ids[:cut]
    assert rig.scheduler.cache.evictable_size == len(PROMPT) + cut, "KV past the cut is not cached"
    again = rig.run(2, b"!", sid=1, fresh=False)
    assert bytes(again.prompt_ids) == PROMPT + bytes(plain.ids[:cut]) + b"!"
    assert again.meta.cached_tokens == len(PROMPT) + cut


@pytest.mark.stop
def test_F54_stop_text_in_the_prompt_or_over_its_end_never_triggers():
    plain = alone(PROMPT, max_new_tokens=30, ignore_eos=True)
    over = (PROMPT[-4:] + bytes(plain.ids[:2])).decode()
    told = alone(PROMPT, max_new_tokens=30, ignore_eos=True, stop=["quick brown", over])
    assert end(told) == ("length", None) and told.ids == plain.ids


@pytest.mark.stop
def test_stop_string_that_a_stop_id_completes_cuts_earlier():
    plain = alone(PROMPT, max_new_tokens=30, ignore_eos=True)
    at = next(i for i in range(8, 30) if plain.ids[i] not in plain.ids[:i])
    stop = bytes(plain.ids[at - 2 : at + 1]).decode()
    told = alone(PROMPT, max_new_tokens=30, ignore_eos=True, stop=[stop], stop_token_ids=[plain.ids[at]])
    assert end(told) == ("stop", stop)
    assert told.output_ids == plain.ids[: at - 2]
    other = alone(PROMPT, max_new_tokens=30, ignore_eos=True, stop=["never"], stop_token_ids=[plain.ids[at]])
    assert end(other) == ("stop", plain.ids[at])
    assert other.output_ids == plain.ids[:at]
    assert other.visible[-1] == at


WIDE = [bytes([i, 120, i]) for i in range(256)] + BYTES[256:]
"""A vocabulary whose tokens are three bytes: stops begin and end inside of them."""


@pytest.mark.stop
def test_B087_stop_in_the_middle_of_a_token():
    plain = alone(PROMPT, max_new_tokens=8, ignore_eos=True)
    letter = plain.ids[4]
    stop = "x" + chr(letter)
    told = alone(PROMPT, table=WIDE, max_new_tokens=8, ignore_eos=True, stop=[stop])
    whole = b"".join(WIDE[i] for i in plain.ids)
    cut = whole.index(stop.encode())
    assert end(told) == ("stop", stop)
    assert told.visible[-1] == cut
    kept = cut // 3
    assert told.output_ids == plain.ids[:kept]
    assert told.leftover == whole[3 * kept : cut] == bytes([plain.ids[kept]])


@pytest.mark.stop
def test_B088_stop_of_several_tokens_is_never_visible():
    plain = alone(PROMPT, max_new_tokens=40, ignore_eos=True)
    stop = bytes(plain.ids[20:27]).decode()
    told = alone(PROMPT, max_new_tokens=40, ignore_eos=True, stop=[stop])
    assert max(told.visible) <= bytes(plain.ids).index(stop.encode())


@pytest.mark.stop
def test_B092_empty_stop_is_refused_and_the_engine_lives():
    rig = Rig()
    rid = rig.decode(1, PROMPT)
    queued = rig.scheduler._inbox.pop()
    assert isinstance(queued, SessionDecode)
    rig.scheduler.receive(
        type(queued)(**{f: getattr(queued, f) for f in queued.__struct_fields__} | {"stops": [b""]})
    )
    rig.drain()
    assert rig.told[rid].finish.error.code == "input"
    assert "stop string is empty" in rig.told[rid].finish.error.message
    assert end(rig.run(2, PROMPT, max_new_tokens=1)) == ("length", None)


@pytest.mark.stop
def test_B094_long_stop_with_a_two_byte_character_inside():
    plain = alone(PROMPT, max_new_tokens=40, ignore_eos=True)
    halves = dict(zip(plain.ids[18:20], (b"\xc3", b"\xa9"), strict=True))
    if len(halves) < 2:
        pytest.fail("the prompt's output repeats a token where the test needs two")
    table = [halves.get(i, entry) for i, entry in enumerate(BYTES)]
    whole = b"".join(table[i] for i in plain.ids)
    stop = whole[12:24].decode("utf-8", "ignore")
    assert "é" in stop
    told = alone(PROMPT, table=table, max_new_tokens=40, ignore_eos=True, stop=[stop])
    cut = whole.index(stop.encode())
    assert end(told) == ("stop", stop)
    assert told.visible[-1] == cut == max(told.visible)


# ------------------------------------------------------------ limits at the door


@pytest.mark.parametrize(
    ("length", "new", "expected"),
    [
        (63, 4, "context"),
        (63, 1, "length"),
        (64, 1, "error"),
        (64, 0, "length"),
        (65, 0, "error"),
        (70, 4, "error"),
    ],
)
def test_F27_prompt_at_the_border_of_the_context(length, new, expected):
    rig = Rig(context_length=64)
    told = rig.run(1, b"a" * length, max_new_tokens=new, ignore_eos=True)
    assert told.finish.type == expected
    if expected == "error":
        assert told.finish.error.code == "context"
        assert f"{length} tokens" in told.finish.error.message
        assert "64" in told.finish.error.message
    else:
        assert len(told.ids) == min(new, 1)


def test_F28_prompt_longer_than_the_pool_is_refused_with_numbers():
    rig = Rig(max_total_tokens=32)
    told = rig.run(1, b"a" * 33)
    assert told.finish.error.code == "context"
    assert "33 tokens" in told.finish.error.message
    assert "32 slots" in told.finish.error.message
    fits = rig.run(2, b"a" * 32, max_new_tokens=9, ignore_eos=True)
    assert (fits.finish.type, len(fits.ids)) == ("context", 1), "alone it ends where the pool does"


@pytest.mark.prompt
@pytest.mark.sched
def test_B108_B109_only_the_empty_prompt_is_refused():
    rig = Rig()
    rids = [rig.decode(n, prompt) for n, prompt in enumerate((b"one", b"", b"three"))]
    rig.drain()
    types = [rig.told[rid].finish.type for rid in rids]
    assert types[1] == "error"
    assert rig.told[rids[1]].finish.error.code == "empty_prompt"
    assert "error" not in (types[0], types[2])
    assert rig.told[rids[2]].ids == alone(b"three").ids


@pytest.mark.sched
def test_B124_no_new_tokens_ends_at_once_and_costs_nothing():
    rig = Rig()
    told = rig.run(1, PROMPT, max_new_tokens=0)
    assert (end(told), told.ids, told.visible[-1]) == (("length", None), [], 0)
    assert rig.scheduler.allocator.available == 4096
    assert not rig.runner.log
    assert bytes(rig.run(2, b"x", sid=1, fresh=False).prompt_ids) == PROMPT + b"x"


def test_token_ids_out_of_range_are_refused():
    rig = Rig()
    for n, bad in enumerate((-1, 259, 2**40)):
        assert rig.run(n, [65, bad]).finish.error.message == f"token id {bad} is outside 0..258"
    rig.open(9)
    rig.extend(9, [2**40])
    assert rig.run(9, b"x", fresh=False).finish.error.code == "input"


def test_full_queue_refuses_with_its_limit():
    rig = Rig(max_queued_requests=2)
    rids = [rig.decode(n, PROMPT) for n in range(3)]
    rig.drain()
    assert [rig.told[rid].finish.type for rid in rids][:2] != ["error", "error"]
    error = rig.told[rids[2]].finish.error
    assert error.code == "queue_full"
    assert "max_queued_requests is 2" in error.message


def test_a_session_is_cut_to_what_its_prompt_keeps():
    rig = Rig()
    first = rig.run(1, PROMPT, max_new_tokens=6, ignore_eos=True)
    told = rig.run(2, b"again", sid=1, fresh=False, keep=20, max_new_tokens=4, ignore_eos=True)
    assert told.prompt_ids == [*PROMPT[:20], *b"again"]
    assert told.meta.prompt_tokens == 25
    assert told.meta.cached_tokens == 20, "what is kept was computed before"
    assert told.meta.cut_tokens == len(PROMPT) + first.meta.kept_tokens - 20
    assert told.ids == alone([*PROMPT[:20], *b"again"], max_new_tokens=4, ignore_eos=True).ids
    whole = rig.run(3, [], sid=1, fresh=False, keep=10, max_new_tokens=0)
    assert whole.prompt_ids == list(PROMPT[:10]), "nothing need come after the cut"
    assert rig.run(4, b"x", sid=1, fresh=False, max_new_tokens=0).meta.cut_tokens == 0


def test_a_session_cannot_keep_more_than_it_has():
    rig = Rig()
    rig.run(1, PROMPT, max_new_tokens=0)
    for n, keep in ((2, len(PROMPT) + 1), (3, -1)):
        told = rig.run(n, b"x", sid=1, fresh=False, keep=keep)
        assert told.finish.error.code == "keep"
        assert f"not {keep} to keep" in told.finish.error.message
    assert rig.run(4, b"x", sid=1, fresh=False, max_new_tokens=0).prompt_ids == [*PROMPT, *b"x"]


def test_closed_unknown_and_busy_sessions_refuse():
    rig = Rig()
    assert rig.run(1, PROMPT, fresh=False).finish.error.code == "session"
    rig.decode(2, PROMPT)
    second = rig.decode(3, PROMPT, sid=2, fresh=False)
    rig.extend(2, b"late")
    rig.drain()
    assert rig.told[second].finish.error.code == "busy"
    assert rig.told["c1.r2"].ids == alone(PROMPT).ids, "the running one is not disturbed"
    assert rig.run(4, b"x", sid=2, fresh=False).finish.error.code == "order"


def test_a_session_serves_its_owner_only():
    rig = Rig()
    rig.run(1, PROMPT)
    rig.scheduler.sessions["c2.s1"] = rig.scheduler.sessions["c1.s1"]
    assert rig.run(2, b"x", client=2, sid=1, fresh=False).finish.error.code == "session"


def test_repeated_ids_of_sessions_and_requests_change_nothing(caplog):
    rig = Rig()
    rid = rig.decode(1, PROMPT)
    rig.open(1)
    told = rig.told[rid]
    rig.decode(1, b"again", fresh=False)
    rig.told[rid] = told
    rig.drain()
    assert told.ids == alone(PROMPT).ids
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_without_a_table_nothing_runs():
    rig = Rig(table=None)
    assert rig.run(1, PROMPT).finish.error.code == "not_ready"


def test_unsupported_settings_are_refused_at_start():
    with pytest.raises(LimitError, match="page_size must be one of 1, 2, 4, 16"):
        Rig(page_size=3)
    with pytest.raises(LimitError, match="prefill_decode_interval"):
        Rig(prefill_decode_interval=0)
