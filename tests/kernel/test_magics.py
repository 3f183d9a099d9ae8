"""The magics in a real kernel, on a scripted backend: messages, words, errors, output forms."""

from __future__ import annotations

import time

import pytest
from kernel_rig import MOCK, PROMPT_SECONDS, Kernel

HOSTILE = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script><a href="javascript:alert(3)">x</a>'
    "<svg onload=alert(4)></svg>\x1b[2J\x1b]8;;http://evil.test\x07link\x1b]8;;\x07 \u202eevil\u202c # no heading ```"
)
PARIS = 's += user("What is the capital of France?")\ns += assistant(gen("answer", max_tokens=40))'


def test_load_takes_half_a_second_and_no_torch(kernel: Kernel) -> None:
    kernel.ok("import time, sys")
    took = kernel.ok("t = time.perf_counter()\n%load_ext sgnb\nprint(time.perf_counter() - t)").stdout
    if float(took) > 0.5:  # the machine is shared: the process's own time says what is ours
        kernel.manager.restart_kernel(now=True)
        kernel.client.wait_for_ready(timeout=60)
        kernel.ok("import time, sys")
        took = kernel.ok("t = time.process_time()\n%load_ext sgnb\nprint(time.process_time() - t)").stdout
    assert float(took) <= 0.5
    loaded = kernel.value("sorted({m.partition('.')[0] for m in sys.modules})")
    assert not {"torch", "transformers", "xgrammar", "ipywidgets", "anywidget", "tokenizers"} & set(loaded)


def test_a_cell_streams_and_ends_with_one_bundle(shared: Kernel) -> None:
    shared.ok("use_mock('Paris is the capital of France.', delay=0.05)")
    result = shared.ok("%%sgl -o capital\n" + PARIS)
    assert result.kinds.count("display_data") == 1
    assert result.kinds.count("update_display_data") == 1
    assert result.kinds[-1] == "update_display_data"
    last = result.of("update_display_data")[0]
    assert last["transient"] == result.of("display_data")[0]["transient"]
    assert set(last["data"]) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert last["metadata"] == {"sgnb": {"static": "text/html"}}, "the page knows the output for ours"
    assert "Paris is the capital of France." in last["data"]["text/plain"]
    assert "Finished in " in last["data"]["text/html"]
    assert shared.value("capital['answer']") == "Paris is the capital of France."
    deltas = [c["data"]["content"] for c in result.of("comm_msg") if c["data"].get("method") == "custom"]
    assert len(deltas) >= 2, "text came in one piece: nothing streamed"


def test_streamed_text_is_the_final_text(shared: Kernel) -> None:
    text = "Grüße, 世界! " * 40 + "👩‍🚀 done"
    shared.ok(f"use_mock({text!r}, delay=0.005)")
    result = shared.ok('%%sgl -o out\ns += gen("x", max_tokens=400)')
    shown = replay(result.of("comm_open"), result.of("comm_msg"))
    assert shown["rows"][-1]["segs"][0]["text"] == text
    assert shared.value("out['x']") == text


def replay(opens: list[dict], messages: list[dict]) -> dict:
    """What a page shows after these messages, by the rules of ``program.js``."""
    opened = [c for c in opens if "snapshot" in c["data"].get("state", {})][-1]
    doc = opened["data"]["state"]["snapshot"]
    for content in messages:
        data = content["data"]
        if content["comm_id"] != opened["comm_id"]:
            continue
        if data["method"] == "update" and "snapshot" in data["state"]:
            doc = data["state"]["snapshot"]
        elif data["method"] == "custom" and data["content"]["k"] == "delta":
            delta = data["content"]
            assert delta["from"] == doc["seq"], "a delta does not follow"
            for index, row in delta["rows"]:
                old = doc["rows"][index]["segs"] if index < len(doc["rows"]) else []
                for number, seg in enumerate(row["segs"]):
                    seg["text"] = old[number]["text"] if number < len(old) else ""
                doc["rows"][index : index + 1] = [row]
            for index, number, text in delta["text"]:
                doc["rows"][index]["segs"][number]["text"] += text
            doc["seq"], doc["head"] = delta["seq"], delta["head"]
    return doc


