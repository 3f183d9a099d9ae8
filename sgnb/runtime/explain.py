"""What becomes of a program: its graph, how it runs, and what each pass does to its blocks.

Notebook process; used by ``sgnb.explain`` and the magics. The blocks are recorded without an engine (``runtime.tracing``),
so a block here is one of a run whose generations answer with their names.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Mapping
from typing import Any

from sgnb.errors import ProgramTypeError, a_type_of
from sgnb.lang.ir import Graph
from sgnb.lang.passes import PASSES, PassRecord, optimize
from sgnb.lang.position import here, internal
from sgnb.lang.stages import stages_of
from sgnb.runtime.core import Core
from sgnb.runtime.events import Entry, GenDelta, GenDone, GenFailed, GenQueued, RunStarted, StateFailed
from sgnb.runtime.function import SglFunction

internal(__name__)

MAX_LINES = 400
MAX_CHARS = 400


def not_taken(called: str, given: object, wanted: str) -> ProgramTypeError:
    """The error of a call that was given something else than ``wanted``."""
    return ProgramTypeError(
        f"{called}() takes {wanted}, not {a_type_of(given)}.",
        hint="A program is a function below @sgl.function; running it gives a state.",
        position=here(),
    )


def explain_data(program: SglFunction, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The explanation as plain data: ``name, compiled, reason, graph, graph_text, blocks, error``, and for the graph view
    what ``lang.stages`` makes of it."""
    if not isinstance(program, SglFunction):
        raise not_taken("explain", program, "a program")
    made = program.program
    out = _head(program.__name__, made.graph, made.compiled is not None, made.reason)
    records: list[Any] = []
    try:
        trace = program.trace(*args, passes=PASSES, pass_records=records, **kwargs)
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {getattr(error, 'message', error)}"
        out["errors"] = [_error_data(error)]
        return out | stages_of([], PASSES, made.graph, times=_times())
    out["trace"] = list(trace.lines())
    out["blocks"] = [[_record_data(record) for record in block] for block in records]
    return out | stages_of(trace.state.core.kept_blocks, PASSES, made.graph, times=_times())


def run_data(core: Core) -> dict[str, Any]:
    """The same of a run, from the blocks it recorded: nothing is executed again. ``progress``: how far each request is."""
    started = next((e.event for e in core.log.since(0) if isinstance(e.event, RunStarted)), None)
    graph = started.graph if started is not None and isinstance(started.graph, Graph) else None
    reason = "" if started is None else started.eager_reason
    out = _head(core.title, graph, not reason, reason) | {"cell": core.cell}
    for ops in core.kept_blocks:
        records: list[PassRecord] = []
        optimize(ops, core.passes, records)
        out["blocks"].append([_record_data(record) for record in records])
    out["progress"] = progress_of(core.log.since(0))
    errors = [e.event.error for e in core.log.since(0) if isinstance(e.event, GenFailed | StateFailed)]
    out["errors"] = list({data["text"]: data for data in map(_error_data, errors)}.values())
    return out | stages_of(core.kept_blocks, core.passes, graph, times=_times())


def text_data(name: str, graph: Graph | None, error: BaseException | None = None) -> dict[str, Any]:
    """The same of a program that did not run: its static graph, or the mistake in its text."""
    out = _head(name, graph, error is None, "")
    if error is not None:
        out["errors"] = [_error_data(error)]
    return out | stages_of([], PASSES, graph, times=_times())


def progress_of(
    entries: Iterable[Entry], before: Mapping[str, list[Any]] | None = None
) -> dict[str, list[Any]]:
    """Request → ``[state, tokens, limit]``, counted on from ``before``; ``state`` in queued, running, done, failed."""
    out = {rid: list(told) for rid, told in (before or {}).items()}
    for entry in entries:
        match entry.event:
            case GenQueued(rid=rid, max_new_tokens=limit):
                out[rid] = ["queued", 0, limit]
            case GenDelta(rid=rid, tokens=tokens) if rid in out:
                out[rid][0] = "running"
                out[rid][1] += tokens
            case GenDone(rid=rid) if rid in out:
                out[rid][0] = "done"
            case GenFailed(rid=rid) if rid in out:
                out[rid][0] = "failed"
    return out


def _head(name: str, graph: Graph | None, compiled: bool, reason: str) -> dict[str, Any]:
    return {
        "name": name,
        "cell": "",
        "compiled": compiled,
        "reason": reason,
        "graph": None if graph is None else graph.data(),
        "graph_text": "" if graph is None else graph.text(),
        "source": _source(graph),
        "blocks": [],
        "errors": [],
        "progress": {},
        "error": "",
    }


def _source(graph: Graph | None) -> dict[str, str]:
    """Line number → text, of the lines of the graph."""
    if graph is None:
        return {}
    numbers = sorted({node.span.line for node in graph.walk()})[:MAX_LINES]
    return {str(n): linecache.getline(graph.filename, n).rstrip("\n")[:MAX_CHARS] for n in numbers}


def _error_data(error: BaseException) -> dict[str, Any]:
    position = getattr(error, "position", None)
    return {
        "line": 0 if position is None else position.line,
        "text": f"{type(error).__name__}: {getattr(error, 'message', error)}",
    }


def _times() -> bool:
    """False where output must be byte-stable."""
    return os.environ.get("SGNB_DETERMINISTIC", "") in ("", "0")


def _record_data(record: PassRecord) -> dict[str, Any]:
    return {
        "pass": record.name,
        "before": record.before,
        "after": record.after,
        "changed": record.changed,
        "why": record.rule,
    }


def explain(program: SglFunction, *args: Any, **kwargs: Any) -> str:
    """How ``program`` runs, for people. Arguments that are not given are their names in braces."""
    data = explain_data(program, *args, **kwargs)
    lines = [data["graph_text"].rstrip() or f"program {data['name']}"]
    lines.append("runs compiled" if data["compiled"] else f"runs eagerly: {data['reason']}")
    for number, block in enumerate(data["blocks"], 1):
        lines.append(f"block {number}")
        for record in block:
            size = f"{record['before']} → {record['after']}"
            verb = "did" if record["changed"] else "nothing"
            lines.append(f"  {record['pass']:<18}{size:<10}{verb}: {record['why']}")
    lines += data.get("trace", [])
    if data["error"]:
        lines.append(f"not traced: {data['error']}")
    return "\n".join(lines) + "\n"
