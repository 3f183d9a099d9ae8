"""A join by KV against a join as text, on the real model: what it saves, and how far it is off.

    python tests/bench/bench_kv_join.py [--arms 4] [--tokens 48] [--read] [--model MODEL] [--dtype DTYPE]

Branches of one prompt generate (with ``--read``: read a text of about so many tokens, each another one, and say a word),
are joined, and the parent goes on. Printed for both ways, as medians over the
topics: prompt tokens computed after the join, seconds from the join to the first token behind it, and their ratio.
Then, for the KV join, the log-probabilities of the first token after it against those of the very same ids computed
exactly (the same state, rewound and its KV flushed): how often the likeliest token is the same, the mean difference
over the 20 likeliest, and their divergence.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import sgnb as sgl

TOPICS = ("sleeping well", "learning a language", "growing tomatoes")
TOP = 20


@sgl.function
def joined(s, topic, arms, tokens, method, read):
    """A question, tips from branches, joined."""
    s += f"Here is some short advice about {topic}, one tip a line, each written by somebody else.\n"
    branches = s.fork(arms)
    for number, branch in enumerate(branches):
        branch += f"Tip {number + 1}:"
        if read:
            branch += document(topic, number, tokens)
        branch += sgl.gen("tip", max_tokens=1 if read else tokens, ignore_eos=True) + "\n"
    branches.join("concate_and_append", method=method)


def document(topic: str, number: int, tokens: int) -> str:
    """A text of about ``tokens`` tokens (some 13 a sentence)."""
    lines = (f" Note {number}-{line} on {topic}: people say many things." for line in range(tokens // 13))
    return "".join(lines)


def main() -> None:
    """Both ways for each topic; prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arms", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--read", action="store_true")
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    args: dict[str, Any] = {} if options.model is None else {"model": options.model}
    launched = sgl.launch(name="bench-kv-join", max_total_tokens=16_384, dtype=options.dtype, **args)
    with launched as engine:
        engine.wait_ready(300)
        sides: dict[str, list[tuple[int, float]]] = {"kv": [], "text": []}
        distances = []
        for turn, topic in enumerate((TOPICS[0], *TOPICS)):
            for method in ("kv", "text") if turn % 2 else ("text", "kv"):
                state = joined.run(
                    topic,
                    options.arms,
                    options.tokens,
                    method,
                    options.read,
                    backend=engine,
                    temperature=0.0,
                )
                state.sync()
                mark = state.mark()
                began = time.perf_counter()
                state += "In short:" + sgl.gen(
                    "short", max_tokens=1, return_logprob=True, top_logprobs_num=TOP
                )
                meta = state.get_meta_info("short")
                seconds = time.perf_counter() - began
                computed = meta["prompt_tokens"] - meta["cached_tokens"] - meta.get("joined_tokens", 0)
                if turn:  # the first time everything is new
                    sides[method].append((computed, seconds))
                if method == "kv" and turn:
                    assert meta["joined_kv"] == "approximate"
                    distances.append(distance(meta, exact(engine, state, mark)))
                engine.flush_cache()
        report(options, sides, distances)


def exact(engine: Any, state: Any, mark: Any) -> dict[str, Any]:
    """The meta of the same generation from the same ids, with none of them cached."""
    state.rewind(mark)
    engine.flush_cache()
    state += "In short:" + sgl.gen("short", max_tokens=1, return_logprob=True, top_logprobs_num=TOP)
    meta: dict[str, Any] = state.get_meta_info("short")
    assert meta["joined_kv"] == "exact", meta
    return meta


def distance(found: dict[str, Any], right: dict[str, Any]) -> tuple[bool, float, float]:
    """(same likeliest token, mean difference of log-probabilities, divergence) over the likeliest of the exact side."""
    ours = {token: value for value, token, _ in found["output_top_logprobs"][0]}
    theirs = [(token, value) for value, token, _ in right["output_top_logprobs"][0]]
    floor = min(ours.values())
    pairs = [(value, ours.get(token, floor)) for token, value in theirs]
    same = max(ours, key=ours.__getitem__) == theirs[0][0]
    divergence = sum(math.exp(p) * (p - q) for p, q in pairs)
    return same, statistics.mean(abs(p - q) for p, q in pairs), divergence


def report(
    options: argparse.Namespace,
    sides: dict[str, list[tuple[int, float]]],
    distances: list[tuple[bool, float, float]],
) -> None:
    """Print them."""
    what = "read" if options.read else "generated"
    print(f"{options.arms} branches, {options.tokens} tokens {what}, medians over {len(distances)} topics")
    medians = {}
    for method, rows in sides.items():
        tokens = statistics.median(row[0] for row in rows)
        medians[method] = statistics.median(row[1] for row in rows)
        milliseconds = medians[method] * 1e3
        print(
            f"join as {method:<5} {tokens:6.0f} prompt tokens computed, first token after {milliseconds:7.1f} ms"
        )
    print(f"time, text over kv: {medians['text'] / medians['kv']:.2f}")
    same = sum(one[0] for one in distances)
    off, divergence = (statistics.mean(one[at] for one in distances) for at in (1, 2))
    print(f"against exact: the likeliest token is the same {same} of {len(distances)} times;")
    print(f"log-probabilities of the {TOP} likeliest differ by {off:.2f}, divergence {divergence:.3f}")


if __name__ == "__main__":
    main()
