"""Selects: the options of a request, scored over its prompt in as few forward passes as fit.

Role: what is known of each option (``Selection``), and the batches that find out the rest (``ScoreBatch``). Scheduler
process; called by ``Scheduler`` for requests whose prompt has its KV. All options are rows of one pass over the shared
prefix; they are split over several where rows, tokens of a step or KV slots are short. What a row computes is freed at
once, but for the best option so far: if it wins, its KV stays. Which option wins is ``choices``'.

    prompt, all but its last token: computed, shared     │ last prompt token │ option, all but its last token
    0 …………………………………………………………………………………… base │ ← each row computes these itself, in slots of its own →
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sgnb.engine.mem_cache.base import BaseAllocator, BasePrefixCache
from sgnb.engine.scheduler.choices import choose, mean
from sgnb.engine.scheduler.req import Req
from sgnb.messages import Choice, ModelWorkerBatch, ModelWorkerOutput, OptionScore
from sgnb.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)


class Selection:
    """Options (token ids that follow the prompt, at least one each), their scores so far, and the winner at the end."""

    def __init__(self, options: list[list[int]], method: str) -> None:
        self.options = options
        self.method = method
        self.conditional: list[list[float] | None] = [None] * len(options)
        self.unconditional: list[list[float] | None] = [None] * len(options)
        self.best: int | None = None
        """The option whose KV is held: the highest mean so far."""
        self.choice: Choice | None = None
        first: dict[tuple[int, ...], int] = {}
        self._same = [first.setdefault(tuple(option), i) for i, option in enumerate(options)]

    @property
    def longest(self) -> int:
        """Tokens of the longest option."""
        return max(map(len, self.options))

    @property
    def kept(self) -> list[int]:
        """The winner's tokens; nothing before there is one."""
        return self.options[self.choice.index] if self.choice is not None else []

    def open_jobs(self) -> list[tuple[int, bool]]:
        """What is not scored yet: (option, without the prompt). Equal options are scored once."""
        jobs = [(i, False) for i in self._firsts() if self.conditional[i] is None]
        if self.method == "unconditional_likelihood_normalized":
            jobs += [
                (i, True)
                for i in self._firsts()
                if self.unconditional[i] is None and len(self.options[i]) > 1
            ]
        return jobs

    def _firsts(self) -> list[int]:
        return [i for i, same in enumerate(self._same) if same == i]

    def note(self, index: int, alone: bool, values: list[float]) -> bool:
        """Scores of an option. True: it is the best so far, and its KV should be held."""
        if alone:
            self.unconditional[index] = [0.0, *values]
            return False
        self.conditional[index] = values
        held = None if self.best is None else self.conditional[self.best]
        if held is not None and mean(held) >= mean(values):
            return False
        self.best = index
        return True

    def decide(self) -> Choice:
        """The winner, once every option is scored."""
        rows = [list(self.conditional[same] or ()) for same in self._same]
        _agree(self.options, rows)
        without: list[list[float]] = []
        if self.method == "unconditional_likelihood_normalized":
            without = [list(self.unconditional[same] or (0.0,)) for same in self._same]
            _agree(self.options, without)
        index, scores = choose(self.method, rows, without)
        options = [
            OptionScore(ids=ids, logprobs=row, score=score, unconditional=without[i] if without else [])
            for i, (ids, row, score) in enumerate(zip(self.options, rows, scores, strict=True))
        ]
        self.choice = Choice(index=index, options=options)
        return self.choice


def _agree(options: Sequence[Sequence[int]], rows: list[list[float]]) -> None:
    """Tokens that options begin with in common have one value: that of the first, not one for each row's rounding."""
    known: dict[tuple[int, int], tuple[int, float]] = {}
    for ids, row in zip(options, rows, strict=True):
        at = 0
        for j, token in enumerate(ids):
            at, row[j] = known.setdefault((at, token), (len(known) + 1, row[j]))


@dataclass(slots=True)
class _Row:
    req: Req
    index: int
    alone: bool
    prefix: list[int]
    ids: list[int]
    targets: list[int]
    row: int
    slots: list[int] = field(default_factory=list)


