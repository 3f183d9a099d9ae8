"""What a constraint costs: ``python tests/bench/bench_grammar.py [--model] [--streams 8] [--tokens 48]``.

An engine's first constraint (the library is loaded for it), a new one and a known one, by the clock of a caller; then the
mask of one row and step and the acceptance of one token, in the scheduler's process (CPU time of the thread, the vocabulary
of the embedded model). With ``--model`` also its tokens a second with and without a pattern, in turn in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import psutil

from sgnb.backends.engine import Engine, launch
from sgnb.constraints import Constraint
from sgnb.engine import model_store
from sgnb.engine.grammar.base import GrammarState, Vocabulary
from sgnb.engine.grammar.xgrammar_backend import XGrammarBackend
from sgnb.engine.tokenizer.tokenizer import load_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
}
KINDS = {
    "regex": "[A-Z][a-z]{2,12}( [A-Z][a-z]{2,12}){0,3}: [0-9]{1,3}",
    "json_schema": json.dumps(SCHEMA),
    "ebnf": 'root ::= pair (", " pair)*\npair ::= [a-z]+ "=" [0-9]+\n',
}


def seconds(engine: Engine, **constraint: str) -> float:
    """Until a generation of one token under a constraint is there."""
    began = time.perf_counter()
    engine.generate("x", sampling_params={"temperature": 0, "max_new_tokens": 1, **constraint})
    return time.perf_counter() - began


def waits() -> None:
    """Print what a caller waits for."""
    with launch(runner="stub", name="bench-grammar") as engine:
        engine.wait_ready(120)
        plain = statistics.median(seconds(engine) for _ in range(5))
        scheduler = psutil.Process(engine.client.welcome.scheduler_pid)
        before = scheduler.memory_info().rss
        first = seconds(engine, regex="first[0-9]")
        new = statistics.median(seconds(engine, regex=f"new{n}[0-9]{{3}}") for n in range(9))
        schema = statistics.median(
            seconds(engine, json_schema=json.dumps({**SCHEMA, "title": str(n)})) for n in range(5)
        )
        known = statistics.median(seconds(engine, regex="first[0-9]") for _ in range(9))
        grown = (scheduler.memory_info().rss - before) >> 20
        worker = sum(child.memory_info().rss for child in scheduler.children()) >> 20
    print(
        f"one token: without {plain * 1e3:.0f} ms; first constraint of the engine {first * 1e3:.0f} ms, a new one"
        f" {new * 1e3:.0f} ms, a new schema {schema * 1e3:.0f} ms, a known one {known * 1e3:.0f} ms"
    )
    print(f"memory: worker {worker} MB, scheduler process +{grown} MB")


def masks() -> None:
    """Print the cost of a row in the scheduler's process."""
    tokenizer = load_tokenizer(model_store.resolve("smollm2-135m-instruct"))
    size = len(tokenizer.table)
    special = frozenset(token.id for token in tokenizer.added)
    vocabulary = Vocabulary(tokenizer.table, size, special, tokenizer.eos_token_ids)
    backend = XGrammarBackend(vocabulary)
    print(
        f"{'of one row':>12} {'mask, median us':>16} {'p95':>7} {'accept, median us':>18}   vocabulary {size:,}"
    )
    for kind, text in KINDS.items():
        compiled = backend.compile(Constraint(kind, text))  # type: ignore[arg-type]
        fills, accepts = [], []
        for walk in range(20):
            state = GrammarState(compiled, frozenset(vocabulary.eos_token_ids), -(-size // 32))
            for at in range(30):
                if state.done or state.error is not None:
                    break
                matcher, mask = state._matcher, state.mask
                began = time.thread_time()
                matcher.fill(mask)
                fills.append(time.thread_time() - began)
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                allowed = np.flatnonzero(bits).tolist()
                if not allowed:
                    break
                began = time.thread_time()
                matcher.accept(allowed[(7919 * (walk + 1) * (at + 1)) % len(allowed)])
                accepts.append(time.thread_time() - began)
        fills.sort()
        print(
            f"{kind:>12} {statistics.median(fills) * 1e6:>16.0f} {fills[int(len(fills) * 0.95)] * 1e6:>7.0f}"
            f" {statistics.median(accepts) * 1e6:>18.0f}"
        )
    backend.close()


def throughput(streams: int, tokens: int) -> None:
    """Print tokens a second on the embedded model, with and without a schema, in turn."""
    rates: dict[str, list[float]] = {"without": [], "with a pattern": []}
    free: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    with launch(name="bench-grammar-model") as engine:
        engine.wait_ready(300)
        prompts = [f"Person number {n} as text: " for n in range(streams)]
        engine.generate(prompts, sampling_params={**free, "max_new_tokens": 2, "regex": "[a-z ]{400}"})
        for _ in range(5):
            for name, more in (("without", {}), ("with a pattern", {"regex": "[a-z ]{400}"})):
                began = time.perf_counter()
                done = engine.generate(prompts, sampling_params={**free, **more})
                count = sum(len(one["output_ids"]) for one in done)
                rates[name].append(count / (time.perf_counter() - began))
    plain, bound = (statistics.median(values) for values in rates.values())
    print(
        f"{streams} streams: {plain:.1f} tokens/s without, {bound:.1f} with a pattern: {bound / plain:.2f} of it"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    waits()
    masks()
    if options.model:
        throughput(options.streams, options.tokens)


if __name__ == "__main__":
    main()