@pytest.mark.magic
@pytest.mark.parametrize("code", ["%sgl", "%%sgl\n", "%%sgl\n\n   \n", "%%sgl"])
def test_B164_no_arguments_and_empty_bodies_give_one_line(shared: Kernel, code: str) -> None:
    result = shared.run(code)
    assert result.status == "error"
    assert result.kinds == ["execute_input", "stream"]
    assert result.stderr.startswith("UsageError: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%sgl lunch", "unknown command 'lunch'. Did you mean 'launch'?"),
        ("%sgl launch --dtypo float32", "unrecognized arguments: --dtypo"),
        ("%sgl launch --max-total-tokens many", "max_total_tokens"),
        ("%sgl launch --page-size 3", "page_size must be one of 1, 2, 4, 16"),
        ("%sgl log five", "takes a number"),
        ("%sgl attach", "takes one name"),
        ("%sgl status now", "unrecognized arguments: now"),
        ("%%sgl --nope\nx", "unrecognized arguments: --nope"),
        ("%%sgl --temperature hot\nx", "invalid float value: 'hot'"),
        ("%%sgl --top-p 7\nx", "--top-p must be a number in (0, 1]"),
        ("%%sgl --max-tokens -1\nx", "--max-tokens must be a whole number in 0..2^31-1, not -1"),
        ("%%sgl --stop ''\nx", "a stop string is empty"),
        ("%%sgl -o 7up\nx", "takes a variable name"),
        ('%%sgl --stop "open\nx', "No closing quotation"),
    ],
)
def test_mistakes_on_the_line_are_one_line(shared: Kernel, line: str, says: str) -> None:
    result = shared.run(line)
    assert result.status == "error"
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert "error" not in result.kinds


@pytest.mark.parametrize("name", ["%sgl?", "%%sgl?"])
def test_help_has_two_examples(shared: Kernel, name: str) -> None:
    result = shared.ok(name)
    text = result.reply["content"]["payload"][0]["data"]["text/plain"]
    examples = text.partition("Examples")[2]
    assert examples.count("%sgl") >= 2
    assert "Traceback" not in text


@pytest.mark.magic
def test_B158_braces_in_the_body_stay(shared: Kernel) -> None:
    shared.ok("use_mock('ok')")
    shared.ok(
        "%%sgl -o out\n"
        "d = {'a': 1, 'b': 2}\n"
        "swapped = {v: k for k, v in d.items()}\n"
        's += \'{"json": {"x": $y}}\' + f" {swapped[1]} {{literal}}"\n'
        's += gen("x")'
    )
    assert shared.value("out.text()").startswith('{"json": {"x": $y}} a {literal}')


@pytest.mark.magic
def test_B159_the_line_is_not_expanded(shared: Kernel) -> None:
    shared.ok("x = 5; use_mock(lambda p, name, params: ' '.join(t[::-1] for t in params.stop))")
    shared.ok('%%sgl -o out --stop "{x}" --stop $x\ns += gen("x")')
    assert shared.value("out['x']") == "}x{ x$"


@pytest.mark.magic
def test_B162_a_comment_after_the_line_is_a_comment(shared: Kernel) -> None:
    shared.ok("use_mock(lambda p, name, params: repr(params.max_new_tokens))")
    shared.ok('%%sgl -o out --max-tokens 2  # two samples "unclosed\ns += gen("x")')
    assert shared.value("out['x']") == "2"
    assert not shared.value("'#' in globals()")
    assert "No engine" in shared.ok("%sgl status  # now").stdout


def test_defaults_apply_where_a_gen_says_nothing(shared: Kernel) -> None:
    shared.ok("use_mock(lambda p, name, v: repr((v.max_new_tokens, v.temperature, v.stop == ('\\n\\n',))))")
    shared.ok(
        '%%sgl -o out --max-tokens 200 --temperature 0 --stop "\\n\\n"\n'
        's += gen("a") + " " + gen("b", max_tokens=300, stop="!")'
    )
    assert shared.value("out['a']") == "(200, 0.0, True)"
    assert shared.value("out['b']") == "(300, 0.0, False)"


def test_a_host_error_shows_the_cells_line_and_none_of_our_frames(shared: Kernel) -> None:
    shared.ok("use_mock('ok')")
    result = shared.run('%%sgl -o kept\ns += "before"\n1 / 0\n')
    assert result.status == "error"
    assert len(result.of("error")) == 1
    assert "1 / 0" in result.error
    assert "3" in result.error
    assert "ZeroDivisionError" in result.error
    assert "sgnb/" not in result.error
    assert "Failed" in result.plain
    assert "before" in result.plain
    assert "ZeroDivisionError" in shared.run("kept.text()").error


