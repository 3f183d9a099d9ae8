"""A runner without a model: the next token is a hash of the whole prefix. For tests of everything around the model.

Scheduler process, chosen by ``runner="stub"``; no torch. Its KV pool keeps, for each slot, the token, its position and
the hash of the prefix that ends there, and every step re-reads every slot of every row: a slot that was freed too early,
shared wrongly or given twice raises SlotViolation at once, with the row and position. Must not grow features a real
runner lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.model_runner import BaseRunner, Progress, RowSpan, check_batch
from sgnb.engine.model_store import ModelPath
from sgnb.errors import EngineError
from sgnb.messages import ModelWorkerBatch, ModelWorkerOutput, TokenLogprob
from sgnb.sampling_params import SamplingParams

STUB_VOCAB = 259
"""256 bytes, then ``<|im_start|>``, ``<|im_end|>`` (ends a generation), ``<|endoftext|>``."""
STUB_EOS = 257
STUB_CONTEXT = 8192
STUB_SLOTS = 65_536
_EOS_EVERY = 211
_TEXT = b"  etaoinshrdlucmfwypvbgk etaoinshrdlu etaoin.,"
_MASK = (1 << 64) - 1
COPIED = 0x5A5A_0000_0000
"""Goes into the hash of a prefix at each token whose KV was copied from another position."""


class SlotViolation(EngineError):
    """A slot did not hold the token that its reader wrote or was promised: a fault of allocator, cache or scheduler."""


def mix(value: int) -> int:
    """SplitMix64's finaliser: 64 well-spread bits of any int."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def prefix_hash(ids: list[int], start: int = 0) -> int:
    """The hash of a prefix, continued from ``start`` (0: the empty prefix)."""
    for token in ids:
        start = mix(start ^ (token + 1))
    return start


def stub_score(state: int, token: int) -> float:
    """The log-probability of ``token`` after the prefix with hash ``state``, when it is scored: between -9 and -1."""
    return -1.0 - (mix(state ^ mix(token + 1)) & 0xFFFF) / 8192


