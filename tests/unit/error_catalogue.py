"""Every error a user of the language can meet, as one list: what was written, and what is shown.

``docs/errors.md`` is made of it (``python tests/unit/error_catalogue.py`` writes it), and a test holds the page to it.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import RequestError, SgnbError
from sgnb.magic_options import parse_cell
from sgnb.runtime.run import Run, run_cell

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
WIDTH = 118
"""Longer lines are cut here: lists of legal names grow."""


@dataclass(frozen=True, eq=False)
class Case:
    """``text`` is a ``%%sgl`` cell, or an ordinary one. ``script`` is the mock engine's; ``dies``: it ends meanwhile.

    ``magic`` is the cell's magic line, where it matters; ``before``: an ordinary cell that ran first.
    """

    text: str
    script: Any = None
    ordinary: bool = False
    engine: bool = True
    """False: an ordinary cell, and no engine runs."""
    file: str = ""
    """What ``saved.json`` holds, beside an ordinary cell."""
    dies: bool = False
    magic: str = ""
    before: str = ""

    @property
    def whole(self) -> str:
        """The cell as it is written."""
        return f"{self.magic}\n{self.text}" if self.magic else self.text


@sgl.function
def hello(s, name):
    s += f"Hello {name}" + sgl.gen("x")


FAULT = RequestError("the KV pool has 64 slots: it can never fit", code="context", hint="Shorten the prompt.")

CATALOGUE: dict[str, dict[str, Case]] = {
    "Refused before anything is queued": {
        "empty-cell": Case("", magic="%%sgl -o tips"),
        "only-comments": Case("# nothing yet"),
        "go-on-with-nothing": Case("s += gen('x')", magic="%%sgl -o more --from nowhere"),
        "go-on-with-no-state": Case("s += gen('x')", magic="%%sgl --from hello"),
        "go-on-with-closed": Case(
            "s += gen('x')", magic="%%sgl --from tips -o tips", before="tips = hello.run('you')\ntips.close()"
        ),
        "go-on-with-failed": Case(
            "s += gen('y')", magic="%%sgl --from tips", before="tips = hello.run('you')\ntips.error()", script={"x": FAULT}
        ),
        "go-on-elsewhere": Case("s += gen('x')", magic="%%sgl --from tips", before="tips = hello.run('you', backend=other)"),
        "syntax": Case("s += gen('x'"),
        "return-outside": Case("return 1"),
        "await-in-def": Case("def ask():\n    return await tool()\ns += ask()"),
        "yield-in-cell": Case("yield 1"),
        "import-star": Case("from math import *"),
        "unknown-name": Case("s += genn('x')"),
        "unknown-argument": Case("s += gen('x', regx='[0-9]+')"),
        "misspelt-argument": Case("s += gen('x', max_token=3)"),
        "dropped-gen": Case("gen('x')"),
        "dropped-turn": Case("user('Why?')\ns += assistant(gen('x'))"),
        "dropped-select": Case("select('x', choices=['a'])"),
        "nested-turns": Case("with user():\n    with assistant():\n        gen('x')"),
        "turn-inside-turn": Case("with s.user():\n    s += assistant('x')"),
        "begin-with-text": Case("s += user_begin('x')"),
        "no-options": Case("s += select('x', [])"),
        "equal-options": Case("s += select('x', ['a', 'b', 'a'])"),
        "empty-option": Case("s += select('x', ['a', ''])"),
        "options-no-list": Case("s += select('x', 'ab')"),
        "option-no-text": Case("s += select('x', ['a', 1])"),
        "unknown-method": Case("s += select('x', ['a'], choices_method='best')"),
        "method-without-brackets": Case("if s.error is None:\n    s += gen('x')"),
        "turn-without-brackets": Case("with s.user:\n    s += 'Why?'"),
        "join-without-brackets": Case("b = s.fork(2)\nb += gen('x')\nb.join\ns += 'all'"),
        "state-becomes-text": Case("s = 'Question: '\ns += gen('x')"),
        "attribute-as-variable": Case("s.answer = gen('x')"),
    },
    "Raised where it happens": {
        "append-none": Case("s += None"),
        "append-number": Case("s += 5"),
        "append-function": Case("s += user"),
        "append-list": Case("s += ['a', gen('x')]"),
        "append-state": Case("s + gen('x')"),
        "add-to-state": Case("s = s + 'text'"),
        "half-character": Case("s += 'price: \\ud83d'"),
        "scope-without-name": Case("with s.var_scope(1):\n    s += 'x'"),
        "state-attribute": Case("s.txt()"),
        "state-append": Case("s.append('text')"),
        "variable-as-attribute": Case("s += gen('x')\ns.x"),
        "variable-taken-out": Case("s += gen('x')\ndel s['x']"),
        "branches-attribute": Case("b = s.fork(2)\nb.text()"),
        "role-without-brackets": Case("with user:\n    s += 'Why?'"),
        "append-to-copy": Case("c = s.copy()\nc += 'x'"),
        "append-branches": Case("s += s.fork(2)"),
        "gen-as-text": Case("s += str(gen('x'))"),
        "gen-attribute": Case("s += gen('x').strip()"),
        "gen-compared": Case("ok = gen('x') == 'yes'"),
        "gen-as-condition": Case("if gen('x'):\n    pass"),
        "gen-as-variable": Case("s['x'] = gen('y')"),
        "gen-in-fstring": Case("s += f'{gen(\"x\")}'"),
        "end-without-begin": Case("s += user_end()"),
        "nested-turns-at-run-time": Case("s += user_begin()\ns += assistant('x')"),
        "text-in-brackets": Case("with s.user('text'):\n    pass"),
        "literal-of-number": Case("s += text(5)"),
        "name-no-text": Case("s += gen(5)"),
        "stop-no-list": Case("s += gen('x', stop=5)"),
        "stop-empty": Case("s += gen('x', stop='')"),
        "length": Case("s += gen('x', max_tokens=-1)"),
        "least-above-length": Case("s += gen('x', min_tokens=9, max_tokens=3)"),
        "pattern": Case("s += gen('x', regex='(a')"),
        "grammar-rule": Case("s += gen('x', ebnf='root ::= move+')"),
        "grammar-quotes": Case("""s += gen('x', ebnf="root ::= 'a'")"""),
        "dtype-name": Case("s += gen('x', dtype='integer')"),
        "temperature": Case("s += gen('x', temperature=-1)"),
        "samples": Case("s += gen('x', n=65)"),
        "select-sampled": Case("s += select('x', ['a', 'b'], temperature=0.7)"),
        "select-without-choices": Case("s += select('x')"),
        "too-many-options": Case("s += select('x', [str(i) for i in range(1025)])"),
        "image": Case("s += image('cat.png')"),
        "reasoning-without-expression": Case("s += separate_reasoning()"),
        "reasoning-of-text": Case("s += separate_reasoning('text')"),
        "reasoning-family": Case("s += separate_reasoning(gen('x'), 'gpt9')"),
        "unknown-variable": Case("s += gen('answer')\ns['anwser']"),
        "state-in-a-loop": Case("for part in s:\n    pass"),
        "fork-width": Case("s.fork(0)"),
        "fork-no-number": Case("s.fork('two')"),
        "branch-by-name": Case("b = s.fork(2)\nb['x']"),
        "expressions-for-branches": Case("b = s.fork(3)\nb += ['one', 'two']"),
        "append-to-joined": Case("b = s.fork(2)\nb.join()\nb[0] += 'more'"),
        "joined-twice": Case("b = s.fork(2)\nb.join()\nb.join()"),
        "join-mode": Case("b = s.fork(2)\nb.join('gather')"),
        "join-by-without-best": Case("b = s.fork(2)\nb.join(by='x')"),
        "join-by-number": Case("b = s.fork(2)\nb.join('best', by=3)"),
        "join-kv": Case("b = s.fork(2)\nb.join('concate_and_append', method='kv')"),
        "best-without-log-probabilities": Case("b = s.fork(2)\nb += gen('x')\nb.join('best')"),
        "best-without-number": Case("b = s.fork(2)\nb += gen('x')\nb.join('best', by='x')"),
        "best-without-variable": Case("b = s.fork(2)\nb += gen('x')\nb.join('best', by='score')"),
        "foreign-mark": Case("s.rewind(5)"),
    },
    "Raised where it is read": {
        "engine-refuses-a-request": Case("s += 'x' + gen('x')\ns['x']", script={"x": FAULT}),
        "engine-refuses-a-branch": Case("b = s.fork(2)\nb += gen('x')\nb.join()\ns['x']", script={"x": ["fine", FAULT]}),
        "engine-dies": Case("s += 'x' + gen('x')\ns['x']", script=HANG, dies=True),
    },
    "Programs and files": {
        "no-engine": Case("hello.run('you')", ordinary=True, engine=False),
        "no-engine-for-numbers": Case("sgl.get_server_info()", ordinary=True, engine=False),
        "not-a-function": Case("@sgl.function\nclass Ask: ...", ordinary=True),
        "no-parameter": Case("@sgl.function\ndef ask():\n    pass", ordinary=True),
        "bind-unknown": Case("hello.bind(nam='you')", ordinary=True),
        "batch-item": Case("hello.run_batch(['you'])", ordinary=True),
        "batch-threads": Case("hello.run_batch([('you',)], num_threads='many')", ordinary=True),
        "program-attribute": Case("hello.batch([('you',)])", ordinary=True),
        "run-as-state": Case("hello.run_async('you')['x']", ordinary=True),
        "run-passes": Case("hello.run('you', passes=['fold_texts'])", ordinary=True),
        "run-backend": Case("hello.run('you', backend='main')", ordinary=True),
        "no-backend": Case("sgl.set_default_backend('main')", ordinary=True),
        "run-n": Case("hello.run('you', n=0)", ordinary=True),
        "run-temperature": Case("s += 'x'\nhello.run('you', temperature=-1)"),
        "run-unknown": Case("hello.run('you', temprature=0)", ordinary=True),
        "run-name-of-gen": Case("hello.run('you', max_tokens=8)", ordinary=True),
        "run-stop-regex": Case("hello.run('you', stop_regex='a+')", ordinary=True),
        "run-priority": Case("hello.run('you', priority='high')", ordinary=True),
        "run-extra-key": Case("hello.run('you', extra_key=5)", ordinary=True),
        "with-outside-program": Case("with sgl.user(): ...", ordinary=True),
        "no-such-call": Case("sgl.flush_cache()", ordinary=True),
        "endless": Case("def ask(s):\n    return ask(s)\nask(s)"),
        "saved-value": Case("state = hello.run('you')\nstate['y'] = {1, 2}\nstate.save('saved.json')", ordinary=True),
        "saved-no-json": Case("sgl.load_state('saved.json')", ordinary=True, file="text"),
        "saved-foreign": Case("sgl.load_state('saved.json')", ordinary=True, file="{}"),
        "saved-version": Case(
            "sgl.load_state('saved.json')", ordinary=True, file='{"format": "sgnb-state", "version": 99}'
        ),
    },
}  # fmt: skip


@functools.cache
def error_of(case: Case) -> SgnbError:
    """What the case raises."""
    backend = MockBackend(case.script if case.script is not None else {"x": "fine"})
    try:
        if case.ordinary:
            _run_ordinary(case, backend)
        else:
            run = _start_cell(case, backend)
            if case.dies:
                run.start()
                run.core.wait_plain(lambda: bool(backend.prompts), 30)
                backend.kill("The engine ended: killed by signal 9.")
                run.result(30)
            run.drive(30)
    except SgnbError as error:
        return error
    finally:
        backend.shutdown()
    raise AssertionError(f"{case.text!r} raises nothing")


def _start_cell(case: Case, backend: MockBackend) -> Run:
    """Begin a ``%%sgl`` cell, as the magic does."""
    user_ns: dict[str, Any] = {"hello": hello, "other": MockBackend("", model="another")}
    if case.before:
        sgl.set_default_backend(backend)
        try:
            exec(case.before, user_ns)
        finally:
            sgl.set_default_backend(None)
    start = parse_cell(case.magic.removeprefix("%%sgl")).start if case.magic else None
    first_line = 2 if case.magic else 1
    return run_cell(
        case.text, cell_name="1", user_ns=user_ns, backend=backend, start=start, first_line=first_line, magic=case.magic
    )  # fmt: skip


def _run_ordinary(case: Case, backend: MockBackend) -> None:
    """Run the text as a notebook's cell without magic."""
    name = "<ordinary cell>"
    linecache.cache[name] = (len(case.text), None, case.text.splitlines(True), name)
    sgl.set_default_backend(backend if case.engine else None)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            if case.file:
                Path("saved.json").write_text(case.file, encoding="utf-8")
            exec(compile(case.text, name, "exec"), {"sgl": sgl, "hello": hello})
    finally:
        sgl.set_default_backend(None)


def shown(case: Case) -> str:
    """The error as it is shown."""
    error = error_of(case)
    lines = [f"{type(error).__name__}: {error.lines()[0]}", *error.lines()[1:]]
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines)


def page() -> str:
    """``docs/errors.md``. Cells stand in plain fences: formatters rewrite what they take for Python."""
    count = sum(map(len, CATALOGUE.values()))
    out = [
        "# Errors\n",
        "What can go wrong in a program, what is shown, and what to do. Each names its place, says in one sentence what",
        f"is wrong, and how to go on. This page is made of the list that the tests hold ({count} cases).\n",
    ]
    for title, cases in CATALOGUE.items():
        out.append(f"## {title}\n")
        for name, case in cases.items():
            before = f"```text\n{case.before}\n```\n\n" if case.before else ""
            out.append(
                f"### {name}\n\n{before}```text\n{case.whole.rstrip()}\n```\n\n```text\n{shown(case)}\n```\n"
            )
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
