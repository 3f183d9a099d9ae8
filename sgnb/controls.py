"""What a notebook does with its engines: one place for ``%sgl`` and the side panel, so that both act alike.

Notebook process. Called by ``magics`` on the cell's thread and by ``panel`` on a comm thread at the same time, hence the
locks. Holds no engine of its own: the current one is the default backend, which outlives ``%reload_ext``. No IPython,
no printing, no display here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sgnb import knob_words
from sgnb.backends import engine as engines
from sgnb.backends.base import get_default_backend, set_default_backend
from sgnb.errors import EngineError, NoEngine
from sgnb.runtime.core import abort_held
from sgnb.widgets import words

if TYPE_CHECKING:
    from sgnb.config import EngineArgs
    from sgnb.messages import EngineRecord

ALIVE = ("starting", "idle", "running", "stuck")


class Controls:
    """Start, stop, restart and attach engines of this notebook. Thread-safe; one command at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._attached: dict[str, engines.Engine] = {}
        self._listeners: list[Callable[[], None]] = []
        self._stopped: EngineArgs | None = None
        """Of the engine that was stopped last."""

    # ------------------------------------------------------------ reading

    def current(self) -> engines.Engine | None:
        """The engine that programs of this notebook use, alive or not; None when there is none."""
        backend = get_default_backend()
        return backend if isinstance(backend, engines.Engine) else None

    def alive(self) -> engines.Engine | None:
        """The current engine if it works or starts."""
        engine = self.current()
        return engine if engine is not None and engine.state in ALIVE else None

    def require(self) -> engines.Engine:
        """The current engine, alive or not; NoEngine when there is none."""
        engine = self.current()
        if engine is None:
            raise NoEngine("No engine is running.", hint="Start one with %sgl launch.")
        return engine

    def records(self) -> list[EngineRecord]:
        """Engines of all notebooks of this user."""
        return engines.engines()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener()`` when the current engine becomes another one; returns the function that ends it."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    # ------------------------------------------------------------ commands

    def launch(self, model: str | None = None, **args: Any) -> engines.Engine:
        """Start an engine and make it the current one; returns at once, while it loads.

        One that runs already with the same arguments is used again; with other arguments it is an error.
        """
        with self._lock:
            engine = engines.launch(model, wait=False, **args)
        self._changed()
        return engine

    def launch_again(self) -> engines.Engine:
        """Start an engine with the arguments of the one that ended; the first one with the defaults."""
        engine = self.current()
        args = engine.args if engine is not None and engine.owner else None
        given = args if args is not None else self._stopped
        return self.launch() if given is None else self.launch(**msgspec.structs.asdict(given))

    def attach(self, name: str) -> engines.Engine:
        """Use the running engine ``name``, of this or another notebook; it becomes the current one."""
        with self._lock:
            engine = self.find(name)
            set_default_backend(engine)
        self._changed()
        return engine

    def find(self, name: str) -> engines.Engine:
        """The engine ``name`` without making it the current one."""
        with self._lock:
            for engine in (self.current(), self._attached.get(name)):
                if engine is not None and engine.name == name and engine.state in ALIVE:
                    return engine
            before = get_default_backend()
            engine = engines.attach(name)
            self._attached[name] = engine
            if get_default_backend() is not before:
                set_default_backend(before)
            return engine

    def stop(self) -> str:
        """End the current engine, or leave one of another notebook; a sentence about what was done."""
        with self._lock:
            engine = self.require()
            was, owner = engine.state, engine.owner
            self._stopped = engine.args if owner else self._stopped
            engine.shutdown()
            self._attached.pop(engine.name, None)
        self._changed()
        if was not in ALIVE:
            return f"Engine {engine.name} had ended before."
        return (
            f"Stopped engine {engine.name}."
            if owner
            else f"Left engine {engine.name}; its notebook keeps it."
        )

    def restart(self) -> engines.Engine:
        """End the current engine and start one with the same arguments."""
        with self._lock:
            engine = self.require()
            if not engine.owner or engine.args is None:
                raise EngineError(
                    f"Engine {engine.name} belongs to another notebook.",
                    hint="Restart it there, or start one here: %sgl launch --name NAME.",
                )
            given = msgspec.structs.asdict(engine.args)
            engine.shutdown(restarting=True)
            return self.launch(**given)

    def flush(self) -> str:
        """Empty the cache of what nobody uses; a sentence with the numbers."""
        done = self.require().flush_cache()
        flushed, locked = int(done.get("flushed", 0)), int(done.get("locked", 0))
        sentence = f"Flushed {words.count(flushed)} tokens."
        if locked:
            sentence += f" {words.count(locked)} are locked and leave when unlocked."
        return sentence

    def defragment(self) -> str:
        """Move what is in the KV pool together; a sentence with the numbers."""
        done = self.require().defragment()
        moved, before, after = (int(done[name]) for name in ("moved", "free_runs_before", "free_runs"))
        if not moved:
            return "Nothing to move: the KV pool is in order."
        runs = "run" if before == 1 else "runs"
        return f"Moved {words.count(moved)} KV slots: {words.count(before)} free {runs} became {words.count(after)}."

    def set_knobs(self, values: dict[str, Any]) -> str:
        """Change live knobs, all or none; a sentence with what they are now."""
        now = self.require().set(**values)
        changed = ", ".join(f"{name} {knob_words.show_value(now[name])}" for name in values)
        return f"Set {changed}."

    def pause(self) -> str:
        """Hold the scheduler between two steps; a sentence."""
        done = self.require().pause()
        return f"Paused after step {words.count(int(done['steps']))}."

    def step(self, count: int = 1) -> str:
        """Let a paused scheduler take steps; a sentence."""
        self.require().step(count)
        return f"Taking {words.count(count)} step{'' if count == 1 else 's'}."

    def resume(self) -> str:
        """Undo ``pause``; a sentence."""
        self.require().resume()
        return "Resumed."

    def abort_all(self) -> str:
        """Abort every request of the engine, and what programs of this notebook hold back until it has room; a sentence
        with their number."""
        engine = self.require()
        held = abort_held(engine)  # first: they would leave as soon as there is room
        number = held + int(engine.abort_all().get("aborted", 0))
        return f"Aborted {words.count(number)} request{'' if number == 1 else 's'}."

    def _changed(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def describe(engine: engines.Engine) -> str:
    """``smollm2-135m-instruct · bfloat16, cpu, torch_native, 65 536 slots``; the deterministic form has no slots."""
    info = engine.info
    if info is None:
        return words.visible(engine.model_name)
    facts = [info.dtype, info.device, info.attention_backend]
    if not words.deterministic():
        facts.append(f"{words.count(info.max_total_tokens)} slots")
    return f"{words.visible(engine.model_name)}{words.DOT}{', '.join(facts)}"


def start_detail(engine: engines.Engine) -> str:
    """What a starting engine does now, in a few words."""
    if not engine.progress:
        return "process"
    step = engine.progress[-1]
    return words.start_words(step.step, step.done, step.total)


def await_ready(engine: engines.Engine, report: Callable[[str], None], *, tick: float = 0.25) -> None:
    """Wait until a starting engine is ready, reporting its steps; raises its EngineStartError.

    Bounded by the engine's own limits: it leaves ``starting`` when it is ready, fails or dies. Interruptible.
    """
    said = ""
    while engine.state == "starting":
        detail = start_detail(engine)
        if detail != said:
            report(detail)
            said = detail
        try:
            engine.wait_ready(tick)
        except TimeoutError:
            continue
        except EngineError:
            if engine.state not in ALIVE:
                raise
            time.sleep(tick / 10)  # not ready within the tick, or just now: the state tells
    if engine.state not in ALIVE:
        engine.wait_ready(0)  # raises what went wrong
