"""Grammars by xgrammar: compiled in worker processes, matched in this one.

Scheduler process; made by ``GrammarManager`` through the registry, on its threads, when the first constraint comes. A
compiled grammar comes from the worker as xgrammar's own JSON, never as a pickle. Everything that is peculiar to the library
(its stop tokens, what it raises after an end) is kept inside these classes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from sgnb.constraints import Constraint
from sgnb.engine.grammar.base import (
    CompiledGrammar,
    GrammarBackend,
    GrammarError,
    Mask,
    Matcher,
    Vocabulary,
)
from sgnb.engine.grammar.refusal import refusal
from sgnb.engine.grammar.worker import load_library, read_frame, write_frame

CPU_SECONDS = 5.0
MEMORY_BYTES = 512 << 20
"""Beyond what the warm worker has."""
TRIED_STEP_SECONDS = 0.1
"""CPU time for one mask of a trial walk, before a grammar is used."""
_WARM_SECONDS = 120.0
"""Importing the library takes a second, and much longer on a machine with other work."""
_ANSWER_SECONDS = 4 * CPU_SECONDS + 5
_WORKER = Path(__file__).with_name("worker.py")
_INSTALL = 'pip install "xgrammar==0.2.9"'


class XGrammarBackend(GrammarBackend):
    """One vocabulary. The worker is started by the first ``compile`` and again after it has ended."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._stop = next(iter(vocabulary.eos_token_ids), min(vocabulary.special_ids, default=0))
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._library: Any = None
        self._info: Any = None
        self._texts = text_mask(vocabulary)
        self._closed = False

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """See GrammarBackend. A worker that somebody ended is started again, once."""
        try:
            return self._compile(constraint)
        except WorkerGone:
            return self._compile(constraint)

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        with self._lock:
            if self._closed:
                raise GrammarError("the engine is ending", lasting=False)
            if self._worker is None or not self._worker.alive:
                if self._worker is not None:
                    self._worker.close()
                self._worker = Worker(self._vocabulary, self._stop)
            worker = self._worker
            if self._library is None:
                self._load()
        worker.wait_warm()
        began = time.monotonic()
        answer = worker.compile(constraint)
        try:
            compiled = self._library.CompiledGrammar.deserialize_json(answer, self._info)
        except Exception as error:
            raise GrammarError(f"the compiled {constraint.kind} cannot be read: {error}") from None
        made = _XGrammar(self._library, compiled, self._stop, self._texts)
        made.seconds = time.monotonic() - began
        return made

    def _load(self) -> None:
        try:
            xgrammar = load_library()
        except ImportError as error:
            raise GrammarError(f"xgrammar cannot be used: {error}", hint=_INSTALL, lasting=False) from None
        self._info = xgrammar.TokenizerInfo(
            self._vocabulary.texts,
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=self._vocabulary.vocab_size,
            stop_token_ids=[self._stop],
        )
        self._library = xgrammar

    def close(self) -> None:
        """See GrammarBackend."""
        self._closed = True  # without the lock: who holds it may be importing
        if self._worker is not None:
            self._worker.close()


class WorkerGone(GrammarError):
    """The warm process ended meanwhile."""