def test_a_failed_generation_is_one_message_and_keeps_its_text(shared: Kernel) -> None:
    shared.ok(
        "from sgnb.errors import RequestError\nuse_mock([RequestError('The context is full.', code='context')])"
    )
    result = shared.run('%%sgl\ns += "A long story"\ns += gen("x")')
    assert result.status == "error"
    assert len(result.of("error")) == 1
    assert "The context is full." in result.error
    assert "Traceback" not in result.error
    assert "A long story" in result.plain
    assert "The context is full." in result.plain
    assert result.plain.splitlines()[-1].startswith("Failed")


def test_a_syntax_error_names_line_and_fix_and_shows_nothing_else(shared: Kernel) -> None:
    shared.ok("use_mock('ok')")
    result = shared.run("%%sgl\ns += user('a'\n")
    assert result.status == "error"
    assert result.kinds == ["execute_input", "error"]


def test_cell_numbers_are_those_of_the_prompt(shared: Kernel) -> None:
    shared.ok("use_mock('ok')")
    result = shared.ok('%%sgl\ns += gen("x")')
    number = str(result.of("execute_input")[0]["execution_count"])
    shown = replay(result.of("comm_open"), result.of("comm_msg"))
    assert shown["head"]["cell"] == number


def test_leading_blank_lines_count(shared: Kernel) -> None:
    result = shared.run("\n\n%%sgl\ns += 'x'\n1/0")
    assert "5" in result.error.splitlines()[-3], result.error


def test_debug_shows_every_instruction(shared: Kernel) -> None:
    shared.ok("use_mock('ok')")
    result = shared.ok("%%sgl --debug\n" + PARIS)
    rows = [line.split() for line in result.of("display_data")[-1]["data"]["text/plain"].splitlines()]
    assert rows[0] == ["block", "instruction", "state", "ids", "cached", "ms"]
    assert {"Init", "Extend", "Decode"} <= {row[1] for row in rows[1:]}


@pytest.mark.widget
@pytest.mark.security
def test_B176_hostile_text_is_text_in_every_form(shared: Kernel) -> None:
    shared.ok(f"use_mock({HOSTILE!r}, model='<b>m</b>')")
    result = shared.ok('%%sgl\ns += gen("x", max_tokens=400)')
    html = result.html
    for tag in ("<img", "<script", "<a ", "<svg", "<b>m", "\x1b", "\u202e", "\x07"):
        assert tag not in html, tag
    for char in "\x1b\u202e\x07":
        assert char not in result.plain
    assert "&lt;img src=x onerror=" in html
    assert "[U+202E]evil[U+202C]" in result.plain


@pytest.mark.widget
def test_B174_background_output_stays_with_its_cell(shared: Kernel) -> None:
    shared.ok("use_mock('one two three four five six', delay=0.15)")
    code = 'x = s["x"][:3]\nimport time; time.sleep(1)\nprint("host", x)'
    first = shared.start(f'%%sgl --background -o late\ns += gen("x", max_tokens=9)\n{code}')
    result = shared.finish(first)
    assert result.status == "ok"
    second = shared.ok("print('second')")
    assert second.stdout == "second\n"
    assert shared.value("late['x']") == "one two three four five six"
    seen = shared.gather(2.0)
    mine = [m for m in seen if m["parent_header"].get("msg_id") == first]
    printed = [m for m in seen if m["header"]["msg_type"] == "stream" and "host one" in m["content"]["text"]]
    assert len(printed) == 1 and printed[0] in mine, "what its Python prints stays with it too"
    updates = [m for m in mine if m["header"]["msg_type"] == "update_display_data"]
    assert len(updates) == 1
    assert "Finished" in updates[0]["content"]["data"]["text/plain"]


AGAIN = """
import gc, os
from sgnb.runtime.events import EventLog
from sgnb.widgets.program import ProgramView
def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = memory()
for _ in range(200):
    get_ipython().run_cell_magic("sgl", "", 's += gen("x")')
"""
COUNT = """
after = memory()
held = gc.get_objects()
left = [sum(isinstance(one, kind) for one in held) for kind in (ProgramView, EventLog)]
left += [after - before, len(set(backend.released))]
del held
"""


