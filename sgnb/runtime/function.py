"""Programs: ``@sgnb.function`` and the ways to run one.

Notebook process; used by users. A program called with a state is inlined on it, otherwise it starts a run of its own.
How a body is executed (compiled or eager) is ``runtime.program``'s business; who drives it is ``runtime.dispatcher``'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from sgnb.backends.base import Backend, require_backend
from sgnb.errors import ProgramError, a_type_of
from sgnb.lang.frontend.constants import check_graph
from sgnb.lang.ir import Append, Call, Graph, HolePart, Host, HostCall, Scope
from sgnb.lang.passes import Pass, PassRecord
from sgnb.lang.position import here, internal
from sgnb.runtime.core import Core, Notebook
from sgnb.runtime.program import Program, call_inline, drive_nested, program_of, root_frame
from sgnb.runtime.run import Run, begin
from sgnb.runtime.run_arguments import (
    defaults_of,
    extra_key_of,
    passes_of,
    priority_of,
    split_arguments,
    threads_of,
)
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Result
from sgnb.runtime.tracing import Trace, Tracer, placeholders
from sgnb.runtime.waiting import current_core
from sgnb.runtime.wrong_names import NamesOfProgram

internal(__name__)

MAX_IN_FLIGHT = 256
"""Items of a batch that run at once, unless ``num_threads`` says otherwise."""


def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> SglFunction | Callable[[Callable[..., Any]], SglFunction]:
    """Make a Python function a program; its first parameter, of any name, is the state. Bare or called."""
    if func is not None:
        return SglFunction(func, num_api_spec_tokens=num_api_spec_tokens)
    return lambda f: SglFunction(f, num_api_spec_tokens=num_api_spec_tokens)


class SglFunction(NamesOfProgram):
    """A program. ``run`` it, or call it: with a state it is inlined there."""

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(func, FunctionType):
            raise ProgramError(
                f"@function needs a Python function, not {type(func).__name__}.",
                hint="Put it above a def whose first parameter is the state.",
                position=here(),
            )
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = dict(bound or {})
        self.arg_names = list(inspect.signature(func).parameters)
        self.own_names = own_names(func)
        kinds = [parameter.kind for parameter in inspect.signature(func).parameters.values()]
        self._takes_any = inspect.Parameter.VAR_KEYWORD in kinds
        if not self.arg_names:
            raise ProgramError(
                f"{func.__qualname__} has no parameter; the first one is the state.",
                hint="Write def name(s, …): the state's name may be any.",
                position=here(),
            )
        self.__name__ = func.__name__
        self.__qualname__ = func.__qualname__
        self.__doc__ = func.__doc__
        self.__module__ = func.__module__
        self.__wrapped__ = func

    @property
    def program(self) -> Program:
        """The compiled program, or the reason why it runs eagerly."""
        return program_of(self.func)

    def bind(self, **kwargs: Any) -> SglFunction:
        """The program with some arguments already given."""
        names = self.arg_names[1:]
        var_kw = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.func).parameters.values())
        for key in kwargs:
            if key not in names and not var_kw:
                raise ProgramError(
                    f"{self.__name__} has no argument {key!r}.",
                    hint=f"Arguments: {', '.join(names)}.",
                    position=here(),
                )
        return SglFunction(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **kwargs})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inlined on the state that is the first argument (gives what the body returns), else ``run``."""
        state = self.state_in(args)
        if state is not None:
            return call_inline(self.func, state, args, {**self.bind_arguments, **kwargs})
        return self.run(*args, **kwargs)

    def state_in(self, args: tuple[Any, ...]) -> State | None:
        """The state a call is inlined on: its first argument, if that is one."""
        return args[0] if args and isinstance(args[0], State) else None

    # ------------------------------------------------------------ running

    def run(self, *args: Any, **kwargs: Any) -> State:
        """Run it. Sampling arguments (``max_new_tokens=128, temperature=1.0, stop, seed`` …) are the defaults of its gens.

        Returns the state when the body has returned; generations may still be under way. With ``stream=True`` returns at
        once. Raises what the body raised; the error of a generation is raised where it is read.
        """
        core = current_core()
        entered = None if core is None else self.enter_here(core, args, kwargs)
        if core is not None and entered is not None:
            state: State = drive_nested(core, entered)
            return state
        options, rest = self.split(kwargs)
        run = self.prepare(args, rest, options)
        if options["stream"]:
            return run.start().state
        try:
            run.drive_body()
        except KeyboardInterrupt:
            run.cancel()
            raise
        return run.state

    def run_async(self, *args: Any, **kwargs: Any) -> Run:
        """Start it in the background: ``await`` the Run, iterate over it, or ask for ``result()``."""
        options, rest = self.split(kwargs)
        return self.prepare(args, rest, options).start()

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        """Run it in the background and give its text piece by piece as it comes. Raises its error where the text ends."""
        return self.run_async(*args, **kwargs).stream()

    def trace(
        self,
        *args: Any,
        backend: Backend | None = None,
        passes: Sequence[Pass] = (),
        pass_records: list[list[PassRecord]] | None = None,
        **kwargs: Any,
    ) -> Trace:
        """What the program records, without an engine: see ``runtime.tracing``. ``backend`` is not needed (SGLang's).

        ``passes`` are applied to the blocks; what they did is added to ``pass_records``, one list a block.
        """
        tracer = Tracer()
        options, rest = self.split(kwargs)
        rest = {**placeholders(self._needed(), args, {**self.bind_arguments, **rest}), **rest}
        run = self.prepare(args, rest, {**options, "backend": tracer, "passes": passes})
        run.core.pass_records = pass_records
        run.drive_body()
        return Trace(run.state, tracer.blocks)

    def _needed(self) -> list[str]:
        """Parameters after the state that have no default."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = list(inspect.signature(self.func).parameters.values())[1:]
        return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]

    def enter_here(
        self, core: Core, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[[], Frame | Result] | None:
        """How a program called by a running one begins: in the same run, on a root state of its own.

        None when it needs a run of its own (another backend, or ``stream=True``).
        """
        options, rest = self.split(kwargs)
        backend = options["backend"]
        other_key = options["extra_key"] is not None and extra_key_of(options) != core.extra_key
        if (
            options["stream"]
            or other_key
            or (backend is not None and backend.carrier is not core.backend.carrier)
        ):
            return None
        defaults = defaults_of(options)
        values = {**self.bind_arguments, **rest}

        def enter() -> Frame | Result:
            path = core.new_root()
            state = State(core, self.__name__, path, defaults=defaults, seed=options["seed"])
            return root_frame(core, self.func, state, (state, *args), values)

        return enter

    def split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Separate run's own arguments from the program's. A name that the program has itself is the program's."""
        return split_arguments(kwargs, self.__name__, self.own_names, takes_any=self._takes_any)

    def prepare(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        item: str = "",
    ) -> Run:
        """A Run that nobody drives yet. ``item``: its number, as one of a batch."""
        defaults = defaults_of(options)
        caller = current_core()
        given = options["backend"]
        if given is None and caller is not None:
            given = caller.backend  # what a program starts runs where it runs
        backend: Backend = require_backend(given, here)
        core = Core(
            backend,
            title=self.__name__,
            cell=Notebook.cell_number() if caller is None else caller.cell,
            item=item,
            defaults=defaults,
            seed=options["seed"],
            extra_key=extra_key_of(options),
            priority=priority_of(options),
            passes=passes_of(options),
        )
        program = self.program
        if program.graph is not None:
            check_graph(program.graph)
        core.names = bindable(program.graph)
        begin(core, program.graph, program.reason)
        state = State(core)
        values = {**self.bind_arguments, **kwargs}
        return Run(core, state, lambda: root_frame(core, self.func, state, (state, *args), values))

    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[State] | Iterator[State]:
        """Run it once for each item (a dict of arguments, or a tuple), at most ``num_threads`` at a time.

        A failing item does not end the others: its state holds the error (``state.error()``), raised at any read.
        """
        items = list(batch_kwargs) if isinstance(batch_kwargs, Iterable) else [batch_kwargs]
        for number, item in enumerate(items):
            if not isinstance(item, Mapping | tuple | list):
                raise ProgramError(
                    f"run_batch: item {number} is {a_type_of(item)}.",
                    hint="Give a dict of arguments, or a tuple, for each run.",
                    position=here(),
                )
        options, rest = self.split(kwargs)
        limit = threads_of(num_threads, MAX_IN_FLIGHT)
        states = self._batch(items, rest, options, limit, progress_bar)
        return states if generator_style else list(states)

    def _batch(
        self, items: list[Any], rest: Mapping[str, Any], options: Mapping[str, Any], limit: int, bar: bool
    ) -> Iterator[State]:
        progress = None
        if bar:
            from tqdm import tqdm  # noqa: PLC0415  only who asks for the bar pays for it

            progress = tqdm(total=len(items))
        live: dict[int, Run] = {}
        started = 0
        try:
            for number in range(len(items)):
                while started < len(items) and len(live) < limit:
                    live[started] = self._start_item(items[started], rest, options, str(started))
                    started += 1
                state = ended_state(live[number])  # still among the live ones: an interrupt here stops it too
                del live[number]
                yield state
                if progress is not None:
                    progress.update()
        finally:
            for run in live.values():
                run.cancel()
            if progress is not None:
                progress.close()

    def _start_item(self, item: Any, rest: Mapping[str, Any], options: Mapping[str, Any], name: str) -> Run:
        if isinstance(item, Mapping):
            return self.prepare((), {**rest, **item}, options, name).start()
        return self.prepare(tuple(item), rest, options, name).start()

    def __repr__(self) -> str:
        return f"<program {self.__qualname__}({', '.join(self.arg_names)})>"


def own_names(func: FunctionType) -> tuple[str, ...]:
    """The arguments of a program that can be given by name; not its state."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(func).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind in named)


def bindable(graph: Graph | None) -> frozenset[str] | None:
    """The variables a program can bind; None when its graph does not show all of them."""
    if graph is None or any(isinstance(node, Call | Host | HostCall | Scope) for node in graph.walk()):
        return None
    parts = [part for node in graph.walk() if isinstance(node, Append) for part in node.parts]
    if any(isinstance(part, HolePart) and not part.text for part in parts):
        return None
    names = graph.variables()
    return None if None in names else frozenset(name for name in names if name)


def ended_state(run: Run) -> State:
    """Wait for a run of a batch; an exception of its body becomes the state's error."""
    run.driver.help_until(lambda: run.core.finished)
    return run.state