class StubRunner(BaseRunner):
    """See the module. ``nan_rows`` is for tests: called with (batch, row), True makes that row non-finite."""

    def __init__(
        self, args: EngineArgs, model: ModelPath | None = None, progress: Progress | None = None
    ) -> None:
        self.vocab_size = STUB_VOCAB
        self.context_length = args.context_length or STUB_CONTEXT
        self.max_total_tokens = args.max_total_tokens or STUB_SLOTS
        self.max_running = args.max_running_requests
        self.dtype, self.device, self.attention_backend = "stub", "cpu", "stub"
        self.rotates = True
        self.nan_rows: Callable[[ModelWorkerBatch, int], bool] = lambda batch, row: False
        self.steps = 0
        self._step_seconds = args.stub_step_seconds
        slots = self.max_total_tokens + 1
        self._token = np.full(slots, -1, dtype=np.int64)
        self._position = np.full(slots, -1, dtype=np.int64)
        self._hash = np.zeros(slots, dtype=np.uint64)
        self._copied = np.zeros(slots, dtype=np.int8)
        pool = (self._token, self._position, self._hash, self._copied)
        self.slot_bytes = sum(array.itemsize for array in pool)
        """1: copied to another position and not read since; 2: read, and part of that prefix from then on."""
        shape = (self.max_running, self.context_length)
        self._locs = np.zeros(shape, dtype=np.int64)
        self._expected = np.zeros(shape, dtype=np.uint64)
        self._known = [0] * self.max_running
        self._places = np.arange(self.context_length)
        if progress:
            progress("weights", 1, 1)
            progress("kv", self.max_total_tokens, self.max_total_tokens)

    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """One step; raises SlotViolation if a slot does not hold what its row needs."""
        started = time.perf_counter()
        spans = check_batch(batch, self)
        for span in spans:
            self._read_prefix(batch, span)
        for span in spans:
            self._write(batch, span)
        for span in spans:  # after all writes: a slot given to two rows is caught in the step that does it
            self._verify(span, span.seq_len)
        if self._step_seconds:  # what it computes itself is part of the step
            time.sleep(max(0.0, started + self._step_seconds - time.perf_counter()))
        computed = time.perf_counter()
        ids, logprobs, bad = [], [], []
        for span in spans:
            token, logprob = -1, None
            if self.nan_rows(batch, span.row):
                bad.append(span.row)
            elif batch.sample[span.row]:
                token = self._draw(batch, span)
                if token < 0:
                    bad.append(span.row)
                elif batch.params[span.row].return_logprob or batch.params[span.row].top_logprobs_num:
                    logprob = self._logprob(span, token, batch.params[span.row])
            ids.append(token)
            logprobs.append(logprob)
        self.steps += 1
        scores = [None if span.row in bad else self._score(batch, span) for span in spans]
        return ModelWorkerOutput(
            step=batch.step,
            next_token_ids=ids,
            logprobs=logprobs,
            bad_rows=bad,
            forward_seconds=computed - started,
            sample_seconds=time.perf_counter() - computed,
            scores=scores if batch.score_targets else [],
        )

    def move_slots(self, src: list[int], dst: list[int]) -> None:
        """See BaseRunner. What is left behind can no longer be read."""
        columns = ((self._token, -1), (self._position, -1), (self._hash, 0), (self._copied, 0))
        for column, empty in columns:
            content = column[src]
            column[src] = empty
            column[dst] = content

    def copy_rotated(self, src: list[int], dst: list[int], shift: list[int]) -> None:
        """See BaseRunner. A copy belongs to the prefix in which it is read first; what a model would draw after it is
        not what it would draw after the same ids computed, so neither is what is drawn here."""
        if (self._position[src] < 0).any():
            raise SlotViolation(f"slots without KV are copied: {src[:8]}")
        token, position = self._token[src], self._position[src] + np.array(shift)
        self._token[dst], self._position[dst] = token, position
        self._copied[dst] = 1

    def close(self) -> None:
        """Nothing to free."""

    # ------------------------------------------------------------ slots

    def _read_prefix(self, batch: ModelWorkerBatch, span: RowSpan) -> None:
        """Take over ``prefix_locs``, whose slots must hold one unbroken prefix; else the row's own table must fit."""
        idx, locs = span.req_pool_idx, batch.prefix_locs[span.row]
        if locs is None and span.prefix_len == 0:
            locs = []
        if locs is None:
            if self._known[idx] != span.prefix_len:
                raise SlotViolation(
                    f"step {batch.step} row {span.row}: its table holds {self._known[idx]} tokens, "
                    f"the batch says prefix {span.prefix_len}"
                )
            self._verify(span, span.prefix_len)
            return
        state = 0
        for position, loc in enumerate(locs):
            copied = self._copied[loc]
            state = mix(state ^ (int(self._token[loc]) + 1) ^ (COPIED if copied else 0))
            if copied == 1 and self._position[loc] == position:
                self._copied[loc], self._hash[loc] = 2, state
            if self._position[loc] != position or int(self._hash[loc]) != state:
                raise SlotViolation(
                    f"step {batch.step} row {span.row}: slot {loc} must hold token {position} of the prefix; "
                    f"found token {self._token[loc]} of position {self._position[loc]}"
                )
            self._expected[idx, position] = state
        self._locs[idx, : len(locs)] = locs
        self._known[idx] = len(locs)

    def _write(self, batch: ModelWorkerBatch, span: RowSpan) -> None:
        idx = span.req_pool_idx
        state = int(self._expected[idx, span.prefix_len - 1]) if span.prefix_len else 0
        before = self._locs[idx, : span.prefix_len]
        own = set(before.tolist()) if span.extend_len > 1 else None
        for i in range(span.extend_len):
            token, loc = batch.input_ids[span.start + i], batch.out_cache_loc[span.start + i]
            if loc in own if own is not None else (before == loc).any():
                raise SlotViolation(
                    f"step {batch.step} row {span.row}: new token {span.prefix_len + i} would overwrite slot {loc} "
                    "of its own prefix"
                )
            position = span.prefix_len + i
            state = mix(state ^ (token + 1))
            self._token[loc], self._position[loc], self._hash[loc] = token, position, state
            self._copied[loc] = 0
            self._locs[idx, position], self._expected[idx, position] = loc, state
        self._known[idx] = span.seq_len

    def _verify(self, span: RowSpan, length: int) -> None:
        locs = self._locs[span.req_pool_idx, :length]
        right = self._hash.take(locs) == self._expected[span.req_pool_idx, :length]
        right &= self._position.take(locs) == self._places[:length]
        if not right.all():
            position = int(np.argmin(right))
            raise SlotViolation(
                f"row {span.row}: slot {locs[position]} no longer holds token {position}: found token "
                f"{self._token[locs[position]]} of position {self._position[locs[position]]}"
            )

    # ------------------------------------------------------------ tokens

    def _draw(self, batch: ModelWorkerBatch, span: RowSpan) -> int:
        """A letter, mostly; the end now and then; -1 when everything is masked."""
        row = span.row
        state = int(self._expected[span.req_pool_idx, span.seq_len - 1])
        if not batch.params[row].greedy:
            state = mix(state ^ mix(batch.seeds[row] ^ mix(batch.positions_drawn[row])))
        banned = set(batch.banned[row])
        mask = self._mask(batch, row)
        for attempt in range(32):
            bits = mix(state + attempt)
            token = STUB_EOS if bits % _EOS_EVERY == 0 else _TEXT[(bits >> 16) % len(_TEXT)]
            if token not in banned and (mask is None or mask[token]):
                return token
        allowed = [t for t in range(STUB_VOCAB) if t not in banned and (mask is None or mask[t])]
        return allowed[mix(state) % len(allowed)] if allowed else -1

    def _score(self, batch: ModelWorkerBatch, span: RowSpan) -> list[float] | None:
        targets = batch.score_targets[span.row] if batch.score_targets else None
        if targets is None:
            return None
        states = self._expected[span.req_pool_idx, span.prefix_len : span.seq_len].tolist()
        return [stub_score(state, token) for state, token in zip(states, targets, strict=True)]

    def _mask(self, batch: ModelWorkerBatch, row: int) -> list[bool] | None:
        if batch.bitmask is None:
            return None
        width = 4 * -(-STUB_VOCAB // 32)
        bits = np.frombuffer(batch.bitmask, dtype=np.uint8)[row * width : (row + 1) * width]
        return [bool(b) for b in np.unpackbits(bits, bitorder="little")]

    def _logprob(self, span: RowSpan, token: int, params: SamplingParams) -> TokenLogprob:
        """Made up, but a function of the prefix alone: the token first, the alternatives below it."""
        state = int(self._expected[span.req_pool_idx, span.seq_len - 1])
        first = -1.0 - (state & 0xFFFF) / 65_536
        others = [t for t in dict.fromkeys(_TEXT) if t != token][: max(0, params.top_logprobs_num - 1)]
        top = [(first, token)] + [(first - 1 - i / 8, t) for i, t in enumerate(others)]
        return TokenLogprob(id=token, logprob=first, top=top[: params.top_logprobs_num])
