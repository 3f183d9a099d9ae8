"""Synthetic workloads: what programs of five kinds would send.

Role: scripts without a recording, for ``sgnb simulate --workload`` and for the benchmarks. All randomness comes from the
seed. Prompts are marks that share exactly the prefixes their kind of program shares. Times between arrivals are
exponential (``rate`` programs a second); what follows an answer waits for it.

    few-shot          four prompts of examples, shared; one question each
    multi-turn        conversations of four turns on one system prompt, with a pause for thought before each
    tree-of-thought   a question, three first steps, each with two second steps, scored by a select at the end
    fork-join         a task, four branches at once, one answer that reads them all
    mixed             of each a quarter
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sgnb.config import EngineArgs
from sgnb.engine.scheduler.req import derive_seed
from sgnb.engine.scheduler.simulate.script import END, Input, Output, Scores, Script, plain_params
from sgnb.errors import LimitError
from sgnb.messages import (
    Label,
    SchedulerInput,
    SessionClose,
    SessionDecode,
    SessionFork,
    SessionOpen,
    SessionSelect,
)

WORKLOADS = ("few-shot", "multi-turn", "tree-of-thought", "fork-join", "mixed")
MAX_REQUESTS = 1_000_000
_CONTEXT = 8192
_SLOTS = 65_536


def make_workload(
    name: str,
    *,
    requests: int = 200,
    rate: float = 4.0,
    seed: int = 0,
    args: EngineArgs | None = None,
    max_total_tokens: int = _SLOTS,
) -> Script:
    """The script of one workload with about ``requests`` generations. LimitError for a name or number that is not legal."""
    if name not in WORKLOADS:
        raise LimitError(f"there is no workload {name!r}", hint=f"There are {', '.join(WORKLOADS)}.")
    if not 1 <= requests <= MAX_REQUESTS or not 0 < rate < float("inf"):
        raise LimitError(
            f"requests must be in 1..{MAX_REQUESTS:,} and rate above 0, not {requests} and {rate}"
        )
    script = Script(
        name=f"{name}, {requests} requests, {rate:g}/s, seed {seed}",
        args=args or EngineArgs.make(runner="stub"),
        context_length=_CONTEXT,
        max_total_tokens=max_total_tokens,
    )
    _Writer(script, random.Random(seed), rate).write(name, requests)
    return script


class _Writer:
    def __init__(self, script: Script, rng: random.Random, rate: float) -> None:
        self._script = script
        self._rng = rng
        self._rate = rate
        self._now = 0.0
        self._sessions = 0
        self._requests = 0
        self._marks = 0
        self._last: dict[str, tuple[str, ...]] = {}
        """Of each session: the requests that its next one waits for."""
        self._examples = [self._tokens(rng.randint(400, 800)) for _ in range(4)]
        self._system = self._tokens(220)
        self._kinds: dict[str, Callable[[], None]] = {
            "few-shot": self._few_shot,
            "multi-turn": self._multi_turn,
            "tree-of-thought": self._tree_of_thought,
            "fork-join": self._fork_join,
        }

    def write(self, name: str, requests: int) -> None:
        """Programs, one after another, until there are enough requests."""
        kinds = list(self._kinds) if name == "mixed" else [name]
        count = 0
        while self._requests < requests:
            self._now += self._rng.expovariate(self._rate)
            self._kinds[kinds[count % len(kinds)]]()
            count += 1

    # ------------------------------------------------------------ programs

    def _few_shot(self) -> None:
        sid = self._open()
        self._decode(sid, self._rng.choice(self._examples) + self._tokens(self._rng.randint(20, 80)), 16, 64)
        self._close(sid)

    def _multi_turn(self) -> None:
        sid = self._open()
        for turn in range(4):
            said = self._tokens(self._rng.randint(20, 120))
            pause = self._rng.expovariate(0.5) if turn else 0.0
            self._decode(sid, (self._system if not turn else []) + said, 40, 160, pause)
        self._close(sid)

    def _tree_of_thought(self) -> None:
        root = self._open()
        self._decode(root, self._examples[0] + self._tokens(60), 30, 60)
        first = self._fork(root, 3)
        leaves = []
        for sid in first:
            self._decode(sid, self._tokens(12), 40, 90)
            for leaf in self._fork(sid, 2):
                self._decode(leaf, self._tokens(12), 40, 90)
                leaves.append(leaf)
        self._select(root, self._tokens(20), [3] * len(leaves), [self._last[leaf][0] for leaf in leaves])
        self._close(*leaves, *first, root)

    def _fork_join(self) -> None:
        root = self._open()
        self._decode(root, self._system + self._tokens(150), 10, 30)
        branches = self._fork(root, 4)
        for sid in branches:
            self._decode(sid, self._tokens(15), 30, 120)
        waits = tuple(self._last[sid][0] for sid in branches)
        self._last[root] = waits
        self._decode(root, self._tokens(4 * 75), 60, 140)
        self._close(*branches, root)

    # ------------------------------------------------------------ messages

    def _tokens(self, count: int) -> list[int]:
        """Marks that nothing else has: consecutive numbers, so that no two texts share one by chance."""
        first = self._marks
        self._marks += count
        return [mark % (1 << 30) for mark in range(first, first + count)]

    def _add(self, message: SchedulerInput, sid: str, delay: float = 0.0) -> None:
        after = self._last.get(sid, ())
        self._script.inputs.append(Input(message, self._now, after, delay))

    def _open(self) -> str:
        self._sessions += 1
        sid = f"c1.s{self._sessions}"
        self._add(SessionOpen(sid=sid, client=1), sid)
        return sid

    def _fork(self, sid: str, count: int) -> list[str]:
        children = []
        for _ in range(count):
            self._sessions += 1
            children.append(f"c1.s{self._sessions}")
            self._last[children[-1]] = self._last.get(sid, ())
        self._add(SessionFork(sid=sid, children=children), sid)
        return children

    def _decode(self, sid: str, ids: list[int], shortest: int, longest: int, delay: float = 0.0) -> None:
        """A generation that ends by EOS somewhere between, as most do, well below its limit."""
        self._requests += 1
        rid = f"c1.r{self._requests}"
        drawn = [*self._tokens(self._rng.randint(shortest, longest)), END]
        seed = self._script.add_output(Output(rid, drawn, "eos"))
        message = SessionDecode(
            rid=rid,
            sid=sid,
            client=1,
            ids=ids,
            params=plain_params(2 * longest, seed),
            stops=[],
            stop_token_ids=[],
            eos_token_ids=[END],
            label=Label(),
        )
        self._add(message, sid, delay)
        self._last[sid] = (rid,)

    def _select(self, sid: str, ids: list[int], lengths: list[int], waits: list[str]) -> None:
        self._requests += 1
        rid = f"c1.r{self._requests}"
        options = [self._tokens(length) for length in lengths]
        output = Output(rid, ends="stop")
        seed = derive_seed(self._script.args.random_seed, rid)
        self._script.add_output(output)
        for option in options:
            scores = [-1.0 - self._rng.random()] * len(option)
            self._script.scores[seed, option[-1]] = Scores(len(option), scores, [0.0] * len(option), output)
        message = SessionSelect(
            rid=rid, sid=sid, client=1, ids=ids, options=options, method="token_length_normalized"
        )
        self._last[sid] = tuple(waits)
        self._add(message, sid)
        self._last[sid] = (rid,)

    def _close(self, *sids: str) -> None:
        last = sids[-1]
        self._add(SessionClose(sids=list(sids)), last)
