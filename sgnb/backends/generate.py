"""``Engine.generate``: prompts in, dicts out, over the same wire as programs.

Notebook process, on the caller's thread. Each prompt is Init + Extend + Decode in a session of its own; all of a list
are queued before the first is waited for, so they are batched. An interrupt aborts what runs and releases.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sgnb.backends.base import BackendEvent, Delta, Done, Failed
from sgnb.backends.wire import SinkWaiter
from sgnb.config import MAX_N, MAX_PROMPT_BYTES
from sgnb.errors import LimitError, SgnbError
from sgnb.messages import Abort, Block, Decode, Extend, Ids, Init, Label, Part, Release, Text
from sgnb.sampling_params import SamplingParams
from sgnb.transport import encode

if TYPE_CHECKING:
    from sgnb.backends.engine import Engine

Prompt = str | Sequence[str]
_LABEL = Label(name="@generate")


class Generation:
    """One call of ``Engine.generate``. Building it checks everything; nothing is queued before ``run``."""

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt | None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
        sampling_params: Any,
    ) -> None:
        if (prompt is None) == (input_ids is None):
            raise LimitError("generate takes either a prompt or input_ids")
        self._engine = engine
        info = engine.client.info
        assert info is not None
        self._vocab_size = info.vocab_size
        if input_ids is None:
            self._many = not isinstance(prompt, str)
            if self._many and (not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray)):
                raise LimitError(f"a prompt must be a str or a list of them, not {type(prompt).__name__}")
            prompts: list[Any] = [prompt] if isinstance(prompt, str) else list(prompt or [])
            self._parts: list[Part] = [self._text(text) for text in prompts]
        else:
            rows = _row(input_ids)
            self._many = bool(rows) and isinstance(rows[0], Sequence) and not isinstance(rows[0], str)
            self._parts = [self._ids(row) for row in (rows if self._many else [rows])]
        self._params = self._all_params(sampling_params)
        self._take_samples()
        self._events: queue.SimpleQueue[BackendEvent] = queue.SimpleQueue()
        self._sids = [engine.new_sid() for _ in self._parts]
        self._rids = [engine.new_rid() for _ in self._parts]

    def _text(self, text: Any) -> Text:
        if not isinstance(text, str):
            raise LimitError(f"a prompt must be a str, not {type(text).__name__}")
        if len(text.encode(errors="replace")) > MAX_PROMPT_BYTES:
            raise LimitError(
                f"the prompt has {len(text):,} characters, at most {MAX_PROMPT_BYTES:,} bytes are allowed"
            )
        return Text(text=text, literal=False)

    def _ids(self, row: Any) -> Ids:
        ids = _row(row)
        for place, token in enumerate(ids):
            if type(token) is not int or not 0 <= token < self._vocab_size:
                raise LimitError(
                    f"input_ids[{place}] is {token!r}; legal token ids are 0..{self._vocab_size - 1}"
                )
        if len(ids) > MAX_PROMPT_BYTES:
            raise LimitError(f"input_ids has {len(ids):,} tokens, at most {MAX_PROMPT_BYTES:,} are allowed")
        return Ids(ids=ids)

    def _all_params(self, given: Any) -> list[SamplingParams]:
        if isinstance(given, (list, tuple)):
            if len(given) != len(self._parts):
                raise LimitError(f"{len(given)} sampling_params for {len(self._parts)} prompts")
            made = [_params(one) for one in given]
            self._counts = [_count(one) for one in given]
        else:
            made = [_params(given)] * len(self._parts)
            self._counts = [_count(given)] * len(self._parts)
        for params in made:
            params.check_model(self._vocab_size)
        return made

    def _take_samples(self) -> None:
        """Each prompt ``n`` times; the samples of one prompt are next to each other, as in SGLang. Seeds count on."""
        if all(count == 1 for count in self._counts):
            return
        self._many = True
        parts, params = self._parts, self._params
        self._parts, self._params = [], []
        for part, one, count in zip(parts, params, self._counts, strict=True):
            for sample in range(count):
                seed = None if one.seed is None else (one.seed + sample) % 2**63
                self._parts.append(part)
                self._params.append(msgspec.structs.replace(one, seed=seed))

    def run(self) -> Any:
        """Queue all, wait for all; the dict or the list of dicts. The first failure is raised, the others are aborted."""
        client = self._engine.client
        number = client.number()
        incarnation = client.incarnation
        leave = [
            encode(Abort(incarnation=incarnation, rids=self._rids)),
            encode(Block(incarnation=incarnation, ops=[Release(sids=self._sids)])),
        ]
        blocks = [
            encode(
                Block(
                    incarnation=incarnation,
                    ops=[
                        Init(sid=sid),
                        Extend(sid=sid, parts=[part]),
                        Decode(rid=rid, sid=sid, params=params, label=_LABEL),
                    ],
                )
            )
            for sid, rid, part, params in zip(self._sids, self._rids, self._parts, self._params, strict=True)
        ]
        waiter = SinkWaiter(self._put)
        try:
            for block, rid, sid in zip(blocks, self._rids, self._sids, strict=True):
                client.submit(block, [rid], [sid], waiter)
            results = self._collect()
            leave = leave[1:]
        finally:
            while leave:  # a second interrupt must not skip it; both are idempotent
                try:
                    client.post(leave[0], number)
                    leave.pop(0)
                except KeyboardInterrupt:
                    continue
            client.forget(self._rids, self._sids)
            self._engine.note_state()
        return results if self._many else results[0]

    def _put(self, events: Sequence[BackendEvent]) -> None:
        for event in events:
            self._events.put(event)

    def _collect(self) -> list[dict[str, Any]]:
        texts: dict[str, list[str]] = {rid: [] for rid in self._rids}
        done: dict[str, Done] = {}
        while len(done) < len(self._rids):
            event = self._events.get()
            if isinstance(event, Delta):
                texts[event.rid].append(event.text)
            elif isinstance(event, Done):
                done[event.rid] = event
            elif isinstance(event, Failed):
                raise _fresh(event.error)
        return [_result("".join(texts[rid]), done[rid]) for rid in self._rids]


def _result(text: str, done: Done) -> dict[str, Any]:
    meta = dict(done.meta)
    prompt_ids, output_ids = meta.pop("prompt_ids", []), meta.pop("output_ids", [])
    return {"text": text, "prompt_ids": prompt_ids, "output_ids": output_ids, "meta_info": meta}


def _row(given: Any) -> list[Any]:
    """Token ids, or rows of them, of any sequence (a numpy array is one that must be asked differently)."""
    try:
        return list(given.tolist() if hasattr(given, "tolist") else given)
    except TypeError:
        raise LimitError(f"input_ids must be a list of token ids, not {type(given).__name__}") from None


def _params(given: Any) -> SamplingParams:
    if isinstance(given, SamplingParams):
        return given.check()
    if given is not None and not isinstance(given, Mapping):
        raise LimitError(f"sampling_params must be a dict, not {type(given).__name__}")
    return SamplingParams.make({key: value for key, value in dict(given or {}).items() if key != "n"})


def _count(given: Any) -> int:
    count = given.get("n", 1) if isinstance(given, Mapping) else 1
    if type(count) is not int or not 1 <= count <= MAX_N:
        raise LimitError(f"n must be a whole number in 1..{MAX_N}, not {count!r}")
    return count


def _fresh(error: SgnbError) -> SgnbError:
    """The same error without an old traceback: several callers may raise what ended one connection."""
    return error.with_traceback(None)
