"""Rows of the bug log about outputs and comms that a kernel alone can show (B166, B172, B177); HTML and text of displays."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from kernel_rig import Kernel
from test_life import LAUNCH
from test_magics import new_subshell

TAGS = {"table", "tr", "th", "td", "b", "br", "code", "pre", "details", "summary"}
HEADING = "# not a heading\n\n- no list\n```python\nprint(1)  # no fence is closed\n| a | b |\n|---|---|"
LATE_PLOT = """
from IPython.display import display
pending = []
def show_pending():
    while pending:
        display({"text/plain": pending.pop()}, raw=True)
get_ipython().events.register("post_execute", show_pending)
"""


@pytest.mark.comm
def test_B166_what_a_cell_has_pending_is_shown_by_that_cell(shared: Kernel) -> None:
    """Acknowledgements and Stop come on a subshell, where hooks would show the running cell's figure as their answer."""
    shared.ok(LATE_PLOT)
    shared.ok("use_mock('word ' * 2000, delay=0.02)")
    subshell = new_subshell(shared)
    msg_id = shared.start('%%sgl -o part\npending.append("the figure")\ns += gen("x", max_tokens=2000)')
    comm_id = ""
    while not comm_id:
        message = shared.client.get_iopub_msg(timeout=30)
        state = message["content"].get("data", {})
        if message["header"]["msg_type"] == "comm_open" and "snapshot" in state.get("state", {}):
            comm_id = message["content"]["comm_id"]

    def say(**content: Any) -> None:
        message = shared.client.session.msg(
            "comm_msg", {"comm_id": comm_id, "data": {"method": "custom", "content": content}}
        )
        message["header"]["subshell_id"] = subshell
        shared.client.shell_channel.send(message)

    say(k="hello")
    say(k="ack", seq=1)
    early = shared.gather(1.0)
    assert not [m for m in early if m["content"].get("data", {}).get("text/plain") == "the figure"]
    say(k="stop")
    result = shared.finish(msg_id)
    assert "KeyboardInterrupt: stopped" in result.error
    assert [c["data"]["text/plain"] for c in result.of("display_data")].count("the figure") == 1
    shared.ok('get_ipython().events.unregister("post_execute", show_pending)')


@pytest.mark.widget
def test_B172_views_end_in_peace_when_their_comms_are_gone(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    kernel.ok(LAUNCH)
    kernel.ok('%%sgl -o out\ns += "abc" + gen("x", max_tokens=3)')
    kernel.ok("%sgl view tree")
    kernel.ok("import sgnb\nv = sgnb.kv_map()\nv.open()")
    kernel.ok("import comm\ncomm.get_comm_manager().comms.clear()")
    for code in ("v.close()", "%sgl stop", '%%sgl -o out\nimport math\ns += "x"', "%unload_ext sgnb"):
        result = kernel.ok(code)
        assert not result.error and "Traceback" not in result.stderr, result.stderr


@pytest.mark.widget
def test_B177_markdown_in_text_stays_text(shared: Kernel) -> None:
    shared.ok(f"use_mock({HEADING!r})")
    result = shared.ok('%%sgl -o out\ns += user("# also none") + assistant(gen("x", max_tokens=400))')
    for shown in [*result.of("display_data"), *result.of("update_display_data")]:
        assert not set(shown["data"]) & {"text/markdown", "text/latex", "image/svg+xml"}
    assert tags_of(result.html) <= TAGS
    for line in HEADING.split("\n"):
        assert f"    {line}".rstrip() in [one.rstrip() for one in result.plain.split("\n")], line
    assert "".join(HEADING.split()) in "".join(text_in(result.html).split())


# ---------------------------------------------------------------- twins


class Reader(HTMLParser):
    """Tags, attributes and text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.text.append("\n")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def tags_of(html: str) -> set[str]:
    return Reader(html).tags


def text_in(html: str) -> str:
    return "".join(Reader(html).text)


def words_of(text: str) -> list[str]:
    """Words and numbers, without the marks that lay a table out in the one form or the other."""
    return re.findall(r"[^\s\[\]:,;·]+", text.replace("\u2009", ""))


CELLS = {
    "a run": '%%sgl -o out\ns += system("Be brief.") + user("What?")\nforks = s.fork(2)\nfor i, b in enumerate(forks):\n'
    '    b += f"Arm {i}: " + gen("x", max_tokens=6, ignore_eos=True)\n    b += select("pick", ["yes", "no"])\nforks.join()',
    "a failed run": '%%sgl\ns += user("Before")\ns += gen("x", max_tokens=3)\n1 / 0',
    "the tree": "%sgl view tree",
    "the map": "%sgl view kv",
    "the timeline": "%sgl view timeline",
    "the graph of a run": "%sgl view graph out",
    "a program's graph": "import sgnb\n@sgnb.function\ndef two(s):\n"
    "    s += 'a' + sgnb.gen('x', max_tokens=4)\nsgnb.graph(two)",
    "the graph of the last cell": "%sgl view graph",
    "a run, shown again": "out",
}


def test_every_display_has_html_and_text_with_the_same_facts(kernel: Kernel) -> None:
    """On GitHub, in nbconvert, without a kernel: tables, no style that means something, no script; the same as text."""
    kernel.ok("%load_ext sgnb")
    kernel.ok(LAUNCH)
    for name, code in CELLS.items():
        result = kernel.run(code)
        shown = [*result.of("display_data"), *result.of("update_display_data"), *result.of("execute_result")]
        assert shown, f"{name}: {result.error}"
        data = shown[-1]["data"]
        if name == "a run, shown again":
            assert data["text/plain"]
            continue
        assert {"text/plain", "text/html"} <= set(data), name
        html, plain = data["text/html"], data["text/plain"]
        reader = Reader(html)
        assert reader.tags <= TAGS and reader.attributes <= {"colspan", "style"}, (
            name,
            reader.tags,
            reader.attributes,
        )
        assert set(re.findall(r"style=[^>]*", html)) <= {'style="text-align:left"'}, name
        assert set(words_of(text_in(html))) - {"role", "text", "cost"} <= set(words_of(plain)), (
            name,
            set(words_of(text_in(html))) - set(words_of(plain)),
        )
        numbers = [
            set(re.findall(r"\d+(?:\.\d+)?", text.replace("\u2009", ""))) for text in (text_in(html), plain)
        ]
        assert numbers[0] == numbers[1], (name, numbers[0] ^ numbers[1])
