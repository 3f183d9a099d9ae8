"""What a chat template puts before and after a turn of each role.

Tokenizer process; called by ``tokenizer.py`` once per model. Jinja runs in ``template_worker.py`` only, on sentinel
conversations; from their texts the parts are read off here, and a session is then put together from strings, turn by
turn, without Jinja. ``exact`` says that prefix and suffix rebuild every sentinel conversation, so that render(k) is a
prefix of render(k+1). Where they do not (a template that treats the last turn differently, folds the system text into
the first user turn, drops earlier thoughts, or refuses a system turn), ``exact`` is False: each prompt is rendered whole
(``conversation.py``), and the parts of each role's own rendering are for what cannot be rendered. Two listed differences
between an exact template's session and a rendered conversation: text of a turn is never trimmed, and the date, if the
template asks for one, is that of the engine's start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sgnb.engine.tokenizer.cache_file import read_cached, write_cached
from sgnb.messages import RoleTemplate

MAX_TEMPLATE_BYTES = 256 << 10
CPU_SECONDS = 4
WALL_SECONDS = 12.0
MEMORY_BYTES = 1 << 30
OUTPUT_CHARS = 1 << 20
_VERSION = 2
_WORKER = Path(__file__).with_name("template_worker.py")

log = logging.getLogger(__name__)


class TurnTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The texts around turns. ``error`` is set when the template is of no use: then there are no roles."""

    roles: dict[str, RoleTemplate] = {}
    default_system: str = ""
    """Whole text of the turn put first when a conversation does not open with a system turn; may be empty."""
    exact: bool = True
    opens_with_bos: bool = False
    """The template itself begins a conversation with the BOS text (it is not part of any prefix here)."""
    hash: str = ""
    error: str = ""

    def role(self, name: str) -> RoleTemplate | None:
        """The texts of role ``name``, or None."""
        return self.roles.get(name)


PLAIN = TurnTemplate(
    roles={
        "system": RoleTemplate(prefix="SYSTEM:", suffix="\n"),
        "user": RoleTemplate(prefix="USER:", suffix="\n"),
        "assistant": RoleTemplate(prefix="ASSISTANT:", suffix="\n"),
    },
    hash="plain",
)
"""For models without a chat template: SGLang's default."""

CHATML = TurnTemplate(
    roles={
        role: RoleTemplate(prefix=f"<|im_start|>{role}\n", suffix="<|im_end|>\n")
        for role in ("system", "user", "assistant")
    },
    hash="chatml",
)
"""What the stub tokenizer uses."""

_TEXT = {"S": "qsystem0z", "U": "quser1z", "A": "qassistant2z", "V": "quser3z", "B": "qassistant4z"}
_ROLE = {"S": "system", "U": "user", "A": "assistant", "V": "user", "B": "assistant"}
_PADDED = " \n{}\n "
_THOUGHT = "<think>\nqr5z\n</think>\n\n{}"
_PROBES = {_PADDED: "pad:", _THOUGHT: "think:"}
"""Texts that a template may rewrite: blanks around every turn, a thought before the assistant's."""
_CHAINS = ("S", "SU", "SUA", "SUAV", "SUAVB", "U", "UA", "UAV", "UAVB")
_PROMPTS = ("SU", "SUAV", "U", "UAV")


