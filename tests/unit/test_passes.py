"""The passes: what each does and refuses to do, and that programs mean the same with and without them."""

from __future__ import annotations

import hashlib
import random

import pytest

import sgnb as sgl
from sgnb.backends.base import Backend, Delta, Done, Started, TokenInfo
from sgnb.backends.mock import CHATML, HANG, MockBackend
from sgnb.lang.block import ChosenOp, CommitOp, ForkOp, GenOp, HostOp, MarkOp, SelectOp, SharedOp, TextOp
from sgnb.lang.instruction import Decode, Extend, Fork, Select, TextPart
from sgnb.lang.lower import lower
from sgnb.lang.passes import PASSES, REFUSED, Pass, PassRecord, optimize
from sgnb.lang.passes.commit_prefixes import MIN_CHARS, commit_prefixes
from sgnb.lang.passes.group_generations import group_generations
from sgnb.lang.passes.hoist_prefix import hoist_prefix
from sgnb.lang.passes.merge_forks import merge_forks
from sgnb.lang.passes.prune_choices import prune_choices
from sgnb.lang.passes.share_generations import share_generations
from sgnb.lang.passes.validate import same
from sgnb.runtime.core import Core
from sgnb.runtime.state import State
from sgnb.runtime.waiting import set_current
from sgnb.sampling_params import SamplingParams

LONG = "The same beginning of every arm, long enough to be worth hoisting it out of them. "


def text(sid, value, literal=False):
    return TextOp(sid, value, literal, None)


def gen(sid, rid, **params):
    return GenOp(sid, rid, "x", SamplingParams(**params), None, "", "")


def choice(sid, rid, *options):
    return SelectOp(sid, rid, "c", options, "token_length_normalized", None, "", "")


def test_prune_takes_single_options_with_a_border_behind_them():
    end = MarkOp("a", "user", False, None)
    one = choice("a", "r1", "only")
    assert prune_choices([one, text("b", "y"), end])[0] == ChosenOp("a", "r1", "only", None)
    for after in ([], [text("a", "x")], [ForkOp("a", ("b",), None)]):
        assert prune_choices([one, *after]) == [one, *after]
    two = choice("a", "r2", "x", "y")
    assert prune_choices([two, end]) == [two, end]


def test_pruned_choices_are_answered():
    backend = MockBackend("v")

    @sgl.function
    def prog(s):
        s += "Mood: " + sgl.select("mood", ["fine"]) + sgl.gen("x")

    state = prog.run(backend=backend)
    assert state.text() == "Mood: finev" and state["mood"] == "fine"
    assert state.get_meta_info("mood")["choice"] == 0
    assert not any(isinstance(op, Select) for block in backend.log for op in block.instructions)
    assert backend.prompts == [("x", "Mood: fine")]
    backend.shutdown()


def test_merge_forks():
    ops = [
        ForkOp("a", ("b",), None),
        ForkOp("a", ("c", "d"), None),
        text("a", "x"),
        ForkOp("a", ("e",), None),
    ]
    assert merge_forks(ops) == [ForkOp("a", ("b", "c", "d"), None), text("a", "x"), ForkOp("a", ("e",), None)]


def test_hoist_appends_the_common_beginning_once():
    fork = ForkOp("p", ("a", "b", "c"), None)
    begin = [MarkOp(sid, "user", True, None) for sid in "abc"]
    ops = [fork]
    for sid, mark in zip("abc", begin, strict=True):
        ops += [mark, text(sid, LONG + sid), gen(sid, f"r{sid}")]
    hoisted = hoist_prefix([*ops, text("p", "goes on")])
    assert hoisted == [
        ForkOp("p", ("a",), None), begin[0], text("a", LONG), ForkOp("a", ("b", "c"), None, "same"),
        text("a", "a"), gen("a", "ra"), text("b", "b"), gen("b", "rb"), text("c", "c"), gen("c", "rc"),
        text("p", "goes on"),
    ]  # fmt: skip
    assert same([*ops, text("p", "goes on")], hoisted)


@pytest.mark.parametrize(
    "arms",
    [
        [[text("a", "short x")], [text("b", "short y")]],
        [[text("a", LONG)], []],
        [[text("a", LONG, True)], [text("b", LONG, False)]],
        [[gen("a", "r"), text("a", LONG)], [text("b", LONG)]],
        [[text("a", LONG)], [MarkOp("b", "user", True, None), text("b", LONG)]],
    ],
)
def test_hoist_leaves_alone_what_is_not_common(arms):
    ops = [ForkOp("p", ("a", "b"), None), *arms[0], *arms[1]]
    assert hoist_prefix(ops) == ops


