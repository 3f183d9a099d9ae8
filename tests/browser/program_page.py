"""A bare page with one program view on a scripted run: the fold is the real one, the kernel's answers are given here."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from playwright.sync_api import Browser, Page
from view_page import DARK, LIGHT, ROOT

from sgnb.backends.base import TokenInfo
from sgnb.messages import PromptText
from sgnb.runtime import events as ev
from sgnb.widgets.bundle import STATIC, join_modules
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_messages import FoldMessages

FINDINGS = [
    '`form["file"]` raises KeyError when the field is missing, so a bad request becomes a 500. '
    "Use `form.get` and answer 400 when it is None.",
    "The client chooses `f.filename`, so `../../x` writes outside AVATAR_DIR. Store the file under "
    "`user.id` with a name the server picks.",
    "`open` and `write` block the event loop: a 20 MB upload stalls every other request. Move the write to a "
    "thread with `asyncio.to_thread`, and read the body in chunks.",
]
SYSTEM = (
    "You review pull requests for a Python web service. Be brief and concrete.\n"
    "@@ -18,9 +18,13 @@ async def upload_avatar(request, user):\n-    data = await request.body()\n"
    "+    form = await request.form()\n+    f = form['file']\n"
)
ANGLES = ("correctness", "security", "performance")
SHARES = [(0.20, 0.77, 0.03), (0.91, 0.08, 0.01), (0.64, 0.30, 0.06)]
JSON = '{"decision": "reject", "blocking": "security", "fix": "Store under user.id and cap the size."}'
FORCED = ('{"', '":', '",', '"', '"}')


def tokens_of(text: str, *, forced: bool = False) -> list[TokenInfo]:
    """Words as tokens, with probabilities that repeat; ``forced``: JSON's marks are the grammar's."""
    pieces = [word if i == 0 else f" {word}" for i, word in enumerate(text.split(" "))]
    chances = (0.97, 0.7, 0.99, 0.42, 0.95, 0.2, 0.9, 0.99, 0.06)
    out = []
    for number, piece in enumerate(pieces):
        chance = chances[(number * 7 + len(piece)) % len(chances)]
        mark = forced and any(sign in piece for sign in FORCED)
        top = (
            (math.log(chance), 100 + number),
            (math.log((1 - chance) * 0.7), 7),
            (math.log((1 - chance) * 0.2), 8),
        )
        out.append(
            TokenInfo(
                100 + number,
                math.log(chance),
                top,
                piece.encode(),
                3 if forced else 0,
                7 if forced else -1,
                mark,
            )
        )
    return out


class Script:
    """A run, event by event. ``log`` may be read at any moment."""

    def __init__(self, *, logprobs: bool = True, graph: object = None) -> None:
        self.log = ev.EventLog()
        self.logprobs = logprobs
        self.texts: dict[int, str] = {}
        """What each state has appended and no generation has read."""
        self.log.append(ev.RunStarted("[7]", "7", "Qwen3-0.6B", graph))
        self.log.append(ev.StateOpened(1, ""))

    def turn(self, state: int, role: str, text: str, line: int) -> None:
        self.log.append(ev.RoleBegan(state, role))
        self.log.append(ev.TextAppended(state, text, line))
        self.log.append(ev.RoleEnded(state, role))
        self.texts[state] = f"{self.texts.get(state, '')}<{role}>{text}"

    def gen(
        self,
        state: int,
        name: str,
        text: str,
        line: int,
        *,
        prompt: tuple[int, int],
        stop: Any = "\n\n",
        shape: str = "",
    ) -> None:
        rid = self.start(state, name, line, shape=shape)
        self.say(rid, text, forced=bool(shape))
        self.done(
            rid,
            len(text.split(" ")),
            prompt,
            stop=stop,
            forced=sum(t.forced for t in tokens_of(text, forced=bool(shape))),
        )

    def start(self, state: int, name: str, line: int, *, shape: str = "", limit: int = 120) -> str:
        rid = f"{state}.{name}"
        self.log.append(ev.GenQueued(state, rid, name, line, limit, shape=shape))
        self.log.append(ev.GenStarted(rid))
        return rid

    def say(self, rid: str, text: str, *, forced: bool = False) -> None:
        for token in tokens_of(text, forced=forced):
            details = (token,) if self.logprobs else ()
            self.log.append(ev.GenDelta(rid, token.raw.decode(), 1, (), details))

    def done(
        self, rid: str, count: int, prompt: tuple[int, int], *, stop: Any = "\n\n", forced: int = 0
    ) -> None:
        meta = {
            "prompt_tokens": prompt[1],
            "cached_tokens": prompt[0],
            "completion_tokens": count,
            "forced_tokens": forced,
            "e2e_latency": 0.38,
            "first_step": 1160,
            "last_step": 1160 + count - 1,
            "finish": "grammar" if stop is None else "stop",
            "finish_reason": {"type": "stop", "matched": stop},
        }
        pieces = re.findall(r"<[a-z]+>|\s*[^\s<]+|\s*<|\s+", self.texts.pop(int(rid.split(".")[0]), ""))
        told = PromptText(
            first=max(0, prompt[1] - len(pieces)),
            lengths=[len(piece.encode()) for piece in pieces],
            raw="".join(pieces).encode(),
        )
        self.log.append(ev.GenDone(rid, meta, told if pieces else None))

    def select(
        self,
        state: int,
        name: str,
        line: int,
        shares: tuple[float, ...] | None,
        options: tuple[str, ...] = ("high", "medium", "low"),
    ) -> None:
        rid = f"{state}.{name}"
        self.log.append(ev.GenQueued(state, rid, name, line, 0, options=options))
        if shares is None:
            return
        self.log.append(ev.GenStarted(rid))
        winner = shares.index(max(shares))
        self.log.append(ev.GenDelta(rid, options[winner]))
        meta: dict[str, Any] = {
            "prompt_tokens": 387,
            "cached_tokens": 378,
            "completion_tokens": 0,
            "e2e_latency": 0.03,
        }
        meta |= {"choice": winner, "normalized_prompt_logprobs": [math.log(share) for share in shares]}
        self.log.append(
            ev.GenDone(rid, meta | {"finish": "stop", "finish_reason": {"type": "stop", "matched": None}})
        )

    def fork(self, count: int, *, parent: int = 1, number: int = 1, first: int = 2, prefix: str = "") -> None:
        for index in range(count):
            self.log.append(ev.StateOpened(first + index, f"{prefix}{index}", parent, number))
            self.texts[first + index] = self.texts.get(parent, "")

    def finish(self, status: str = "finished", error: BaseException | None = None) -> None:
        times = {"queue": 0.01, "prefill": 0.06, "decode": 0.71, "python": 0.02}
        names = ("finding", "severity", "verdict")
        self.log.append(ev.RunFinished(status, 0.8, error, times, "verdict", names))


def review(*, finished: bool = True, arms: int = 3, logprobs: bool = True, graph: object = None) -> Script:
    """The run of the pictures: a fork of ``arms`` reviews and a verdict; or that run on its way."""
    script = Script(logprobs=logprobs, graph=graph)
    script.turn(1, "system", SYSTEM, 1)
    script.fork(arms)
    for index in range(arms):
        script.turn(
            2 + index,
            "user",
            f"Review the diff above for {ANGLES[index % 3]} only. Name the worst problem and how to fix it.",
            4,
        )
    for index in range(arms):
        state = 2 + index
        text = FINDINGS[index % 3]
        script.log.append(ev.RoleBegan(state, "assistant"))
        if not finished and index == arms - 1:
            script.say(script.start(state, "finding", 5), text[:120])
            script.select(state, "severity", 6, None)
            continue
        script.gen(state, "finding", text, 5, prompt=(312, 340))
        script.log.append(ev.RoleEnded(state, "assistant"))
        if not finished and index == 0:
            script.select(state, "severity", 6, None)
            script.log.append(ev.GenStarted(f"{state}.severity"))
        else:
            script.select(state, "severity", 6, SHARES[index % 3])
    if finished:
        script.log.append(ev.BranchesJoined(1, arms, tuple(range(2, 2 + arms)), 7))
        script.turn(
            1, "user", "correctness (medium): " + FINDINGS[0] + "\n" + FINDINGS[1] + "\n" + FINDINGS[2], 8
        )
        script.log.append(ev.RoleBegan(1, "assistant"))
        script.gen(1, "verdict", JSON, 9, prompt=(312, 476), stop=None, shape="JSON schema Verdict")
        script.log.append(ev.RoleEnded(1, "assistant"))
        script.finish()
    return script


def messages_of(script: Script) -> FoldMessages:
    fold = ProgramFold(times=True)
    fold.feed(script.log.since(0))
    return FoldMessages(fold)


def snapshot_of(script: Script) -> dict[str, Any]:
    return messages_of(script).snapshot()


def ends_of(told: FoldMessages) -> dict[str, list[int]]:
    """Where the tokens of every prompt text end, as the kernel answers: ``"row.segment"`` → ends."""
    return {
        f"{row}.{number}": told.text_ends(row, number)
        for row, shown in enumerate(told.fold.rows)
        for number, segment in enumerate(shown.segments)
        if segment.prompt is not None
    }


KERNEL = (ROOT / "tests/js/fake_program.js").read_text()


def open_program(
    browser: Browser,
    snapshot: dict[str, Any],
    *,
    width: int = 1180,
    dark: bool = False,
    height: int = 900,
    shade: str = "none",
    ends: dict[str, list[int]] | None = None,
    before: str = "",
) -> Page:
    """A page that shows the snapshot; ``before``: a script that runs before the view's."""
    page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page.errors = []  # type: ignore[attr-defined]
    page.requests = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.errors.append(str(error)))  # type: ignore[attr-defined]
    page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))  # type: ignore[attr-defined]
    page.on("request", lambda request: page.requests.append(request.url))  # type: ignore[attr-defined]
    theme = ";".join(f"--jp-{name}:{value}" for name, value in (DARK if dark else LIGHT).items())
    script = join_modules("program.js").replace("export default widget;", "")
    page.set_content(
        f'<!doctype html><meta charset="utf-8"><style>body{{margin:0;background:{"#111" if dark else "#fff"};{theme};'
        '--jp-ui-font-family:"DejaVu Sans",sans-serif;--jp-code-font-family:"DejaVu Sans Mono",monospace}'
        f"{(STATIC / 'keys.css').read_text()}{(STATIC / 'program.css').read_text()}</style>"
        f'<body data-jp-theme-light="{"false" if dark else "true"}"><div id="place"></div>'
    )
    if before:
        page.add_script_tag(content=before)
    page.add_script_tag(
        content=f"{script}\n{KERNEL.replace('SNAPSHOT', json.dumps(snapshot))}"
        f"\nwindow.ends = {json.dumps(ends or {})};",
        type="module",
    )
    page.wait_for_selector(".sgnb-program[data-seq]")
    if shade != "none":
        page.locator(f'[role="radio"][data-value="{shade}"]').evaluate("node => node.click()")
    return page
