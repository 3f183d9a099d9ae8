"""Compiles constraints in processes that can be killed: a warm one that forks, and a child for each constraint.

A child of the scheduler process, started by ``xgrammar_backend``. Run as a script: it imports xgrammar, numpy and the
standard library only, nothing of sgnb, and must stay so (it is warm in a second, and small when it forks). stdin is a Unix
socket: first comes the vocabulary, then one descriptor (SCM_RIGHTS) for each job. The child that is forked for it reads
the constraint there and answers there; it may use so much CPU time and so much memory beyond what the warm process has,
and the system ends it beyond that.

Frames are a length (4 bytes, big-endian) and JSON, or a compiled grammar's own JSON. On stdin: ``{"parent", "vocab",
"vocab_size", "stop_token_ids"}``, answered by ``{}`` once it is warm, or ``{"error"}``. A job: ``{"kind", "text",
"cpu_seconds", "memory_bytes", "step_seconds"}``, answered by ``k`` and the compiled grammar, or a sentence behind ``e``
(refused) or ``s`` (too slow to match).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy

_PR_SET_PDEATHSIG = 1
_WALK = 24
"""Tokens that a grammar is tried with before it is used."""
_CLOCK_FACTOR = 4
"""By the clock a job may take so many times its CPU time: the machine may have other work."""


class _StandIn(types.ModuleType):
    """A package that is named while another one loads, and never used: any attribute is an empty class or does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {}) if name[0].isupper() else lambda *args, **kwargs: None
        setattr(self, name, made)
        return made


@contextmanager
def _replaced(modules: dict[str, types.ModuleType | None]) -> Iterator[None]:
    """Those that are not loaded yet are these (None: cannot be imported) meanwhile."""
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: modules[name] for name in absent})  # type: ignore[misc]
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def load_library() -> Any:
    """xgrammar, in half a second of CPU instead of three, and 50 MB instead of 400.

    It imports torch and transformers, for the names of types and for masks as tensors, and we use neither: masks are numpy
    arrays here, vocabularies are bytes. So what is not loaded already is not loaded for it. No other thread may import
    torch or transformers at that moment: in the scheduler process the runner has done so long before, or never does.
    """
    with _replaced({"torch": None}):
        import tvm_ffi  # noqa: PLC0415, F401  its bridge to torch is optional: it asks whether there is one
    with _replaced({"torch": _StandIn("torch"), "transformers": _StandIn("transformers")}):
        import xgrammar  # noqa: PLC0415  slow, and only for who constrains
    return xgrammar


def read_frame(sock: socket.socket) -> bytes:
    """One frame; empty when the other side has ended."""
    head = _read(sock, 4)
    return _read(sock, struct.unpack(">I", head)[0]) if head else b""


def _read(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def write_frame(sock: socket.socket, data: bytes) -> None:
    """Send one frame."""
    sock.sendall(struct.pack(">I", len(data)) + data)


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit(cpu_seconds: float, memory_bytes: int) -> None:
    """From now on. The default action of both timers' signals ends the process, whatever runs in it."""
    for kind, number, seconds in (
        (signal.ITIMER_PROF, signal.SIGPROF, cpu_seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, _CLOCK_FACTOR * cpu_seconds),
    ):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(kind, seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            warm = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (warm + memory_bytes, warm + memory_bytes))


def slow_token(library: Any, grammar: Any, words: int, seconds: float) -> int:
    """Walk through the grammar a little way; the number of the first token whose mask takes too long, or -1."""
    matcher = library.GrammarMatcher(grammar)
    mask = numpy.zeros((1, words), dtype=numpy.int32)
    for number in range(_WALK):
        started = time.process_time()
        limited = matcher.fill_next_token_bitmask(mask)
        if time.process_time() - started > seconds:
            return number
        if not limited:
            mask[:] = -1
        allowed = numpy.flatnonzero(numpy.unpackbits(mask.view(numpy.uint8), bitorder="little"))
        if not len(allowed) or not matcher.accept_token(int(allowed[number * 7919 % len(allowed)])):
            return -1
        if matcher.is_terminated():
            return -1
    return -1


def compile_job(library: Any, compiler: Any, job: dict[str, Any]) -> bytes:
    """The answer to one job. A grammar that compiles but is slow to match would stop the engine: it is refused too."""
    try:
        if job["kind"] == "regex":
            grammar = compiler.compile_regex(job["text"])
        elif job["kind"] == "json_schema":
            grammar = compiler.compile_json_schema(job["text"], any_whitespace=False)
        else:
            grammar = compiler.compile_grammar(job["text"])
        words = -(-grammar.tokenizer_info.vocab_size // 32)
        slow = slow_token(library, grammar, words, job["step_seconds"])
        if slow >= 0:
            return b"s" + f"the mask of token {slow} takes more than {job['step_seconds']:g} s".encode()
        return b"k" + str(grammar.serialize_json()).encode()
    except Exception as error:  # whatever the library raises for a stranger's text is a result, not a fault
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return b"e" + f"compiling it needs more than {job['memory_bytes'] >> 20} MB".encode()
        return b"e" + _words(error).encode("utf-8", "replace")


def _words(error: Exception) -> str:
    """The sentence of a library error, without its time stamp and source line."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.split(": ", 1)[-1][:500] if ".cc:" in text else text[:500]


def _child(sock: socket.socket, library: Any, compiler: Any, parent: int) -> None:
    _end_with_parent(parent)
    job = json.loads(read_frame(sock))
    _limit(job["cpu_seconds"], job["memory_bytes"])
    answer = compile_job(library, compiler, job)
    signal.setitimer(signal.ITIMER_PROF, 0)
    write_frame(sock, answer)


def main() -> None:
    """Get warm, then fork for each descriptor until stdin ends."""
    control = socket.socket(fileno=os.dup(0))
    first = json.loads(read_frame(control))
    _end_with_parent(first["parent"])
    try:
        xgrammar = load_library()
        info = xgrammar.TokenizerInfo(
            [text.encode("latin-1") for text in first["vocab"]],
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=first["vocab_size"],
            stop_token_ids=first["stop_token_ids"],
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    except Exception as error:
        write_frame(control, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave no entry behind
    write_frame(control, b"{}")
    own = os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with socket.socket(fileno=descriptors[0]) as sock:
            if os.fork() == 0:
                code = 1
                try:
                    control.close()
                    _child(sock, xgrammar, compiler, own)
                    code = 0
                finally:
                    os._exit(code)


if __name__ == "__main__":
    main()