@pytest.mark.widget
def test_B171_running_a_cell_again_frees_its_widget(shared: Kernel) -> None:
    """200 times: comms, views and logs are bounded, memory is flat, sessions of states that nobody has are closed."""
    shared.ok(
        "use_mock('ok')\nimport ipywidgets, sgnb.widgets.output as o\nfrom comm import get_comm_manager as cm"
    )
    for _ in range(40):
        shared.ok('%%sgl\ns += gen("x")')
    kept = shared.value("o.KEPT_VIEWS")
    assert shared.value("o.live_views()") <= kept
    shared.gather(4.0)  # old ones are closed within the message budget
    comms = shared.value("len(cm().comms)")
    shared.ok(AGAIN)
    deadline = time.monotonic() + 60
    while shared.value("len(cm().comms)") > comms:
        assert time.monotonic() < deadline
        shared.gather(0.5)
    assert shared.value("o.live_views()") <= kept
    shared.ok(COUNT)
    views, logs, grown, released = shared.value("left")
    assert views <= 2 * kept and logs <= 2 * kept, (views, logs)
    assert released >= 240 - 2 * kept
    assert grown < 30e6, "bytes of the whole process, IPython's history of 200 cells among them"


@pytest.mark.widget
def test_B171_the_same_cell_has_one_widget(shared: Kernel) -> None:
    shared.ok("use_mock('ok')\nimport sgnb.widgets.output as o\nfrom comm import get_comm_manager as cm")

    def run() -> None:
        message = shared.client.session.msg(
            "execute_request",
            {"code": '%%sgl\ns += gen("x")', "silent": False, "store_history": True, "allow_stdin": True},
            metadata={"cellId": "a-cell"},
        )
        shared.client.shell_channel.send(message)
        assert shared.finish(message["header"]["msg_id"]).status == "ok"

    run()
    shared.gather(4.0)  # those of earlier cells are closed within the message budget
    before = shared.value("(o.live_views(), len(cm().comms))")
    for _ in range(5):
        run()
    assert shared.value("(o.live_views(), len(cm().comms))") == before


@pytest.mark.comm
def test_B165_F72_stop_by_comm_works_while_the_cell_runs(shared: Kernel) -> None:
    shared.ok("use_mock('word ' * 2000, delay=0.02)")
    subshell = new_subshell(shared)
    msg_id = shared.start('%%sgl -o part\ns += gen("x", max_tokens=2000)')
    comm_id = None
    while comm_id is None:
        message = shared.client.get_iopub_msg(timeout=30)
        if message["header"]["msg_type"] == "comm_open" and "_esm" in message["content"]["data"].get(
            "state", {}
        ):
            comm_id = message["content"]["comm_id"]
    shared.gather(0.5)
    stop = shared.client.session.msg(
        "comm_msg", {"comm_id": comm_id, "data": {"method": "custom", "content": {"k": "stop"}}}
    )
    stop["header"]["subshell_id"] = subshell
    shared.client.shell_channel.send(stop)
    began = time.monotonic()
    result = shared.finish(msg_id)
    assert time.monotonic() - began <= PROMPT_SECONDS
    assert result.status == "error"
    assert "KeyboardInterrupt: stopped" in result.error
    assert "Stopped" in result.plain
    assert 0 < len(shared.value("part.text()")) < 9000


def new_subshell(kernel: Kernel) -> str:
    message = kernel.client.session.msg("create_subshell_request")
    kernel.client.control_channel.send(message)
    while True:
        reply = kernel.client.get_control_msg(timeout=30)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return reply["content"]["subshell_id"]