def test_share_generates_once_what_is_the_same():
    fork = ForkOp("p", ("a", "b", "c"), None)
    ops = [fork]
    for sid in "abc":
        ops += [MarkOp(sid, "user", True, None), text(sid, "same"), gen(sid, f"r{sid}", temperature=0.0)]
    ops += [text("b", "own"), text("p", "goes on")]
    shared = share_generations(ops)
    params = SamplingParams(temperature=0.0)
    assert shared == [
        ForkOp("p", ("a",), None), ops[1], ops[2], ops[3], ForkOp("a", ("b", "c"), None, "same"),
        SharedOp("b", "rb", "ra", "x", params, ""), SharedOp("c", "rc", "ra", "x", params, ""),
        text("b", "own"), text("p", "goes on"),
    ]  # fmt: skip
    assert same(ops, shared)
    assert not same(ops, [op for op in shared if not isinstance(op, SharedOp)])


def test_share_lets_the_parent_generate_for_its_samples():
    ops = [ForkOp("p", ("a", "b"), None)]
    ops += [gen(sid, f"r{sid}", temperature=1.0, seed=7) for sid in "pab"]
    shared = share_generations(ops)
    assert [type(op) for op in shared] == [GenOp, ForkOp, SharedOp, SharedOp] and shared[0].sid == "p"
    assert same(ops, shared)


@pytest.mark.parametrize(
    "arms",
    [
        [
            [text("a", "x"), gen("a", "ra", temperature=0.0)],
            [text("b", "y"), gen("b", "rb", temperature=0.0)],
        ],
        [[gen("a", "ra", seed=1)], [gen("b", "rb", seed=2)]],
        [[gen("a", "ra", temperature=0.0)], [gen("b", "rb", temperature=0.0, max_new_tokens=3)]],
        [[gen("a", "ra")], [gen("b", "rb")]],
        [[gen("a", "ra", temperature=0.0)], [gen("b", "rb", temperature=0.0)._replace(priority=5)]],
        [[choice("a", "c1", "x", "y"), gen("a", "ra", temperature=0.0)], [gen("b", "rb", temperature=0.0)]],
        [
            [text("a", "x", True), gen("a", "ra", temperature=0.0)],
            [text("b", "x"), gen("b", "rb", temperature=0.0)],
        ],
        # the parent's generation stands behind the branch's: it could only follow, and its session cannot be a branch
        [[gen("a", "ra", temperature=0.0)], [gen("p", "rp", temperature=0.0)]],
    ],
)
def test_share_leaves_alone_what_may_differ(arms):
    ops = [ForkOp("p", ("a", "b"), None), *arms[0], *arms[1]]
    assert share_generations(ops) == ops


def test_a_shared_result_outlives_the_branch_that_computed_it():
    backend = MockBackend({"x": "slow words come", "y": "after"}, delay=0.05)

    @sgl.function
    def prog(s, close):
        arms = s.fork(3)
        for arm in arms:
            arm += "Same." + sgl.gen("x", temperature=0)
        arms[1] += " Own." + sgl.gen("y")
        if close:
            next(arms[2].text_iter("x"))
            arms[0].close()
            arms[2].close()
        return arms[1].text(), arms[1].get_meta_info("x")

    text_, meta = prog.run(True, backend=backend).ret_value
    assert text_ == "Same.slow words come Own.after" and meta["shared_with"] and meta["finish"] == "eos"
    assert [name for name, _ in backend.prompts] == ["x", "y"]
    backend.shutdown()


def test_a_shared_generation_stops_when_nobody_wants_it():
    backend = MockBackend({"x": HANG})

    @sgl.function
    def prog(s):
        arms = s.fork(3)
        for arm in arms:
            arm += sgl.gen("x", temperature=0)
        s.core.flush()
        for arm in arms:
            arm.close()

    state = prog.run(backend=backend)
    lead = backend.log[0].instructions[-2].rid
    assert backend.aborted.count(lead) == 1 and state.core.finished
    backend.shutdown()


def test_a_generation_stops_when_its_state_and_all_branches_behind_it_are_closed():
    backend = MockBackend({"x": HANG})

    @sgl.function
    def prog(s):
        s += sgl.gen("x")
        arms = s.fork(2)
        s.core.flush()
        s.close()
        for arm in arms:
            arm.close()

    state = prog.run(backend=backend)
    assert backend.aborted.count(backend.log[0].instructions[1].rid) == 1 and state.core.finished
    backend.shutdown()


def test_a_shared_generation_that_fails_fails_all_of_its_branches():
    backend = MockBackend({"x": ValueError("no")})

    @sgl.function
    def prog(s):
        arms = s.fork(3)
        for arm in arms:
            arm += sgl.gen("x", temperature=0)
        return [str(arm.error().message) for arm in arms]

    assert prog.run(backend=backend).ret_value == ["ValueError: no"] * 3
    backend.shutdown()