class Worker:
    """The warm process. It ends with this one, or when its socket is closed."""

    def __init__(self, vocabulary: Vocabulary, stop: int) -> None:
        ours, theirs = socket.socketpair()
        self._control = ours
        self._lock = threading.Lock()
        self._warm = False
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                # -P: the script's folder must not come before the standard library.
                [sys.executable, "-P", str(_WORKER), "sgnb.engine", "grammar"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        ours.settimeout(_WARM_SECONDS)
        first = {
            "parent": os.getpid(),
            "vocab": [text.decode("latin-1") for text in vocabulary.texts],
            "vocab_size": vocabulary.vocab_size,
            "stop_token_ids": [stop],
        }
        try:
            write_frame(ours, json.dumps(first).encode())
        except OSError:
            pass  # it has ended already: ``wait_warm`` says so

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def wait_warm(self) -> None:
        """Until it has imported the library. GrammarError if it cannot."""
        with self._lock:
            if self._warm:
                return
            try:
                answer = json.loads(read_frame(self._control) or b'{"error": "it ended while it started"}')
            except OSError:
                answer = {"error": f"it did not start within {_WARM_SECONDS:g} s"}
            if "error" in answer:
                self.close()
                raise GrammarError(
                    f"the compiler of grammars cannot be used: {answer['error']}",
                    hint=_INSTALL,
                    lasting=False,
                )
            self._warm = True

    def compile(self, constraint: Constraint) -> str:
        """The compiled grammar as JSON. GrammarError when it is refused, or its process ended instead."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(_ANSWER_SECONDS)
            started = time.monotonic()
            job = {"kind": constraint.kind, "text": constraint.text}
            limits = {
                "cpu_seconds": CPU_SECONDS,
                "memory_bytes": MEMORY_BYTES,
                "step_seconds": TRIED_STEP_SECONDS,
            }
            try:
                with theirs, self._lock:
                    socket.send_fds(self._control, [b"j"], [theirs.fileno()])
                write_frame(ours, json.dumps({**job, **limits}).encode())
                answer = read_frame(ours)
            except OSError:
                answer = b""
        if not answer:
            raise self._ended(constraint, time.monotonic() - started)
        if answer[:1] == b"s":
            raise GrammarError(
                f"{constraint.kind}: {answer[1:].decode()}",
                code="grammar_slow",
                hint="Bound its repetitions.",
            )
        if answer[:1] == b"e":
            raise refusal(constraint, answer[1:].decode())
        return answer[1:].decode()

    def _ended(self, constraint: Constraint, seconds: float) -> GrammarError:
        if seconds < CPU_SECONDS:
            kind = GrammarError if self.alive else WorkerGone
            hint = f"If it happens again, the constraint needs more than {MEMORY_BYTES >> 20} MB."
            message = f"{constraint.kind}: its compiler was killed"
            return kind(message, code="grammar_killed", hint=hint, lasting=False)
        return GrammarError(
            f"{constraint.kind}: compiling it took more than {CPU_SECONDS:g} s",
            code="grammar_timeout",
            hint="Shorten it, or bound its repetitions.",
        )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._control.close()


class _XGrammar(CompiledGrammar):
    def __init__(self, library: Any, compiled: Any, stop: int, texts: Mask) -> None:
        self._library = library
        self._compiled = compiled
        self._stop = stop
        self._texts = texts
        self.size = int(compiled.memory_size_bytes)

    def matcher(self) -> Matcher:
        """See CompiledGrammar."""
        return _XMatcher(self._library.GrammarMatcher(self._compiled), self._stop, self._texts)


class _XMatcher(Matcher):
    """The library's stop token stands for the end: it is in a mask exactly where the output may end, and never accepted."""

    def __init__(self, matcher: Any, stop: int, texts: Mask) -> None:
        self._matcher = matcher
        self._stop = stop
        self._word, self._bit = stop // 32, np.uint32(1 << stop % 32).view(np.int32)
        self._texts = texts

    def fill(self, mask: Mask) -> bool:
        """See Matcher."""
        if not self._matcher.fill_next_token_bitmask(mask[None]):
            mask[:] = self._texts  # the library means: everything, the end too
            return True
        may_end = bool(mask[self._word] & self._bit)
        mask[self._word] &= ~self._bit
        return may_end

    def accept(self, token: int) -> bool:
        """See Matcher."""
        return token != self._stop and bool(self._matcher.accept_token(token))


def text_mask(vocabulary: Vocabulary) -> Mask:
    """The mask of all tokens that are text."""
    bits = np.zeros(vocabulary.words * 32, dtype=np.uint8)
    for token, text in enumerate(vocabulary.texts):
        bits[token] = bool(text)
    return np.packbits(bits, bitorder="little").view(np.int32)
