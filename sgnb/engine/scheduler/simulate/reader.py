"""The script of a recording: its events turned back into messages and drawn tokens.

Role: ``from_recording``, for the command and the tests. Runs in a process of its own. Plays nothing: see ``play``; what a
script is, and how a recorded end is made to happen again, is told in ``script``.

With a window, what came before it since the last snapshot is part of the script too (it made the cache what it was), but
not of the figures; what came after it is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from sgnb.engine.scheduler.req import derive_seed
from sgnb.engine.scheduler.simulate.script import (
    CUT,
    END,
    Compiled,
    Input,
    Message,
    Output,
    Scores,
    Script,
    plain_params,
    unpack,
)
from sgnb.errors import RecordingError
from sgnb.messages import (
    AbortReqs,
    ClientGone,
    InputEvent,
    JoinPart,
    Label,
    OutputEvent,
    RequestEvent,
    SchedulerControl,
    SchedulerInput,
    SessionClose,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionJoin,
    SessionOpen,
    SessionSelect,
    Snapshot,
    StepEvent,
)
from sgnb.recording import Recording
from sgnb.sampling_params import SamplingParams

_ENDED_BY_TOKEN = frozenset({"eos", "stop", "grammar"})


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a recording, in seconds from its beginning; ``end`` None: to its end."""

    start: float = 0.0
    end: float | None = None

    def check(self) -> Window:
        """Itself; RecordingError when it is none."""
        if not 0 <= self.start < (math.inf if self.end is None else self.end):
            last = "its end" if self.end is None else f"{self.end:g} s"
            raise RecordingError(
                f"a part of a recording cannot go from {self.start:g} s to {last}",
                hint="Give --from and --to in seconds from the beginning, --from the smaller one.",
            )
        return self


def _snapshot_before(recording: Recording, window: Window) -> tuple[Snapshot, float]:
    """The last snapshot before the window, and when the window begins."""
    found = recording.snapshot()
    start = found.time + window.start
    for item in recording.items():
        if isinstance(item, Snapshot) and item.time <= start:
            found = item
    return found, start


def from_recording(recording: Recording, window: Window | None = None) -> Script:
    """The script of a recording, or of a part of it. RecordingError when nothing was asked in it."""
    window = (window or Window()).check()
    snapshot, start = _snapshot_before(recording, window)
    end = math.inf if window.end is None else start + window.end - window.start
    script = Script(
        name=recording.path.name,
        args=snapshot.args,
        context_length=snapshot.context_length,
        max_total_tokens=snapshot.max_total_tokens,
        snapshot=snapshot,
        counted_from=start - snapshot.time,
    )
    inputs: list[InputEvent] = []
    outputs: dict[str, OutputEvent] = {}
    admitted: set[str] = set()
    compiling: set[str] = set()
    for numbered in recording.events():
        if isinstance(numbered.event, StepEvent):
            script.measured.append(numbered.event)
        if numbered.seq <= snapshot.seq:
            continue
        match numbered.event:
            case InputEvent() as event if event.time < end:
                inputs.append(event)
            case OutputEvent() as event:
                outputs[event.rid] = event
            case StepEvent() as event if event.time < end:
                script.steps.append(event)
            case RequestEvent(state="admitted") as event:
                admitted.add(event.rid)
            case RequestEvent(state="compiling") as event:
                compiling.add(event.rid)
            case _:
                pass
    script.notes += recording.gaps() + _failures(script.steps)
    _Reader(script, snapshot, outputs, admitted, compiling).read(inputs)
    if window.start and script.outputs and not script.counted():
        last = recording.span()[1] - recording.span()[0]
        raise RecordingError(
            f"nothing was asked from {window.start:g} s on in {recording.path}, which lasts {last:.1f} s",
            hint="Give other values of --from and --to.",
        )
    if not script.outputs:
        raise RecordingError(
            f"{recording.path} has no request in it",
            hint="Begin the recording before the programs that are to be simulated.",
        )
    return script


def _failures(steps: list[StepEvent]) -> list[str]:
    """What a simulation does not do again of steps that were not computed; nothing if all were."""
    memory = sum(step.failed == "memory" for step in steps)
    failed = sum(bool(step.failed) for step in steps)
    if not failed:
        return []
    return [
        f"{failed} of {len(steps)} steps were not computed when recorded ({memory} ran out of memory): nobody knows"
        " whether other batches would have fit, so here every step succeeds"
    ]