def test_commit_of_long_text_that_waits_for_host_code():
    host, fork = HostOp(), ForkOp("p", ("a", "b"), None)
    more = text("p", "x" * MIN_CHARS)
    assert commit_prefixes([more, host]) == [more, CommitOp("p", None)]
    assert commit_prefixes([more, fork, host]) == [more, fork, CommitOp("p", None)]
    own = text("a", "y" * MIN_CHARS)
    assert commit_prefixes([more, fork, own, host]) == [more, fork, own, CommitOp("a", None)]
    for ops in (
        [text("p", "short"), host],
        [more, gen("p", "r"), host],
        [more, fork, gen("a", "r"), host],
        [more, gen("p", "r"), text("p", "short"), host],
    ):
        assert commit_prefixes(ops) == ops
    assert commit_prefixes([more, fork]) == [more, fork]
    assert lower("r", [more, host]) == lower("r", [more])


def test_group_moves_texts_before_generations_of_other_states():
    ops = [text("a", "1"), gen("a", "r1", seed=1), text("b", "2"), gen("b", "r2", seed=2), text("b", "3")]
    assert group_generations(ops) == [ops[0], ops[2], ops[1], ops[3], ops[4]]
    other = [gen("a", "r1", top_p=0.5), text("b", "2"), gen("b", "r2")]
    assert group_generations(other) == [other[1], other[0], other[2]]
    own = [gen("a", "r1"), ForkOp("a", ("b",), None), gen("b", "r2")]
    assert group_generations(own) == own


def test_a_result_that_means_something_else_is_thrown_away():
    ops = [text("a", "1"), gen("a", "r1"), text("a", "2")]
    wrong = [
        lambda block: block[1:],
        lambda block: [block[1], block[0], block[2]],
        lambda block: [block[0], block[1]],
        lambda block: [block[0], gen("a", "r1", top_p=0.5), block[2]],
        lambda block: [*block, ForkOp("a", ("b",), None)],
    ]
    for number, run in enumerate(wrong):
        records: list[PassRecord] = []
        assert optimize(ops, (Pass("bad", run, "rule", "idle"),), records) == ops, number
        assert records == [PassRecord("bad", 3, 3, REFUSED)]


def test_each_pass_shows_in_messages_what_it_saves():
    @sgl.function
    def prog(s):
        s += "p"
        forks = s.fork(8)
        for i, f in enumerate(forks):
            f += LONG
            f += f"arm {i}" + sgl.gen("x", temperature=0)
        forks.join()
        return s["x"]

    sizes = {}
    for name, passes in (("on", PASSES), ("off", ()), ("fold", PASSES[1:2])):
        backend = MockBackend("v")
        assert prog.run(backend=backend, passes=passes).ret_value == ["v"] * 8
        (block,) = backend.log
        parts = [p for op in block.instructions if isinstance(op, Extend) for p in op.parts]
        sizes[name] = (len(parts), sum(len(p.text) for p in parts if isinstance(p, TextPart)))
        decodes = [isinstance(op, Decode) for op in block.instructions]
        if name == "on":
            assert decodes[-8:] == [True] * 8
            assert sum(isinstance(op, Fork) for op in block.instructions) == 2
        backend.shutdown()
    assert sizes["off"] == (17, 1 + 8 * (len(LONG) + 5))
    assert sizes["fold"] == (9, 1 + 8 * (len(LONG) + 5))
    assert sizes["on"] == (10, 1 + len(LONG) + 4 + 8)


# ---------------------------------------------------------------- random programs


class HashBackend(Backend):
    """A model whose answer is a hash of all text before it; sessions and forks as an engine has them; synchronous."""

    def __init__(self):
        self.sessions: dict[str, str] = {}
        self.count = 0

    def new_sid(self):
        self.count += 1
        return f"h.{self.count}"

    new_rid = new_sid

    def template(self):
        return CHATML

    @property
    def model_name(self):
        return "hash"

    def submit(self, block, sink):
        events = []
        for op in block.instructions:
            before = self.sessions.get(op.sid, "")
            if isinstance(op, Extend):
                for part in op.parts:
                    role = CHATML.roles[part.role][not part.begin] if not isinstance(part, TextPart) else ""
                    before += role or part.text
                self.sessions[op.sid] = before
            elif isinstance(op, Fork):
                for child in op.children:
                    assert child not in self.sessions
                    self.sessions[child] = before
            elif isinstance(op, Decode):
                key = f"{before}|{op.params.seed}|{op.params.max_new_tokens}"
                answer = hashlib.blake2b(key.encode(), digest_size=3).hexdigest()
                self.sessions[op.sid] = before + answer
                events += [Started(op.rid), Delta(op.rid, answer, (TokenInfo(1),))]
                events.append(Done(op.rid, {"type": "eos", "matched": None}, {}))
            elif isinstance(op, Select):
                scores = [hashlib.blake2b(f"{before}|{o}".encode()).digest() for o in op.options]
                winner = scores.index(max(scores))
                self.sessions[op.sid] = before + op.options[winner]
                events.append(Done(op.rid, {"type": "stop", "matched": None}, {"choice": winner}))
            else:
                self.sessions.setdefault(op.sid, "")
        sink(events)

    def abort(self, rids=(), sids=()):
        pass

    def release(self, sids):
        for sid in sids:
            self.sessions.pop(sid, None)


