"""Renders a chat template in a process of its own, under limits the operating system keeps.

A child of the tokenizer process, started by ``chat_template.py`` once per model (the result is cached), and kept by
``template_renderer.py`` for a template whose conversations must be rendered whole. A template comes
with a model file, so it is input from a stranger: it may loop, grow without bound or reach for Python's internals. Here
it has a sandbox, seconds of CPU, a bound on memory, and nothing but stdin and stdout. Run as a script: it imports
jinja2 and the standard library only, nothing of sgnb, and must stay so.

Once (no argument ``serve``), stdin: ``{"template": str, "variables": {}, "conversations": {key: {"messages": [...],
"add_generation_prompt": bool}}, "parent": int, "cpu_seconds": int, "memory_bytes": int, "output_chars": int}``;
stdout: ``{key: {"text": str} | {"error": str}}``.
``serve``: the first line of stdin is the same without conversations; then each line is one conversation, and each is
answered with one line ``{"text": str} | {"error": str}``. The CPU bound holds for each conversation.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import resource
import signal
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

_PR_SET_PDEATHSIG = 1


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Refuses internals at once: by default an unsafe attribute prints as nothing, silently."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """Raise for an attribute the sandbox forbids."""
        raise jinja2.exceptions.SecurityError(f"access to attribute {attribute!r} is not allowed")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Any) -> Any:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def compile_template(request: dict[str, Any]) -> jinja2.Template:
    """The request's template in the sandbox."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(request["template"])


def render(
    template: jinja2.Template, request: dict[str, Any], conversation: dict[str, Any]
) -> dict[str, str]:
    """One conversation's text or error."""
    try:
        size, pieces = 0, []
        for piece in template.generate(**request["variables"], **conversation):
            size += len(piece)
            if size > request["output_chars"]:
                raise ValueError(f"it renders more than {request['output_chars']} characters")
            pieces.append(piece)
        return {"text": "".join(pieces)}
    except Exception as error:  # whatever a stranger's template raises is a result, not a fault
        return {"error": _words(error)}


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _end_with_parent(parent: int) -> None:
    """The engine must be gone soon after its owner; this child with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _limit(request: dict[str, Any]) -> None:
    _end_with_parent(request["parent"])
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"], request["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_cpu(request["cpu_seconds"])


def _limit_cpu(seconds: int) -> None:
    """From now on: so much CPU, and four times as much by the clock."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))
    # The default action of SIGALRM ends the process: a bound that holds even if the parent is gone.
    signal.alarm(4 * seconds)


def main() -> None:
    """Read one request, answer, end."""
    request = json.load(sys.stdin)
    _limit(request)
    try:
        template = compile_template(request)
        answer: dict[str, Any] = {
            key: render(template, request, c) for key, c in request["conversations"].items()
        }
    except Exception as error:  # a syntax error, or too little memory to compile
        answer = {"": {"error": _words(error)}}
    json.dump(answer, sys.stdout)


def serve() -> None:
    """Answer one conversation after the other, until stdin ends."""
    request = json.loads(sys.stdin.readline())
    _limit(request)
    template = compile_template(request)
    for line in sys.stdin:
        _limit_cpu(request["cpu_seconds"])
        answer = render(template, request, json.loads(line))
        signal.alarm(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve() if "serve" in sys.argv else main()
