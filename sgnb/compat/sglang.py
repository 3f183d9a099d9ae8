"""``import sgnb.compat.sglang`` makes ``import sglang`` mean sgnb, so that SGLang's programs run unchanged.

Notebook process; imported by users. It stands in for the modules that programs and SGLang's own examples import: the
language itself, ``lang.ir`` with its regular expressions for types, ``lang.choices``, ``global_config``, ``Runtime``. What
needs a server or another company's model is refused where it is called, with what to do instead. It never hides a real
SGLang that is imported already. Nothing of SGLang is in here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NoReturn

import sgnb
from sgnb.backends.base import Backend, get_default_backend, require_backend, set_default_backend
from sgnb.errors import NoEngine, ProgramError
from sgnb.lang import choices
from sgnb.lang.position import here, internal
from sgnb.lang.schema import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

internal(__name__)


IGNORED_ARGS = (
    "tp_size",
    "modeling",
    "torchao_config",
    "log_level",
    "trust_remote_code",
    "disable_cuda_graph",
)
"""Arguments of ``Runtime`` and ``Engine`` about hardware and kernels that change no answer here."""


class RuntimeView:
    """A backend as SGLang's ``Runtime`` and ``RuntimeEndpoint`` show it; everything else is the backend's own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @property
    def endpoint(self) -> RuntimeView:
        """Itself: there is no HTTP between the program and the engine."""
        return self

    def get_model_name(self) -> str:
        """The model's name."""
        return self._backend.model_name

    def get_server_info(self) -> dict[str, Any]:
        """The engine's numbers. Raises EngineError."""
        return sgnb.get_server_info(self._backend)

    def generate(self, prompt: Any = None, sampling_params: Any = None, input_ids: Any = None) -> Any:
        """``Engine.generate`` with the arguments in SGLang's order. Raises what that raises."""
        generate = getattr(self._backend, "generate", None)
        if generate is None:
            raise ProgramError(
                f"The backend {self._backend.model_name!r} has no generate().",
                hint="Only an engine has: sgnb.launch().",
                position=here(),
            )
        return generate(prompt, input_ids=input_ids, sampling_params=sampling_params)

    def get_tokenizer(self) -> Tokenizer:
        """The engine's tokenizer."""
        return Tokenizer(self._backend)


class Tokenizer:
    """Text to token ids, by the engine's own tokenizer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with special tokens parsed. Raises LimitError, EngineError."""
        client = getattr(self._backend, "client", None)
        if client is None:
            raise ProgramError(
                f"The backend {self._backend.model_name!r} has no tokenizer.",
                hint="Only an engine has: sgnb.launch().",
            )
        ids: list[int] = client.control("tokenize", {"text": text})["ids"]
        return ids