WORDS = ["a", "b ", LONG, LONG + "tail", " <x> ", "\n", LONG * 13]


def plan(rng, depth=0):
    """A random program as nested steps."""
    steps = []
    for _ in range(rng.randint(1, 6 if depth == 0 else 4)):
        kind = rng.choice(["text", "text", "text", "gen", "gen", "select", "turn", "fork", "read", "samples"])
        if kind == "fork" and depth < 3:
            shared = rng.choice(WORDS) if rng.random() < 0.6 else ""
            arms = [plan(rng, depth + 1) for _ in range(rng.randint(1, 4))]
            mode = rng.choice(["gather_variable", "gather_variable", "concate_and_append", None])
            steps.append((kind, shared, arms, mode))
        elif kind == "select":
            steps.append((kind, tuple(rng.sample(["x", "yy", "zzz", LONG], rng.choice([1, 1, 2, 3])))))
        elif kind in ("text", "turn"):
            steps.append((kind, rng.choice(WORDS), rng.random() < 0.3))
        elif kind != "fork":
            steps.append((kind, rng.choice([0.0, 1.0]), rng.choice([4, 4, 8])))
    return steps


def play(state, steps, seen):
    for kind, *rest in steps:
        if kind == "text":
            state += sgl.text(rest[0]) if rest[1] else rest[0]
            if len(rest[0]) >= MIN_CHARS:
                state.core.send()  # as before host code
        elif kind == "turn":
            state += sgl.user(rest[0] + sgl.gen("turn") if rest[1] else rest[0])
        elif kind == "gen":
            state += sgl.gen("v", temperature=rest[0], max_tokens=rest[1])
        elif kind == "samples":
            state += sgl.gen("n", temperature=rest[0], max_tokens=rest[1], n=2)
        elif kind == "select":
            state += sgl.select("c", rest[0])
        elif kind == "read":
            seen.append(state.text())
        else:
            shared, arms, mode = rest
            group = state.fork(len(arms))
            for branch, arm in zip(group, arms, strict=True):
                branch += shared
                play(branch, arm, seen)
            seen.append(group)
            if mode:
                group.join(mode)


def outcome(steps, passes, seed):
    core = Core(HashBackend(), seed=seed, passes=passes)
    set_current(core)
    try:
        state, seen = State(core), []
        play(state, steps, seen)
        core.flush()
        values = {name: state[name] for name in state._values}
        others = [
            one if isinstance(one, str) else [branch.text_so_far() for branch in one.states] for one in seen
        ]
        sessions = [
            core.backend.sessions.get(s.sid)
            for one in seen if not isinstance(one, str) for s in one.states if not s.joined
        ]  # fmt: skip
        assert not core.slots
        assert core.backend.sessions[state.sid] == state.text_so_far()
        return state.text(), state.messages(), values, others, sessions
    finally:
        set_current(None)


def test_random_programs_mean_the_same_with_and_without_passes(monkeypatch):
    changed = dict.fromkeys((step.name for step in PASSES), 0)

    def counted(step):
        def run(ops):
            after = step.run(ops)
            changed[step.name] += after != list(ops)
            assert same(ops, after), step.name
            return after

        return Pass(step.name, run, step.rule, step.idle)

    passes = tuple(counted(step) for step in PASSES)
    rng = random.Random(20)
    for number in range(2000):
        steps = plan(rng)
        assert outcome(steps, passes, number) == outcome(steps, (), number), steps
    assert min(changed.values()) >= 30, changed


def test_explain_shows_graph_passes_and_trace():
    @sgl.function
    def prog(s, topic):
        s += "p"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += LONG + f"{topic} {i}" + sgl.gen("tip")
        forks.join()
        s += sgl.select("pick", ["a", "b"])

    shown = sgl.explain(prog)
    data = sgl.explain_data(prog)
    assert (
        "fork s → forks[2]" in shown and "append forks[*]" in shown and "join forks gather_variable" in shown
    )
    assert "select(pick, 'a', 'b')" in shown and "runs compiled" in shown
    changed = [record["pass"] for block in data["blocks"] for record in block if record["changed"]]
    assert changed == ["hoist_prefix", "group_generations"]
    assert "nothing: no state is forked twice" in shown

    @sgl.function
    def broken(s, number):
        s += "x" * (number + 1)

    assert "not traced: TypeError" in sgl.explain(broken)