@pytest.mark.parametrize(
    ("code", "cursor", "expected"),
    [
        ("%sgl la", None, {"launch"}),
        ("%sgl launch --max-t", None, {"--max-total-tokens"}),
        ("%%sgl --temp", None, {"--temperature"}),
        ("%%sgl -o x\ns += ass", None, {"assistant"}),
        ("%%sgl -o x\ns += gen('a', max_t", None, {"max_tokens="}),
        ("%sgl stop --y", None, {"--yes"}),
        ("%sgl launch smol", None, {"smollm2-135m-instruct"}),
        ("x = 1\n%sgl launch --schedule-policy l", None, {"lpm", "lof"}),
        ("x = 1\n%sgl set schedule_policy f\ny = 2", 32, {"fcfs"}),
        ("x = 1\n%sgl view ", None, {"tree", "kv", "timeline", "graph"}),
    ],
)
def test_completion(shared: Kernel, code: str, cursor: int | None, expected: set[str]) -> None:
    reply = shared.client.complete(code, cursor, reply=True, timeout=30)
    assert expected <= set(reply["content"]["matches"])


def test_completion_is_in_its_order_and_says_the_kind(shared: Kernel) -> None:
    reply = shared.client.complete("%sgl st", reply=True, timeout=30)
    assert reply["content"]["matches"] == ["stop", "status", "stacks", "step", "states"]
    reply = shared.client.complete("%%sgl\ns += gen('a', m", reply=True, timeout=30)
    assert reply["content"]["matches"][:3] == ["max_tokens=", "min_tokens=", "min_p="]
    kinds = reply["content"]["metadata"]["_jupyter_types_experimental"]
    assert [one["type"] for one in kinds[:3]] == ["param"] * 3


def test_inspection_knows_the_language(shared: Kernel) -> None:
    code = "%%sgl\ns += gen('a', max_tokens=3)"
    for cursor in (code.index("gen") + 1, len(code) - 3):
        reply = shared.client.inspect(code, cursor, reply=True, timeout=30)
        assert (
            reply["content"]["found"]
            and "A generation that is bound" in reply["content"]["data"]["text/plain"]
        )


def test_completion_leaves_other_cells_alone(shared: Kernel) -> None:
    reply = shared.client.complete("impor", reply=True, timeout=30)
    assert "--temperature" not in reply["content"]["matches"]


