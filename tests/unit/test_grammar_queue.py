"""Constraints through the scheduler, on the stub runner and a grammar backend of the test's: no library, no torch.

The double's constraint is a list of texts, separated by ``|``; the output must be one of them.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from scheduler_rig import BYTES, Rig, alone

from sgnb.engine.grammar import base
from sgnb.engine.grammar.base import CompiledGrammar, GrammarBackend, GrammarError, GrammarState, Matcher
from sgnb.engine.model_executor.stub_runner import STUB_EOS
from sgnb.engine.scheduler import compile_ahead
from sgnb.engine.scheduler.grammar_manager import THREADS
from sgnb.messages import SchedulerControl, StepEvent, TokenTable


class ListMatcher(Matcher):
    def __init__(self, texts: list[bytes]) -> None:
        self.texts, self.sofar = texts, b""

    def fill(self, mask) -> bool:
        mask[:] = 0
        rest = [t[len(self.sofar) :] for t in self.texts if t.startswith(self.sofar)]
        for text in rest:
            if text:
                mask[text[0] // 32] |= np.uint32(1 << text[0] % 32).view(np.int32)
        return b"" in rest

    def accept(self, token: int) -> bool:
        more = self.sofar + BYTES[token]
        if not any(t.startswith(more) for t in self.texts):
            return False
        self.sofar = more
        return True


class ListGrammar(CompiledGrammar):
    def __init__(self, text: str, size: int) -> None:
        self.texts, self.size = text.encode().split(b"|"), size
        self.seconds = 0.25

    def matcher(self) -> Matcher:
        return ListMatcher(self.texts)


class ListBackend(GrammarBackend):
    """``hold`` is what ``compile`` waits for; ``compiled`` counts."""

    def __init__(self, vocabulary) -> None:
        self.vocabulary = vocabulary
        self.hold = threading.Event()
        self.hold.set()
        self.compiled: list[str] = []
        self.size = 1000

    def compile(self, constraint):
        self.compiled.append(constraint.text)
        assert self.hold.wait(30)
        if constraint.text == "bad":
            raise GrammarError("it is bad", hint="Write another.")
        if constraint.text == "crash":
            raise ZeroDivisionError
        return ListGrammar(constraint.text, self.size)

    def close(self) -> None:
        self.hold.set()


@pytest.fixture
def backend(monkeypatch):
    made = ListBackend(None)
    monkeypatch.setitem(base.BACKENDS, "xgrammar", lambda vocabulary: made)
    yield made
    made.close()


class GrammarRig(Rig):
    def __init__(self, **args) -> None:
        super().__init__(table=None, **args)
        self.news = threading.Event()
        self.scheduler.grammars.wake = self.news.set
        table = TokenTable(table=BYTES, special_ids=[256, 257, 258], eos_token_ids=[STUB_EOS])
        self.scheduler.receive(table)

    def drain(self, limit: int = 5000) -> None:
        """Also waits for compilers."""
        deadline = time.monotonic() + 30
        self.scheduler.step()
        while self.scheduler.reqs:
            assert time.monotonic() < deadline
            if not self.step():
                self.news.wait(0.05)
                self.news.clear()
        super().drain(limit)


def said(told) -> bytes:
    return b"".join(BYTES[i] for i in told.ids if i < 256)


def test_output_is_one_of_the_texts_and_ends_as_grammar(backend):
    told = GrammarRig().run(1, b"say: ", regex="yes|no", max_new_tokens=50)
    assert said(told) in (b"yes", b"no")
    assert told.finish.type == "grammar"
    assert told.meta.kept_tokens == len(said(told)) and told.meta.forced_tokens >= len(said(told)) - 1


def test_prefix_text_ends_with_eos_or_goes_on(backend):
    ends = set()
    rig = GrammarRig()
    for n in range(40):
        told = rig.run(n, f"{n}: ".encode(), regex="a|ab", max_new_tokens=9)
        ends.add((said(told), told.finish.type))
    assert ends == {(b"a", "eos"), (b"ab", "grammar")}


def test_eos_is_not_drawn_when_it_is_ignored(backend):
    told = GrammarRig().run(1, b"x", regex="a|abcd", max_new_tokens=9, ignore_eos=True)
    assert said(told) == b"abcd" and told.finish.type == "grammar"


def test_min_new_tokens_keeps_the_end_away(backend):
    rig = GrammarRig()
    for n in range(20):
        told = rig.run(n, f"{n}: ".encode(), regex="a|abcd", max_new_tokens=9, min_new_tokens=2)
        assert said(told) == b"abcd"


def test_B054_empty_output_ends_at_once(backend):
    told = GrammarRig().run(1, b"x", regex="", max_new_tokens=9)
    assert said(told) == b"" and told.finish.type == "grammar" and told.meta.completion_tokens == 0


def test_length_and_stop_strings_still_end_it(backend):
    assert GrammarRig().run(1, b"x", regex="abcdef", max_new_tokens=3).finish.type == "length"
    told = GrammarRig().run(1, b"x", regex="abcdef", max_new_tokens=9, stop=["cd"])
    assert told.finish.type == "stop" and told.text == b"ab"


@pytest.mark.sampler
def test_B040_no_bias_brings_back_what_is_excluded(backend):
    told = GrammarRig().run(1, b"x", regex="yes|no", max_new_tokens=9, logit_bias={ord("q"): 100.0})
    assert said(told) in (b"yes", b"no")


def test_neighbours_without_a_grammar_say_what_they_say_alone(backend):
    rig = GrammarRig()
    plain = [rig.decode(n, f"plain {n}".encode(), max_new_tokens=12) for n in range(4)]
    bound = [
        rig.decode(10 + n, f"bound {n}".encode(), regex="left|right|lost", max_new_tokens=12)
        for n in range(4)
    ]
    rig.drain()
    for n, rid in enumerate(plain):
        assert rig.told[rid].ids == alone(f"plain {n}".encode(), max_new_tokens=12).ids
    assert {said(rig.told[rid]) for rid in bound} <= {b"left", b"right", b"lost"}
    masks = [batch.bitmask for batch in rig.runner.log if batch.bitmask is not None]
    assert masks and len(masks) < len(rig.runner.log)


def test_F51_same_constraint_of_many_is_compiled_once(backend):
    backend.hold.clear()
    rig = GrammarRig(max_running_requests=64)
    rids = [rig.decode(n, f"{n} ".encode(), regex="yes|no") for n in range(64)]
    rig.step(3)
    assert rig.scheduler.idle and len(rig.scheduler.grammars.queue) == 64
    assert rig.scheduler.stats().num_grammar_queue_reqs == 64
    backend.hold.set()
    rig.drain()
    assert backend.compiled == ["yes|no"]
    assert all(rig.told[rid].finish.type == "grammar" for rid in rids)
    rig.run(99, b"again", regex="yes|no")
    assert backend.compiled == ["yes|no"]


def test_waiting_for_a_grammar_stops_nobody_and_is_told(backend):
    backend.hold.clear()
    rig = GrammarRig()
    slow = rig.decode(1, b"slow", regex="yes|no")
    quick = rig.decode(2, b"quick", max_new_tokens=20, ignore_eos=True)
    rig.step(25)
    assert rig.told[quick].finish.type == "length" and rig.told[slow].finish is None
    assert ("compiling", "compiling grammar") in {(e.state, e.reason) for e in rig.events if e.rid == slow}
    notes = [n for e in rig.detail if isinstance(e, StepEvent) for n in e.notes if n.rid == slow]
    assert [(n.what, n.reason) for n in notes] == [("deferred", "grammar")], "once, not in each of 25 steps"
    assert rig.ask("requests").data["requests"][0]["state"] == "compiling"
    backend.hold.set()
    rig.drain()
    assert rig.told[slow].finish.type == "grammar"


def test_a_row_with_a_grammar_keeps_its_step_from_being_planned_ahead_and_says_so(backend):
    rig = GrammarRig(enable_overlap=True)
    rig.decode(1, b"plain", max_new_tokens=30, ignore_eos=True)
    rig.step(3)
    masked = rig.decode(2, b"masked", regex="yes|no")
    rig.drain()
    found = [e for e in rig.detail if isinstance(e, StepEvent)]
    beside = [e.no_overlap for e in found if masked in {row.rid for row in e.rows}]
    assert beside[1:] and set(beside[1:]) == {"grammar"}
    assert all(e.schedule_under for e in found[-10:]), "without it steps overlap again"


def test_many_that_wait_for_a_grammar_are_told_of_once(backend):
    """A note of each in each step would fill the ring of events."""
    backend.hold.clear()
    rig = GrammarRig()
    waiting = [rig.decode(n, b"w%d" % n, regex="yes|no") for n in range(50)]
    rig.decode(100, b"quick", max_new_tokens=30, ignore_eos=True)
    rig.step(3)
    rig.abort(*waiting[:5])
    waiting += [rig.decode(n, b"w%d" % n, regex="yes|no") for n in range(50, 60)]
    rig.abort(waiting[-1])
    rig.step(25)
    notes = [n.rid for e in rig.detail if isinstance(e, StepEvent) for n in e.notes if n.reason == "grammar"]
    assert sorted(notes) == sorted(waiting[:-1]), "one aborted before a step told of it is not told of"
    assert not rig.scheduler._compiling
    backend.hold.set()
    rig.drain()


@pytest.mark.grammar
@pytest.mark.abort
def test_B140_abort_while_it_compiles(backend):
    backend.hold.clear()
    rig = GrammarRig()
    rid = rig.decode(1, b"slow", regex="yes|no")
    rig.step()
    rig.abort(rid)
    rig.step()
    assert rig.told[rid].finish.type == "abort" and not rig.scheduler.grammars.queue
    backend.hold.set()
    rig.run(2, b"later", regex="yes|no")
    assert backend.compiled == ["yes|no"], "what was compiled for it is kept"


@pytest.mark.abort
def test_R12_what_nobody_waits_for_any_more_is_not_compiled(backend):
    """Else whoever asks and aborts keeps the compilers busy for everybody, and the queue grows without bound."""
    backend.hold.clear()
    rig = GrammarRig()
    grammars = rig.scheduler.grammars
    for n in range(1, 41):
        rid = rig.decode(n, b"x", regex=f"yes|n{n}")
        rig.step()
        deadline = time.monotonic() + 10
        while n <= THREADS and len(backend.compiled) < n:  # so many are being compiled, and go on
            assert time.monotonic() < deadline
            time.sleep(0.001)
        rig.abort(rid)
        rig.step()
    assert len(grammars._waiting) == THREADS and not grammars.queue and not grammars._wanted
    again = rig.decode(50, b"x", regex="yes|n40")
    rig.step()
    backend.hold.set()
    rig.drain()
    assert rig.told[again].finish.type == "grammar"
    assert backend.compiled == ["yes|n1", "yes|n2", "yes|n40"] and not grammars._waiting


def test_B058_bad_constraint_fails_alone_in_any_order(backend):
    rig = GrammarRig()
    texts = ["yes|no", "bad", "crash", "left"]
    rids = [rig.decode(n, b"x", regex=text) for n, text in enumerate(texts)]
    rig.drain()
    ends = [rig.told[rid].finish for rid in rids]
    assert [end.type for end in ends] == ["grammar", "error", "error", "grammar"]
    assert (ends[1].error.message, ends[1].error.hint) == ("it is bad", "Write another.")
    assert "ZeroDivisionError" in ends[2].error.message
    again = rig.run(9, b"x", regex="bad")
    assert again.finish.type == "error" and backend.compiled.count("bad") == 1


def test_F37_dead_end_fails_with_the_place(backend):
    rig = GrammarRig()

    class Stuck(ListMatcher):
        def fill(self, mask) -> bool:
            super().fill(mask)
            if self.sofar == b"ab":
                mask[:] = 0
            return False

    backend.compile = lambda constraint: type("G", (ListGrammar,), {"matcher": lambda self: Stuck([b"abc"])})(
        "", 1
    )
    told = rig.run(1, b"x", regex="abc")
    assert told.finish.type == "error" and told.finish.error.code == "grammar_dead_end"
    assert "after 2 tokens" in told.finish.error.message
    assert said(told) == b"ab"


def test_matcher_that_raises_or_refuses_ends_one_request(backend):
    class Broken(ListMatcher):
        def accept(self, token: int) -> bool:
            if self.sofar == b"y":
                raise RuntimeError("terminated")
            return super().accept(token)

    state = GrammarState(ListGrammar("yes", 1), frozenset([STUB_EOS]), 9)
    state.accept(ord("n"))
    assert state.error.code == "grammar_rejected"
    rig = GrammarRig()
    grammar = ListGrammar("", 1)
    grammar.matcher = lambda: Broken([b"yes"])
    backend.compile = lambda constraint: grammar
    bad, good = rig.decode(1, b"x", regex="yes"), rig.decode(2, b"x", max_new_tokens=9)
    rig.drain()
    assert rig.told[bad].finish.type == "error" and "terminated" in rig.told[bad].finish.error.message
    assert rig.told[good].finish.type in ("length", "eos")


def test_F48_slow_matcher_is_stopped(backend, monkeypatch):
    monkeypatch.setattr(base, "STEP_SECONDS", 0.0)
    told = GrammarRig().run(1, b"x", regex="yes")
    assert told.finish.type == "error" and told.finish.error.code == "grammar_slow"


@pytest.mark.grammar
@pytest.mark.sched
def test_B132_retraction_and_suspension_change_nothing(backend):
    alternatives = "|".join(f"{word} {'and so on ' * 6}end" for word in ("one", "two", "three"))

    def run(slots: int, **args) -> tuple[list[bytes], int]:
        rig = GrammarRig(max_total_tokens=slots, **args)
        rids = [rig.decode(n, b"q%d " % n * 3, regex=alternatives, max_new_tokens=80) for n in range(6)]
        rig.drain()
        assert {rig.told[rid].finish.type for rid in rids} == {"grammar"}
        return [said(rig.told[rid]) for rid in rids], rig.scheduler.meter.retracted

    roomy, none = run(4096)
    tight, some = run(200, schedule_conservativeness=0.1)
    sliced, _ = run(4096, decode_quantum=4, max_running_requests=2)
    assert not none and some, "the small pool must retract"
    assert roomy == tight == sliced


def test_F50_cache_of_grammars_is_bounded(backend):
    backend.size = 1 << 20
    rig = GrammarRig()
    for n in range(70):
        rig.run(n, b"x", regex=f"text{n}")
    manager = rig.scheduler.grammars
    assert len(manager._cache) <= 64 and manager._cached_bytes <= 64 << 20
    rig.run(100, b"x", regex="text0")
    assert backend.compiled.count("text0") == 2


def test_gate_is_asked_first(backend):
    from sgnb.messages import ErrorInfo

    rig = GrammarRig()
    rig.scheduler.grammars.gate = lambda constraint: ErrorInfo(
        kind="RequestError", code="unenforceable", message=constraint.kind
    )
    told = rig.run(1, b"x", regex="yes")
    assert told.finish.error.code == "unenforceable" and not backend.compiled


def test_no_backend_is_a_clear_refusal():
    told = GrammarRig(grammar_backend="none").run(1, b"x", regex="yes")
    assert told.finish.type == "error" and "grammar_backend" in told.finish.error.message


def test_queue_limit_counts_those_that_compile(backend):
    backend.hold.clear()
    rig = GrammarRig(max_queued_requests=2)
    rids = [rig.decode(n, b"x", regex="yes") for n in range(3)]
    rig.step()
    assert rig.told[rids[2]].finish.error.code == "queue_full"
    backend.hold.set()
    rig.drain()


def test_compiling_ahead_is_answered_when_it_is_done_and_the_request_need_not_wait(backend):
    rig = GrammarRig()
    backend.hold.clear()
    for text in ("yes|no", "bad"):
        rig.scheduler.receive(
            SchedulerControl(client=1, id=7, verb="compile_grammar", args={"kind": "regex", "text": text})
        )
    rig.scheduler.step()
    assert not rig.replies
    backend.hold.set()
    deadline = time.monotonic() + 30
    while len(rig.replies) < 2:
        assert time.monotonic() < deadline
        rig.news.wait(0.05)
        rig.scheduler.step()
    ready, refused = sorted(rig.replies, key=lambda reply: reply.error is not None)
    assert ready.data == {"seconds": 0.25} and (ready.client, ready.id) == (1, 7)
    assert refused.error.message == "it is bad"
    told = rig.run(1, b"say: ", regex="yes|no", max_new_tokens=50)
    assert told.finish.type == "grammar" and backend.compiled == ["yes|no", "bad"]
    assert "compiling" not in {getattr(event, "state", "") for event in rig.events}
    again = rig.ask("compile_grammar", kind="regex", text="yes|no")
    assert again.data == ready.data, "what compiling took, not what it takes to look it up"


def test_compiling_ahead_goes_on_when_a_request_for_it_ends(backend):
    """Two others keep both threads: the one that is asked for ahead is not begun with."""
    rig = GrammarRig()
    backend.hold.clear()
    for n in range(THREADS):
        rig.decode(n, b"x", regex=f"k{n}", max_new_tokens=9)
    rig.scheduler.receive(
        SchedulerControl(client=1, id=7, verb="compile_grammar", args={"kind": "regex", "text": "later"})
    )
    rid = rig.decode(9, b"x", regex="later", max_new_tokens=9)
    rig.scheduler.step()
    rig.abort(rid)
    rig.scheduler.step()
    backend.hold.set()
    rig.drain()
    deadline = time.monotonic() + 30
    while not rig.replies:
        assert time.monotonic() < deadline
        rig.news.wait(0.05)
        rig.scheduler.step()
    assert rig.replies[0].data["seconds"] == 0.25 and "later" in backend.compiled


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"kind": "poem", "text": "x"}, "kind must be one of"),
        ({"kind": "regex", "text": 7}, "text a text"),
        ({"kind": "regex", "text": "("}, "regex"),
        ({"kind": "regex", "text": "a" * 5000}, "4,096"),
    ],
)
def test_compiling_ahead_refuses_what_a_request_would_be_refused_for(backend, args, words):
    reply = GrammarRig().ask("compile_grammar", **args)
    assert words in reply.error.message and not backend.compiled


def test_compiling_ahead_is_bounded(backend):
    rig = GrammarRig()
    backend.hold.clear()
    for n in range(compile_ahead.MOST):
        rig.scheduler.receive(
            SchedulerControl(client=1, id=n, verb="compile_grammar", args={"kind": "regex", "text": f"k{n}"})
        )
    assert rig.ask("compile_grammar", kind="regex", text="one more").error.kind == "LimitError"
    backend.hold.set()