class _Reader:
    """Turns events back into messages."""

    def __init__(
        self,
        script: Script,
        snapshot: Snapshot,
        outputs: dict[str, OutputEvent],
        admitted: set[str],
        compiling: set[str],
    ) -> None:
        self._script = script
        self._begin = snapshot.time
        self._snapshot = snapshot
        self._outputs = outputs
        self._admitted = admitted
        self._parent: dict[str, str] = {}
        self._family: dict[str, list[str]] = {}
        """Of each session: itself, what it was forked from, what was forked from it."""
        self._ended: dict[str, list[tuple[float, str]]] = {}
        """Of each session: (time, request) of its ends."""
        self._missing: dict[str, list[int]] = {}
        """Of each session: a last mark that the simulated one does not keep."""
        self._refused = 0
        self._compiling = compiling
        self._asked: set[str] = set()

    def read(self, inputs: list[InputEvent]) -> None:
        """Fill the script."""
        for session in self._snapshot.sessions:
            self._family[session.sid] = [session.sid]
        self._in_flight()
        for event in inputs:
            self._take(event)
        if self._refused:
            self._script.notes.append(f"{self._refused} requests were refused when recorded and are left out")
        count = self._script.unfinished = len(self._asked - self._outputs.keys())
        if count:
            self._script.notes.append(
                f"{count} request{'s' if count > 1 else ''} had not ended when the recording did: it is not known how much"
                " they would have drawn, so they go on to their limit"
            )

    def _in_flight(self) -> None:
        """What had not ended when the recording began asks again, with what it had drawn as part of its prompt."""
        known = {session.sid: len(session.marks) // 4 for session in self._snapshot.sessions}
        for req in self._snapshot.requests:
            if not req.sid or not req.marks or req.state == "scoring":
                self._script.notes.append(f"{req.rid} was under way when the recording began and is left out")
                continue
            left = max(0, req.params.max_new_tokens - req.completion_tokens)
            out = self._output(req.rid)
            del out.ids[: req.completion_tokens]
            message = self._decode_message(
                rid=req.rid,
                sid=req.sid,
                client=req.client,
                ids=unpack(req.marks)[known[req.sid] :],
                params=msgspec.structs.replace(req.params, max_new_tokens=left),
                label=req.label,
                priority=req.priority,
                output=out,
            )
            self._add(message, self._snapshot.time, 2 * self._snapshot.step, sid=req.sid)
            self._note_end(req.sid, req.rid)

    # ------------------------------------------------------------ events

    def _take(self, event: InputEvent) -> None:
        sid = event.sid
        match event.kind:
            case "open":
                self._family[sid] = [sid]
                message: Message = SessionOpen(sid=sid, client=event.client, extra_key=event.extra_key)
            case "extend" | "commit":
                ids = self._missing.pop(sid, []) + unpack(event.ids)
                kind = SessionExtend if event.kind == "extend" else SessionCommit
                message = kind(sid=sid, ids=ids)
            case "fork":
                self._fork(event)
                message = SessionFork(sid=sid, children=event.names)
            case "join":
                message = self._join(event)
            case "decode" | "select":
                made = self._request(event)
                if made is None:
                    # It is refused again, since it took a number in the order of arrival.
                    self._refused += 1
                    message = self._decode_message(
                        rid=event.rid,
                        sid="",
                        client=event.client,
                        ids=[],
                        params=SamplingParams(max_new_tokens=1),
                        label=event.label,
                        priority=0,
                        output=Output(event.rid),
                    )
                    self._add(message, event.time, event.step + event.landed, event.during)
                    return
                message = made
            case "close":
                message = SessionClose(sids=event.names)
            case "abort":
                message = AbortReqs(rids=event.names)
            case "compiled":
                if event.rid not in self._asked:
                    return  # it was asked for before the recording began, or refused
                message = Compiled(event.rid)
            case "gone":
                message = ClientGone(client=event.client)
            case _:
                args = {**event.knobs, **({"sid": sid} if sid else {})}
                message = SchedulerControl(client=event.client, id=0, verb=event.kind, args=args)
        self._add(message, event.time, event.step + event.landed, event.during, sid)
        if event.kind in ("decode", "select"):
            self._note_end(sid, event.rid)

    def _fork(self, event: InputEvent) -> None:
        for child in event.names:
            self._family[child] = [child, *self._family.get(event.sid, [event.sid])]
            if event.sid in self._missing:
                self._missing[child] = self._missing[event.sid]
            for above in self._family[child][1:]:
                self._family.setdefault(above, [above]).append(child)

    def _join(self, event: InputEvent) -> SessionJoin:
        """What a branch's simulated session lacks at its end is given to it before."""
        for branch in event.names:
            missing = self._missing.pop(branch, [])
            if missing:
                lacking = SessionExtend(sid=branch, ids=missing)
                self._add(lacking, event.time, event.step + event.landed, event.during, event.sid)
        parts = [
            JoinPart(sid=branch, skip=skip, ids=unpack(ids))
            for branch, skip, ids in zip(event.names, event.skips, event.options, strict=True)
        ]
        ids = self._missing.pop(event.sid, []) + unpack(event.ids)
        return SessionJoin(sid=event.sid, ids=ids, parts=parts)

    def _note_end(self, sid: str, rid: str) -> None:
        out = self._outputs.get(rid)
        if out is not None:
            self._ended.setdefault(sid, []).append((out.time, rid))

    def _add(self, message: Message, time: float, place: int, during: bool = False, sid: str = "") -> None:
        """A message waits for the newest end in its session's family that came before it."""
        ends = [
            end for name in self._family.get(sid, ()) for end in self._ended.get(name, ()) if end[0] <= time
        ]
        ended, rid = max(ends, default=(0.0, ""))
        self._script.inputs.append(
            Input(
                message,
                at=max(0.0, time - self._begin),
                after=(rid,) if rid else (),
                delay=time - ended if rid else 0.0,
                place=place,
                during=during,
            )
        )

    # ------------------------------------------------------------ requests

    def _output(self, rid: str, constrained: bool = False) -> Output:
        event = self._outputs.get(rid)
        if event is None:
            return Output(rid, constrained=constrained)
        ids = unpack(event.ids)
        if event.kept < len(ids) and event.type in ("eos", "stop", "grammar", "length", "context"):
            ids[event.kept] |= CUT
        if event.type in _ENDED_BY_TOKEN and not (constrained and event.type == "grammar") and ids:
            ids[-1] = END
        return Output(rid, ids, event.type, event.time - self._begin, event.step, constrained)

    def _request(self, event: InputEvent) -> SchedulerInput | None:
        out = self._outputs.get(event.rid)
        refused = out is not None and out.type == "error" and event.rid not in self._admitted
        if refused or (not event.ids and event.keep is None and not self._family.get(event.sid)):
            return None
        if event.kind == "select" and not event.options:
            return None
        ids, keep = unpack(event.ids), event.keep
        missing = self._missing.get(event.sid, [])
        if missing and (keep is None or event.kind == "select"):
            ids = missing + ids
        self._asked.add(event.rid)
        if event.kind == "select":
            return self._select_message(event, ids, keep)
        self._missing.pop(event.sid, None)
        by_token = out is not None and out.type in _ENDED_BY_TOKEN and not event.constrained
        if out is not None and by_token and out.kept and out.kept == len(out.ids) // 4:
            self._missing[event.sid] = unpack(out.ids)[-1:]
        output = self._output(event.rid, event.constrained)
        output.waits = event.rid in self._compiling
        return self._decode_message(
            rid=event.rid,
            sid=event.sid,
            client=event.client,
            ids=ids,
            params=event.params or SamplingParams(),
            label=event.label,
            priority=event.priority,
            output=output,
            keep=keep,
        )

    def _decode_message(
        self,
        *,
        rid: str,
        sid: str,
        client: int,
        ids: list[int],
        params: SamplingParams,
        label: Label,
        priority: int,
        output: Output,
        keep: int | None = None,
    ) -> SessionDecode:
        seed = self._script.add_output(output)
        return SessionDecode(
            rid=rid,
            sid=sid,
            client=client,
            ids=ids,
            params=plain_params(
                params.max_new_tokens,
                seed,
                output.constrained,
                params.logprob_start_len if params.return_logprob else -1,
            ),
            stops=[],
            stop_token_ids=[],
            eos_token_ids=[END],
            label=label,
            keep=keep,
            priority=priority,
        )

    def _select_message(self, event: InputEvent, ids: list[int], keep: int | None) -> SessionSelect:
        options = [unpack(option) for option in event.options]
        out = self._outputs.get(event.rid)
        output = self._output(event.rid)
        # A select's parameters are the scheduler's own, and so is its seed.
        seed = derive_seed(self._script.args.random_seed, event.rid)
        self._script.derived[seed] = output
        self._script.add_output(output)
        for at, option in enumerate(options):
            conditional = out.scores[at] if out is not None and at < len(out.scores) else [-1.0 - at]
            alone = out.unconditional[at] if out is not None and at < len(out.unconditional) else [0.0]
            if option:
                self._script.scores[seed, option[-1]] = Scores(len(option), conditional, alone, output)
        return SessionSelect(
            rid=event.rid,
            sid=event.sid,
            client=event.client,
            ids=ids,
            options=options,
            method=event.method,
            keep=keep,
            label=event.label,
            priority=event.priority,
        )