def test_load_twice_reload_and_unload(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    assert "already loaded" in kernel.ok("%load_ext sgnb").stdout
    kernel.ok(MOCK)
    kernel.ok("use_mock('ok', delay=0.01)")
    kernel.ok('%%sgl\ns += gen("x")')
    count = "(len(get_ipython().Completer.custom_matchers), sorted(__import__('comm').get_comm_manager().targets))"
    before = kernel.value(count)
    kernel.ok("%reload_ext sgnb")
    kernel.ok('%%sgl\ns += gen("x")')
    assert kernel.value(count) == before
    kernel.ok("%unload_ext sgnb")
    assert kernel.run("%sgl status").status == "error"
    matchers, targets = kernel.value(count)
    assert matchers == before[0] - 1
    assert "sgnb.telemetry.v1" not in targets
    threads = (
        "[t.name for t in __import__('threading').enumerate() if t.name in ('sgnb publisher', 'sgnb panel')]"
    )
    assert kernel.value(threads) == []
    kernel.ok("%load_ext sgnb")
    kernel.ok('%%sgl\ns += gen("x")')


@pytest.mark.kernel_life
def test_B155_a_forked_child_neither_hangs_nor_harms(shared: Kernel) -> None:
    shared.ok("use_mock('ok', delay=0.01)")
    shared.ok('%%sgl\ns += gen("x")')
    result = shared.ok(
        "import multiprocessing as mp, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "p = mp.get_context('fork').Process(target=lambda: None)\n"
        "p.start(); p.join(20)\nprint(p.exitcode)",
        timeout=40,
    )
    assert result.stdout.strip() == "0"
    shared.ok('%%sgl\ns += gen("x")')


def test_static_mode_is_one_display(make_kernel) -> None:
    kernel = make_kernel(SGNB_DISPLAY="static", SGNB_DETERMINISTIC="1")
    kernel.ok("%load_ext sgnb")
    kernel.ok(MOCK)
    kernel.ok("use_mock('Paris.', delay=0.01)")
    results = [kernel.ok("%%sgl -o out\n" + PARIS) for _ in range(2)]
    for result in results:
        assert result.kinds == ["execute_input", "display_data"]
        data = result.of("display_data")[0]
        assert set(data["data"]) == {"text/html", "text/plain"}
        assert data["transient"] == {}
        assert " s " not in result.plain.splitlines()[-1]
    assert results[0].html == results[1].html
    assert kernel.value("'ipywidgets' in __import__('sys').modules") is False
    failed = kernel.run("%%sgl\ns += 'x'\n1/0")
    assert failed.kinds == ["execute_input", "display_data", "error"]


def test_views_have_a_stable_repr(shared: Kernel) -> None:
    shared.ok("use_mock('ok')\nfrom sgnb.widgets.program import ProgramView")
    shared.ok('%%sgl -o out\ns += gen("x")')
    shared.ok("from sgnb.runtime.events import EventLog")
    text = shared.ok("print(repr(ProgramView(EventLog())))").stdout
    assert text == "<sgnb run [], queued>\n"


def test_a_later_cell_goes_on_with_a_state(shared: Kernel) -> None:
    shared.ok('%%sgl -o first --temperature 0\ns += "One" + gen("x", max_tokens=4)')
    shared.ok('%%sgl -o second --from first\ns += " two" + gen("y", max_tokens=4)')
    result = shared.ok("print(second is first, second.text() == 'One' + first['x'] + ' two' + first['y'])")
    assert result.stdout.split() == ["True", "True"]
    listed = shared.ok("%sgl states").stdout
    assert "first, second" in listed and "variables: x, y" in listed
    bad = shared.run('%%sgl --from nowhere\ns += "x"')
    assert bad.status == "error" and "Line 1, column 14: --from takes the name of a state" in bad.error
    assert "    %%sgl --from nowhere\n" + " " * 17 + "^^^^^^^\n" in bad.error
    bad = shared.run("\n%%sgl -o tips\n  ")
    assert bad.status == "error" and "Line 2, column 1: The cell is empty." in bad.error


def test_states_are_released_by_name_or_all(shared: Kernel) -> None:
    for name in ("left", "right"):
        shared.ok(f'%%sgl -o {name}\ns += "Some {name}" + gen("x", max_tokens=4)')
    shared.ok("again = left")
    for line, said in (
        ("right nowhere", "takes names of states (%sgl states lists them); 'nowhere' is not defined"),
        ("right use_mock", "'use_mock' is a function"),
    ):
        bad = shared.run(f"%sgl states release {line}")
        assert bad.status == "error" and said in bad.stderr
    assert "right" in shared.ok("%sgl states").stdout, "a wrong name releases nothing"
    assert shared.ok("%sgl states release left again").stdout == "Released 1 state.\n"
    listed = shared.ok("%sgl states").stdout
    assert "left" not in listed and "right" in listed
    assert shared.ok("%sgl states release left").stdout == "Released 0 states.\n"
    assert shared.value("left.text() == 'Some left' + left['x']")
    refused = shared.run('%%sgl --from left\ns += "more"')
    assert refused.status == "error" and "was joined or closed" in refused.error
    assert "Released" in shared.ok("%sgl states release").stdout
    assert shared.ok("%sgl states").stdout == "No state holds a session.\n"


def test_unoptimised_cells_say_the_same(shared: Kernel) -> None:
    body = 's += "Same" + gen("x", max_tokens=6, temperature=0)\nf = s.fork(2)\n'
    body += 'f += "!" + gen("y", max_tokens=3, temperature=0)\nf.join()'
    shared.ok(f"%%sgl -o a\n{body}")
    shared.ok(f"%%sgl -o b -O0\n{body}")
    assert shared.ok("print(a['x'] == b['x'], a['y'] == b['y'])").stdout.split() == ["True", "True"]


def test_explain_shows_a_programs_graph(shared: Kernel) -> None:
    shared.ok(
        "import sgnb as sgl\n@sgl.function\ndef greet(s, who):\n    s += f'Hello {who}'\n    s += sgl.gen('x')"
    )
    said = shared.ok("%sgl explain greet").stdout
    assert "runs compiled" in said and "block 1" in said
    wrong = shared.run("%sgl explain nothing")
    assert wrong.status == "error" and "not a program" in wrong.stderr


def test_a_cell_shows_what_it_appends_to_an_earlier_state(shared: Kernel) -> None:
    shared.ok('%%sgl -o old\ns += "One" + gen("x", max_tokens=4)')
    result = shared.ok('%%sgl\nold += " and two" + gen("y", max_tokens=4)')
    shown = result.of("update_display_data")[-1]["data"]["text/plain"]
    assert " and two" + shared.value("old['y']") in shown and "y: " in shown