class ScoreBatch:
    """One pass that scores options of one or more requests."""

    def __init__(self, rows: list[_Row], table_rows: int) -> None:
        self.rows = rows
        self.table_rows = table_rows
        self.reqs = list(dict.fromkeys(row.req for row in rows))
        self.stints: list[int] = []

    @classmethod
    def prepare(
        cls,
        scoring: list[Req],
        free_rows: list[int],
        chunk: int | None,
        cache: BasePrefixCache,
        allocator: BaseAllocator,
        most: int | None = None,
    ) -> ScoreBatch | None:
        """Rows for as many open options as fit, at most ``most``: into the table (each request has a row of its own, free
        ones are borrowed), a step's tokens, and the slots there are. None: not even one fits."""
        rows: list[_Row] = []
        spare = free_rows.copy()
        holdable = allocator.available + cache.evictable_size
        tokens = chunk
        for req in scoring:
            own: int | None = req.row
            for index, alone in req.selected.open_jobs():
                made = _make_row(req, index, alone, allocator.page_size)
                need = allocator.round_up(len(made.ids))
                if (own is None and not spare) or need > holdable or len(rows) == most:
                    break
                if tokens is not None and rows and len(made.ids) > tokens:
                    break
                made.row, own = (own, None) if own is not None else (spare.pop(), None)
                holdable -= need
                tokens = None if tokens is None else tokens - len(made.ids)
                rows.append(made)
        if not rows:
            return None
        total = sum(allocator.round_up(len(row.ids)) for row in rows)
        if allocator.available < total:
            cache.evict(total - allocator.available)
        for made in rows:
            made.slots = allocator.alloc(len(made.ids))  # whole pages
            made.req.kv.side += made.slots
        return cls(rows, len(rows))

    def take_off(self) -> None:
        """The record is handed over."""
        self.stints = [row.req.stint for row in self.rows]

    def lives(self, at: int) -> bool:
        """False once the request of a row has ended or given its rows up: the result is nobody's."""
        req = self.rows[at].req
        return not req.finished and req.stint == self.stints[at]

    @property
    def wasted(self) -> int:
        """Rows whose result is nobody's."""
        return sum(not self.lives(at) for at in range(len(self.rows)))

    def get_model_worker_batch(self, step: int, behind: int = 0) -> ModelWorkerBatch:
        """The frozen record: every row is told its whole table, since rows are borrowed."""
        rows, count = self.rows, len(self.rows)
        return ModelWorkerBatch(
            step=step,
            behind=behind,
            forward_mode="extend",
            input_ids=[token for row in rows for token in row.ids],
            req_pool_indices=[row.row for row in rows],
            seq_lens=[len(row.prefix) + len(row.ids) for row in rows],
            prefix_lens=[len(row.prefix) for row in rows],
            extend_lens=[len(row.ids) for row in rows],
            out_cache_loc=[slot for row in rows for slot in row.slots[: len(row.ids)]],
            prefix_locs=[row.prefix for row in rows],
            sample=[False] * count,
            params=[_GREEDY] * count,
            seeds=[row.req.seed for row in rows],
            positions_drawn=[0] * count,
            banned=[[]] * count,
            score_targets=[row.targets for row in rows],
        )

    def undo(self) -> None:
        """It was not computed: slots back; its options are still to be scored."""
        for at, row in enumerate(self.rows):
            if self.lives(at):
                row.req.kv.drop(row.slots)

    def process(self, result: ModelWorkerOutput) -> list[Req]:
        """Take the scores, free what is not held; requests with a row that was not finite come back."""
        failed = []
        for at, row in enumerate(self.rows):
            req = row.req
            if not self.lives(at) or req.finished:
                continue  # aborted or retracted meanwhile: its slots are back already
            req.last_step = result.step
            scores = result.scores[at]
            if scores is None:
                failed.append(req)
                continue
            own = len(req.selected.options[row.index]) - row.alone
            if req.selected.note(row.index, row.alone, scores[len(scores) - own :]):
                req.kv.hold(row.slots, len(row.ids))
            else:
                req.kv.drop(row.slots)
        return failed


def _make_row(req: Req, index: int, alone: bool, page_size: int) -> _Row:
    option = req.selected.options[index]
    if alone:
        return _Row(req, index, True, [], option[:-1], option[1:], -1)
    base = req.prefill_len
    ids = [*req.prompt[base:].tolist(), *option]
    return _Row(req, index, False, req.kv.slots[:base], ids[:-1], ids[1:], -1)