def read_template(
    source: str | None, variables: Mapping[str, str], model: str, cache: Path | None
) -> TurnTemplate:
    """The turn texts of a template's source. Never raises: a template of no use has ``error``, naming ``model``.

    ``variables`` are ``bos_token``, ``eos_token`` and the like. ``cache``: a folder, made if missing, or None.
    """
    if source is None:
        return PLAIN
    if len(source.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE_BYTES:
        return TurnTemplate(
            error=f"chat template of {model}: larger than {MAX_TEMPLATE_BYTES} bytes", exact=False
        )
    key = json.dumps([_VERSION, source, dict(sorted(variables.items()))])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    # A template that asks for the date is read at every start.
    path = cache / f"template-{digest}.cached" if cache and "strftime_now" not in source else None
    if path and (found := _read_cache(path)):
        return found
    try:
        renders = render_sentinels(source, variables)
        template = analyse(renders, variables.get("bos_token", ""), digest)
    except TemplateFault as fault:
        return TurnTemplate(error=f"chat template of {model}: {fault}", exact=False, hash=digest)
    if path:
        write_cached(path, msgspec.json.encode(template))
    return template


class TemplateFault(Exception):
    """A template cannot be used; the text says why."""


def render_sentinels(source: str, variables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Every sentinel conversation rendered in the worker; keys are chains of turns, ``+``: with generation prompt."""

    def conversation(chain: str, prompt: bool, form: str = "{}") -> dict[str, Any]:
        messages = [{"role": _ROLE[turn], "content": _TEXT[turn]} for turn in chain]
        for message in messages:
            if form == _PADDED or message["role"] == "assistant":
                message["content"] = form.format(message["content"])
        return {"messages": messages, "add_generation_prompt": prompt}

    conversations = {chain: conversation(chain, False) for chain in _CHAINS}
    conversations |= {f"{chain}+": conversation(chain, True) for chain in _PROMPTS}
    for form, probe in _PROBES.items():
        conversations |= {f"{probe}{chain}": conversation(chain, False, form) for chain in _CHAINS}
    request = {**worker_request(source, variables, OUTPUT_CHARS), "conversations": conversations}
    try:
        done = subprocess.run(
            worker_command(),
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TemplateFault(f"it was still rendering after {WALL_SECONDS:g} s") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise TemplateFault(f"it was stopped by {name}: more than {CPU_SECONDS} s of CPU, or too much memory")
    try:
        answer: dict[str, dict[str, str]] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise TemplateFault(f"it could not be rendered: {last[:300]}") from None
    if "" in answer:
        raise TemplateFault(answer[""]["error"])
    return answer


def worker_command(*options: str) -> list[str]:
    """How the worker is started."""
    # -P: the script's folder must not come before the standard library.
    return [sys.executable, "-P", str(_WORKER), "sgnb.engine", *options]


def worker_request(source: str, variables: Mapping[str, str], output_chars: int) -> dict[str, Any]:
    """What the worker is told first: the template and its limits."""
    return {
        "template": source,
        "variables": dict(variables),
        "parent": os.getpid(),
        "cpu_seconds": CPU_SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "output_chars": output_chars,
    }


def analyse(renders: Mapping[str, Mapping[str, str]], bos: str, digest: str) -> TurnTemplate:
    """Read prefix and suffix of each role off the renderings. TemplateFault when a user turn does not come out."""
    texts = {key: render["text"] for key, render in renders.items() if "text" in render and ":" not in key}
    if "U" not in texts:
        raise TemplateFault(renders.get("U", {}).get("error", "it renders nothing for a user turn"))
    opens_with_bos = _strip_bos(texts, bos)
    user, default_system = _user_turn(texts)
    assistant = _assistant_turn(texts, user)
    system = _system_turn(texts, user)
    template = TurnTemplate(
        roles={
            "system": system or RoleTemplate(prefix="", suffix="\n\n"),
            "user": user,
            "assistant": assistant,
        },
        default_system=default_system,
        opens_with_bos=opens_with_bos,
        hash=digest,
    )
    # A template may refuse a system turn that stands alone; any other refusal is a difference.
    missing = [
        chain for chain in (*_CHAINS, *(f"{c}+" for c in _PROMPTS)) if chain not in texts and chain != "S"
    ]
    same = all(_rebuild(template, key) == text for key, text in texts.items())
    rewrites = _rewrites(renders, texts)
    return msgspec.structs.replace(template, exact=bool(system) and same and not missing and not rewrites)


def _rewrites(renders: Mapping[str, Mapping[str, str]], texts: Mapping[str, str]) -> bool:
    """True when a later turn changes an earlier one, or a turn's thought does not come out as it was written.

    A template that trims every turn, wherever it stands, changes nothing afterwards.
    """
    for chain in (chain for chain in _CHAINS if chain in texts):
        padded = renders.get(f"pad:{chain}", {}).get("text")
        longer = [renders.get(f"pad:{other}", {}).get("text") for other in _CHAINS if other[:-1] == chain]
        if padded is None or any(other is not None and not other.startswith(padded) for other in longer):
            return True
        thought = renders.get(f"think:{chain}", {}).get("text", "")
        if any(_THOUGHT.format(_TEXT[turn]) not in thought for turn in chain if _ROLE[turn] == "assistant"):
            return True
    return False


def _strip_bos(texts: dict[str, str], bos: str) -> bool:
    """Take a BOS that stands once, at the very start, off all texts. A BOS before every user turn stays in it."""
    if not bos or not texts["U"].startswith(bos) or any(text.count(bos) > 1 for text in texts.values()):
        return False
    for key, text in texts.items():
        texts[key] = text.removeprefix(bos)
    return True


def _around(text: str, turn: str) -> tuple[str, str]:
    """What stands before and after the text of ``turn``."""
    before, found, after = text.partition(_TEXT[turn])
    if not found or _TEXT[turn] in after:
        raise TemplateFault("the text of a turn does not come out once, unchanged")
    return before, after


def _between(text: str, first: str, second: str) -> str | None:
    start, end = text.find(_TEXT[first]), text.find(_TEXT[second])
    return text[start + len(_TEXT[first]) : end] if 0 <= start < end else None


def _user_turn(texts: Mapping[str, str]) -> tuple[RoleTemplate, str]:
    """The user turn and the default system turn (what precedes the first user turn beyond a later one's prefix)."""
    head, suffix = _around(texts["U"], "U")
    prefix = head
    if "UAVB" in texts and (gap := _between(texts["UAVB"], "A", "V")) is not None:
        # The gap is the assistant's suffix and the user's prefix; the longest end it shares with the head is both's.
        _, end = _around(texts["UAVB"], "B")
        own = gap.removeprefix(end) if gap.startswith(end) else _shared_end(gap, head)
        if head.endswith(own):
            prefix = own
    return RoleTemplate(prefix=prefix, suffix=suffix), head[: len(head) - len(prefix)]


def _shared_end(a: str, b: str) -> str:
    size = 0
    while size < min(len(a), len(b)) and a[-size - 1] == b[-size - 1]:
        size += 1
    return a[len(a) - size :]


def _assistant_turn(texts: Mapping[str, str], user: RoleTemplate) -> RoleTemplate:
    """The generation prompt is what a model was trained to continue, so it is the prefix where there is one."""
    suffix = ""
    prefix: str | None = None
    if "UA" in texts and _TEXT["A"] in texts["UA"]:
        before, suffix = _around(texts["UA"], "A")
        if before.startswith(texts["U"]):
            prefix = before[len(texts["U"]) :]
    prompt = texts.get("U+", "")
    if prompt.startswith(texts["U"]) and len(prompt) > len(texts["U"]):
        prefix = prompt[len(texts["U"]) :]
    if prefix is None:
        gap = _between(texts.get("UA", ""), "U", "A") or ""
        prefix = gap.removeprefix(user.suffix)
    return RoleTemplate(prefix=prefix, suffix=suffix)


def _system_turn(texts: Mapping[str, str], user: RoleTemplate) -> RoleTemplate | None:
    """None when the template has no system turn of its own."""
    text = texts.get("SU", "")
    gap = _between(text, "S", "U")
    if gap is None or not gap.endswith(user.prefix):
        return None
    prefix = text[: text.find(_TEXT["S"])]
    return RoleTemplate(prefix=prefix, suffix=gap[: len(gap) - len(user.prefix)])


def _rebuild(template: TurnTemplate, key: str) -> str:
    """The conversation ``key`` as a session would put it together."""
    chain = key.removesuffix("+")
    out = "" if chain.startswith("S") else template.default_system
    for turn in chain:
        role = template.roles[_ROLE[turn]]
        out += role.prefix + _TEXT[turn] + role.suffix
    return out + template.roles["assistant"].prefix if key.endswith("+") else out


def _read_cache(path: Path) -> TurnTemplate | None:
    content = read_cached(path)
    try:
        return None if content is None else msgspec.json.decode(content, type=TurnTemplate)
    except ValueError as error:
        log.warning("%s: not usable, it is made again: %s", path, error)
        return None
