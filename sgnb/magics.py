"""The magics ``%sgl`` and ``%%sgl``: parse the line, call, display.

Notebook process, called by IPython on the cell's thread. Thin: options are ``magic_options``'s, the cell's life is
``cell``'s, engines are ``controls``'s. Loading must stay below half a second and never import torch; ipywidgets waits
for the first display.
"""

from __future__ import annotations

import time
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from sgnb import controls as control
from sgnb import debug_table, knob_words, magic_lines, magic_options, panel_edit, panel_state, views
from sgnb.backends.base import Backend, get_default_backend
from sgnb.cell import CellOptions, CellRun
from sgnb.config import DEFAULT_MODEL
from sgnb.errors import EngineError
from sgnb.interrupts import InterruptGate, StoppedByUser
from sgnb.recording import with_suffix
from sgnb.runtime.explain import explain
from sgnb.runtime.saved import release_states, states
from sgnb.runtime.state import State
from sgnb.tap import Tap
from sgnb.widgets import output, words
from sgnb.widgets.engine_view import EngineView

LOG_LINES = 20


@magics_class
class SglMagics(Magics):
    """Both magics over one set of controls."""

    def __init__(self, shell: Any, controls: control.Controls) -> None:
        super().__init__(shell)
        self._controls = controls
        self._last_cell = ""  # the %%sgl cell that ran last, with its first line

    # ------------------------------------------------------------ %sgl

    @no_var_expand
    @line_magic("sgl")
    def sgl_line(self, line: str) -> None:
        """Start, stop and look at the engine that programs of this notebook run on.

        %sgl launch [MODEL] [options]   start an engine and wait until it is ready
        %sgl stop [--yes]               end it and free its memory
        %sgl restart                    end it and start it again with the same arguments
        %sgl status                     state, model and numbers
        %sgl log [N]                    the last N lines of its log (20)
        %sgl attach NAME                use an engine that another notebook started
        %sgl engines                    all engines of this user
        %sgl set [KEY VALUE]            change a knob of the running engine; alone: what they all are now
        %sgl set objective NAME         throughput, balanced or latency: a named set of knobs
        %sgl pause | step [N] | resume  hold the scheduler between two steps, to look at it
        %sgl flush                      empty the cache of what nobody uses
        %sgl defragment                 move what is in the KV pool together
        %sgl states                     states that hold a session
        %sgl states release [NAME …]    end those, or all; their text stays readable
        %sgl record start FILE          write what the engine does to FILE.sgnb (--no-text, --seconds N)
        %sgl record [stop]              what is recorded now, or its end; sgnb export and sgnb simulate read it
        %sgl explain NAME               how a program runs: its graph, its blocks, what each pass did
        %sgl view tree|kv|timeline      the engine at work, live
        %sgl view graph [NAME]          what the passes make of a program; without a name, of the last %%sgl cell

        Options of launch are the engine's arguments: --name, --dtype, --device, --max-total-tokens,
        --context-length, --schedule-policy, --deterministic and so on (press Tab).

        Examples
        --------
        ::

            %sgl launch
            %sgl launch smollm2-135m-instruct --name main --max-total-tokens 16384
        """
        __tracebackhide__ = True
        command, given = magic_lines.parse(line)
        if command == "help":
            print("\n".join(f"%sgl {name} {text}" for name, text in magic_options.COMMANDS.items()))
        elif given is None:
            getattr(self, f"_{command}")()
        else:
            getattr(self, f"_{command}")(given)

    def _launch(self, given: tuple[str | None, dict[str, Any]]) -> None:
        model, args = given
        self._await(self._controls.launch(model, **args))

    def _restart(self) -> None:
        self._await(self._controls.restart())

    def _await(self, engine: Any) -> None:
        __tracebackhide__ = True
        quiet = words.deterministic() or output.display_mode(self.shell) == "static"
        began = time.monotonic()
        waits = engine.state == "starting"  # one that runs, of another notebook say, is not waited for

        said: list[str] = []

        def report(detail: str) -> None:
            step = detail.partition(",")[0]
            if not quiet and step not in said:
                said.append(step)
                print(f"{engine.name}: {step} …", flush=True)

        try:
            control.await_ready(engine, report)
        except KeyboardInterrupt:
            raise StoppedByUser(f"engine {engine.name} goes on starting; %sgl stop ends it") from None
        took = "" if quiet or not waits else f" after {words.duration(time.monotonic() - began)}"
        print(f"Engine {engine.name} is ready{took}: {control.describe(engine)}")

    def _stop(self, for_all: bool) -> None:
        engine = self._controls.require()
        others = others_attached(engine)
        if others and not for_all:
            noun = "notebook uses" if others == 1 else "notebooks use"
            raise EngineError(
                f"{others} other {noun} engine {engine.name}.",
                hint="Stop it for them too with %sgl stop --yes.",
            )
        print(self._controls.stop())

    def _status(self) -> None:
        engine = self._controls.current()
        if engine is None:
            print("No engine is running. Start one with %sgl launch.")
            return
        print(f"Engine {engine.name}, {engine.state}: {control.describe(engine)}")
        if engine.trouble:
            print(words.visible(engine.trouble))
        if engine.error:
            print(words.visible(str(engine.error)))
        if engine.state in ("idle", "running"):
            stats = engine.stats()
            if stats["paused"]:
                print("Paused between two steps; %sgl step takes one, %sgl resume goes on.")
            for name, value in panel_state.five_numbers(stats):
                print(f"  {name:<10} {value}")
            print("\n".join(knob_words.status_lines(stats)))

    def _log(self, number: int = LOG_LINES) -> None:
        lines = self._controls.require().log(number)
        print("\n".join(words.visible(line) for line in lines) or "The log is empty.")

    def _stacks(self) -> None:
        print(words.visible(self._controls.require().stacks()))

    def _attach(self, name: str) -> None:
        self._await(self._controls.attach(name))

    def _engines(self) -> None:
        records = self._controls.records()
        current = self._controls.current()
        if not records:
            print("No engine is running. Start one with %sgl launch.")
        for record in records:
            mark = "*" if current is not None and current.name == record.name else " "
            print(
                f"{mark} {record.name:<12} {record.state:<9} {words.visible(record.model)}  pid {record.pid}"
            )

    def _set(self, values: dict[str, Any]) -> None:
        if values:
            print(self._controls.set_knobs(values))
        else:
            print("\n".join(knob_words.knob_lines(self._controls.require().knobs())))

    def _pause(self) -> None:
        print(self._controls.pause())

    def _step(self, number: int = 1) -> None:
        print(self._controls.step(number))

    def _resume(self) -> None:
        print(self._controls.resume())

    def _flush(self) -> None:
        print(self._controls.flush())

    def _defragment(self) -> None:
        print(self._controls.defragment())

    def _states(self, released: list[str] | None = None) -> None:
        if released is not None:  # by name, or all
            named = magic_lines.named_states(self.shell.user_ns, released)
            number = release_states(named) if released else release_states()
            print(f"Released {number} {'state' if number == 1 else 'states'}.")
            return
        names: dict[int, list[str]] = {}
        for name, value in self.shell.user_ns.items():
            if isinstance(value, State) and not name.startswith("_"):
                names.setdefault(id(value), []).append(name)
        found = states()
        if not found:
            print("No state holds a session.")
        for state in found:
            label = ", ".join(names.get(id(state), [])) or "–"
            size = words.count(len(state.text_so_far()))
            print(
                f"  {words.visible(label):<16} {size} characters, variables: {', '.join(state.names()) or '–'}"
            )

    def _record(self, options: Any) -> None:
        engine = self._controls.require()
        recorder = engine.recorder
        if options.action != "start":
            running = recorder is not None and recorder.running
            if recorder is None or (options.action is None and not running):
                raise UsageError("%sgl record: nothing is recorded; begin with %sgl record start FILE")
            if options.file is not None and with_suffix(options.file) != recorder.path:
                raise UsageError(f"%sgl record stop: what is recorded goes to {recorder.path}")
            if options.action is None:
                print(
                    words.visible(
                        f"Recording engine {engine.name} to {recorder.path}: {recorder.result().size}."
                    )
                )
            else:
                before = "" if running else "It had ended before. "
                print(words.visible(f"{before}{recorder.stop()}"))
            return
        recorder = engine.record(options.file, text=options.text, seconds=options.seconds)
        about = "" if options.text else ", without text"
        print(f"Recording engine {engine.name} to {words.visible(str(recorder.path))}{about}.")

    def _explain(self, name: str) -> None:
        print(words.visible(explain(magic_lines.program(self.shell.user_ns, name))))

    def _view(self, given: tuple[str, str | None]) -> None:
        kind, name = given
        if name is not None:
            self._show_view(views.view(kind, magic_lines.shown(self.shell.user_ns, name)))
        else:
            self._show_view(self._last_graph() if kind == "graph" else views.view(kind))

    def _show_view(self, shown: EngineView) -> None:
        if output.display_mode(self.shell) == "terminal":
            print(shown)
        else:
            display(shown)

    def _last_graph(self) -> EngineView:
        data = panel_edit.graph_of(self._last_cell, self.shell.user_ns) if self._last_cell else None
        if data is None:
            raise UsageError("%sgl view graph: no %%sgl cell has run yet; name a program (@sgnb.function)")
        return views.graph_of_data(data)

    # ------------------------------------------------------------ %%sgl

    @no_var_expand
    @cell_magic("sgl")
    def sgl_cell(self, line: str, cell: str) -> None:
        r"""Run the cell as a program on the engine; its text streams into a view with the cost of each gen.

        The state is ``s``; gen, system, user and assistant are there; other names come from the notebook.
        The body is Python, taken as it stands: braces and $ are expanded neither in it nor in the line.

        -o NAME              bind the program's state: NAME["x"], NAME.text(), and later cells append to it
        --max-tokens N, --temperature N, --top-p N, --top-k N, --min-p N, --seed N, --stop TEXT
                             defaults of the cell's gens (a gen's own argument wins; max_tokens is 128 unless given)
        --logprobs N         keep each token's probability and its N likeliest rivals, for the view and get_meta_info
        --priority N         higher goes first, and may suspend lower ones (0)
        --background         return at once; the view goes on
        --debug              show each instruction with its state, ids, reused ids and milliseconds
        --engine NAME        run on this engine, not on the current one
        --from NAME          go on with the state of an earlier cell, on the same session
        -O0                  send every operation as it was recorded, no pass changes it

        Examples
        --------
        ::

            %%sgl -o capital --temperature 0
            s += user("What is the capital of France?")
            s += assistant(gen("answer", max_tokens=40))

            %%sgl --stop "\n" --max-tokens 60
            s += "Q: " + question + "\nA:" + gen("a")
        """
        __tracebackhide__ = True
        if not cell.strip() and not line.strip():  # somebody who asks what this is
            raise UsageError(magic_options.CELL_USAGE)
        options = magic_options.parse_cell(line)
        self._last_cell = f"%%sgl {line}\n{cell}"
        with InterruptGate() as gate:
            cell_run = CellRun(
                self.shell, options, gate, lambda: self._backend(options), self._model(options)
            )
            run = cell_run.start(cell, self._first_line(), f"%%sgl {line}".rstrip())
            if options.background:
                cell_run.drive_in_background()
                return
            try:
                cell_run.drive()
            finally:
                if isinstance(cell_run.backend, Tap):
                    debug_table.show(self.shell, cell_run.backend, run.log)

    def _model(self, options: CellOptions) -> str:
        """The model's name as far as it is known before the engine is asked."""
        backend = get_default_backend()
        if backend is None or (options.engine and getattr(backend, "name", "") != options.engine):
            found = [record.model for record in self._controls.records() if record.name == options.engine]
            return found[0] if found else DEFAULT_MODEL
        return backend.model_name

    def _backend(self, options: CellOptions) -> tuple[Backend, str]:
        """The backend of a cell, and what to tell the reader about it; starts the default engine if there is none."""
        if options.engine:
            return self._controls.find(options.engine), ""
        backend, engine = get_default_backend(), self._controls.current()
        if backend is not None and engine is None:
            return backend, ""  # a backend of another kind, set by the user
        if engine is not None and engine.state in control.ALIVE:
            return engine, ""
        if engine is not None:
            raise EngineError(
                f"Engine {engine.name} has ended: {words.visible(str(engine.error or engine.state))}",
                hint="Start it again with %sgl restart; variables of the notebook stay.",
            )
        engine = self._controls.launch()
        return engine, f"No engine was running: started {engine.name} ({words.visible(engine.model_name)})."

    def _first_line(self) -> int:
        """The line of the notebook cell at which the program begins: blank lines above the magic count."""
        history = getattr(self.shell, "history_manager", None)
        raw = history.input_hist_raw[-1] if history is not None and history.input_hist_raw else ""
        body = raw.lstrip()
        if not body.startswith("%%sgl"):
            return 2
        return raw[: len(raw) - len(body)].count("\n") + 2


def others_attached(engine: Any) -> int:
    """How many other clients use an engine of ours; 0 when it is not ours or does not answer."""
    if not engine.owner or engine.state not in ("idle", "running", "stuck"):
        return 0
    try:
        return max(0, len(engine.clients()) - 1)
    except EngineError:
        return 0