def get_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of the running engine, whose model must be ``model``. Raises NoEngine, ProgramError."""
    backend = require_backend(where=here)
    if model != backend.model_name:
        raise ProgramError(
            f"The engine runs {backend.model_name!r}, not {model!r}.",
            hint=f"Start one with that model: sgnb.launch({model!r}).",
        )
    return Tokenizer(backend)


class GlobalConfig:
    """SGLang's settings. ``default_backend`` is sgnb's; the others are kept and change nothing here."""

    verbosity = 0
    skip_special_tokens_in_output = True
    spaces_between_special_tokens_in_out = True
    enable_precache_with_tracing = True
    enable_parallel_encoding = True

    @property
    def default_backend(self) -> RuntimeView | None:
        """The default backend, or None."""
        backend = get_default_backend()
        return None if backend is None else RuntimeView(backend)

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        set_default_backend(backend)


def make_runtime(model_path: str | None = None, **arguments: Any) -> RuntimeView:
    """SGLang's ``Runtime`` and ``Engine``: start an engine. Arguments are sgnb's (``EngineArgs``); those about
    kernels are ignored.

    Raises what ``sgnb.launch`` raises.
    """
    kept = {name: value for name, value in arguments.items() if name not in IGNORED_ARGS}
    return RuntimeView(sgnb.launch(model_path, **kept))


def make_endpoint(base_url: str | None = None, *_: object, **__: object) -> RuntimeView:
    """SGLang's ``RuntimeEndpoint``: the engine that runs in this notebook, whatever the address.

    Raises NoEngine when none does: sgnb speaks to its engines without TCP, so an address cannot be followed.
    """
    backend = get_default_backend()
    if backend is None:
        raise NoEngine(
            f"RuntimeEndpoint({base_url!r}) stands for the engine of this notebook, and none is running.",
            hint="Start one with sgnb.launch(), or use another notebook's with sgnb.attach(name).",
        )
    return RuntimeView(backend)


def is_hip() -> bool:
    """False: the engine asks its hardware itself."""
    return False


def read_jsonl(filename: str) -> Iterable[Any]:
    """The values of a file of JSON lines; lines that begin with # are left out."""
    with open(filename, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                yield json.loads(line)


def dump_state_text(filename: str, states: Iterable[Any], mode: str = "w") -> None:
    """Write the texts of states (or texts) to a file, numbered."""
    with open(filename, mode, encoding="utf-8") as file:
        for number, state in enumerate(states):
            text = state if isinstance(state, str) else state.text()
            file.write(f"{'=' * 40} {number} {'=' * 40}\n{text}\n{'=' * 84}\n\n")


def print_highlight(content: object) -> None:
    """Print it."""
    print(content)


def _refuse(name: str, why: str, hint: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise ProgramError(f"{name} {why}.", hint=hint, position=here())

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Refused: {name} {why}."
    return refuse


_LAUNCH = "Programs run on an engine of this notebook: sgnb.launch()."
_SERVER = "starts or asks a server over HTTP, which sgnb has not"
_CLIENTS = {
    name: _refuse(f"sglang.{name}", "asks another company's service, which this version cannot", _LAUNCH)
    for name in ("Anthropic", "Crusoe", "LiteLLM", "OpenAI", "Shortfin", "VertexAI")
}
_CONFIG = GlobalConfig()
_REGEXES = {
    "REGEX_INT": REGEX_INT,
    "REGEX_FLOAT": REGEX_FLOAT,
    "REGEX_BOOL": REGEX_BOOL,
    "REGEX_STR": REGEX_STR,
}
_MODULES: dict[str, dict[str, Any]] = {
    "": {
        **_CLIENTS,
        "Engine": make_runtime,
        "Runtime": make_runtime,
        "RuntimeEndpoint": make_endpoint,
        "ServerArgs": _refuse("sglang.ServerArgs", _SERVER, _LAUNCH),
        "global_config": _CONFIG,
    },
    "global_config": {"global_config": _CONFIG, "GlobalConfig": GlobalConfig},
    "lang": {},
    "lang.api": {},
    "lang.backend": {},
    "lang.backend.runtime_endpoint": {"RuntimeEndpoint": make_endpoint, "Runtime": make_runtime},
    "lang.chat_template": {
        "get_chat_template": _refuse(
            "get_chat_template", "is not needed", "The template is the model's own, read from its file."
        )
    },
    "lang.choices": {name: getattr(choices, name) for name in ("ChoicesDecision", *choices.METHODS)},
    "lang.global_config": {"global_config": _CONFIG, "GlobalConfig": GlobalConfig},
    "lang.ir": _REGEXES,
    "srt": {},
    "srt.constrained": {},
    "srt.constrained.outlines_backend": {
        "build_regex_from_object": _refuse(
            "build_regex_from_object", "makes a worse constraint than the schema itself",
            "Give the class: gen(json_schema=TheModel).",
        )
    },
    "srt.hf_transformers_utils": {"get_tokenizer": get_tokenizer},
    "srt.utils": {"is_hip": is_hip},
    "srt.utils.hf_transformers_utils": {"get_tokenizer": get_tokenizer},
    "utils": {
        "dump_state_text": dump_state_text,
        "print_highlight": print_highlight,
        "read_jsonl": read_jsonl,
        **{name: _refuse(f"sglang.utils.{name}", _SERVER, _LAUNCH)
           for name in ("http_request", "launch_server_cmd", "terminate_process", "wait_for_server")},
    },
}  # fmt: skip
"""Module of SGLang → the names it has here. ``sglang`` itself and ``lang.api`` have sgnb's public names besides."""


class _Alias(ModuleType):
    """A module that has sgnb's public names besides its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(sgnb, name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *sgnb.__all__})


def install() -> ModuleType:
    """Put the alias into ``sys.modules``; returns it. Raises ImportError when the real SGLang is there already."""
    found = sys.modules.get("sglang")
    if isinstance(found, _Alias):
        return found
    if found is not None:
        raise ImportError("the real sglang is imported already; import sgnb.compat.sglang before it")
    made: dict[str, ModuleType] = {}
    for path, names in _MODULES.items():
        name = f"sglang.{path}" if path else "sglang"
        module = made[name] = _Alias(name, sgnb.__doc__) if path in ("", "lang.api") else ModuleType(name)
        module.__path__ = []  # a package, so that a module below it is looked for in sys.modules
        vars(module).update(names)
        parent, _, child = name.rpartition(".")
        if parent and child not in vars(made[parent]):
            setattr(made[parent], child, module)
    vars(made["sglang"])["__version__"] = sgnb.__version__
    vars(made["sglang"])["__all__"] = [*sgnb.__all__, *_MODULES[""]]
    sys.modules |= made
    return made["sglang"]


def uninstall() -> None:
    """Take the alias out again."""
    if isinstance(sys.modules.get("sglang"), _Alias):
        for path in _MODULES:
            sys.modules.pop(f"sglang.{path}" if path else "sglang", None)


install()
