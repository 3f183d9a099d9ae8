"""What becomes of a program: its graph, how it runs, and what each pass does to its blocks.

Notebook process; used by ``sgnb.explain`` and the magics. The blocks are recorded without an engine (``runtime.tracing``),
so a block here is one of a run whose generations answer with their names.
"""

from __future__ import annotations

from typing import Any

from sgnb.lang.ir import Graph
from sgnb.lang.passes import PASSES, PassRecord, optimize
from sgnb.lang.position import internal
from sgnb.runtime.core import Core
from sgnb.runtime.events import RunStarted
from sgnb.runtime.function import SglFunction

internal(__name__)


def explain_data(program: SglFunction, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The explanation as plain data: ``name, compiled, reason, graph, graph_text, blocks, error``."""
    made = program.program
    out: dict[str, Any] = {
        "name": program.__name__,
        "compiled": made.compiled is not None,
        "reason": made.reason,
        "graph": None if made.graph is None else made.graph.data(),
        "graph_text": "" if made.graph is None else made.graph.text(),
        "blocks": [],
        "error": "",
    }
    records: list[Any] = []
    try:
        trace = program.trace(*args, passes=PASSES, pass_records=records, **kwargs)
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {getattr(error, 'message', error)}"
        return out
    out["trace"] = list(trace.lines())
    out["blocks"] = [[_record_data(record) for record in block] for block in records]
    return out


def run_data(core: Core) -> dict[str, Any]:
    """The same of a run, from the blocks it recorded: nothing is executed again."""
    started = next((e.event for e in core.log.since(0) if isinstance(e.event, RunStarted)), None)
    graph = started.graph if started is not None and isinstance(started.graph, Graph) else None
    out: dict[str, Any] = {
        "name": core.title,
        "compiled": started is not None and not started.eager_reason,
        "reason": "" if started is None else started.eager_reason,
        "graph": None if graph is None else graph.data(),
        "graph_text": "" if graph is None else graph.text(),
        "blocks": [],
        "error": "",
    }
    for ops in core.kept_blocks:
        records: list[PassRecord] = []
        optimize(ops, core.passes, records)
        out["blocks"].append([_record_data(record) for record in records])
    return out


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
