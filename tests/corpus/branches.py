"""Forks, joins and choices in every shape of control flow."""

from corpus.case import case, note

import sgnb as sgl


def say(prompt, name, params):
    """An answer that depends on all before it."""
    return f"<{name}{len(prompt)}>"


def by_name(options):
    return lambda prompt, name, params: options.get(name, f"<{name}{len(prompt)}>")


@case("tea", script=say)
@sgl.function
def tips(s, topic):
    s += f"Tips for {topic}.\n"
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += f"Tip {i}: " + sgl.gen("tip", max_tokens=8)
    forks.join()
    s += "\n".join(s["tip"]) + sgl.gen("summary")


@case(script=say)
@sgl.function
def lambdas(s):
    s += "base "
    forks = s.fork(3)
    forks += lambda i: f"arm {i} " + sgl.gen("x")
    forks += sgl.gen("y")
    forks += ["a", "b" + sgl.gen("z"), sgl.user("c")]
    forks.join()
    return s["x"], s["y"], s["z"]


@case(script=say)
@sgl.function
def comprehension(s):
    s += "p"
    forks = s.fork(4)
    for f in forks:
        f += sgl.gen("x")
    return [f["x"] for f in forks], {i: f["x"] for i, f in enumerate(forks)}, sorted({f["x"] for f in forks})


@case(script=say)
@sgl.function
def fork_in_a_comprehension(s):
    s += "p"
    branches = [b for group in [s.fork(2) for _ in range(2)] for b in group]
    for i, b in enumerate(branches):
        b += f"{i}" + sgl.gen("x")
    return [b.text() for b in branches]


@case(script=say)
@sgl.function
def walrus_over_forks(s):
    texts = [t for f in s.fork(3) if (t := f.text()) == ""]
    return texts, t


@case(script=say)
@sgl.function
def unpacked(s):
    a, b = s.fork(2)
    a += "a" + sgl.gen("x")
    b += "b" + sgl.gen("x")
    first, *rest = s.fork(3)
    return a["x"] + b["x"], len(rest), first.text()


@case(script=say)
@sgl.function
def concat(s):
    s += "docs: "
    forks = s.fork(3)
    forks += lambda i: f"doc {i}; "
    forks.join("concate_and_append")
    s += "question" + sgl.gen("answer")


@case(script=say)
@sgl.function
def concat_of_generations(s):
    forks = s.fork(2)
    for f in forks:
        f += sgl.assistant("says " + sgl.gen("x"))
    forks.join(mode="concate_and_append")
    s += sgl.gen("y")
    return len(s.messages())


@case(script=say)
@sgl.function
def nested_forks(s):
    s += "root "
    outer = s.fork(2)
    for i, o in enumerate(outer):
        o += f"outer {i} "
        inner = o.fork(2)
        for j, b in enumerate(inner):
            b += f"inner {j} " + sgl.gen("leaf")
        inner.join()
        o += " ".join(o["leaf"])
    outer.join()
    return s["leaf"]


@case(3, script=say)
@sgl.function
def recursive_tree(s, depth):
    s += f"d{depth} " + sgl.gen("node")
    if depth == 0:
        return [s["node"]]
    out = []
    for branch in s.fork(2):
        out += recursive_tree(branch, depth - 1)
    return out


@case(script=say)
@sgl.function
def copies(s):
    s += "p"
    with s.copy() as c:
        c += "tried " + sgl.gen("x")
        note(c["x"])
    with s.copy() as d:
        d += "again"
    s += "q" + sgl.gen("y")
    return s["x"], c.text(), d.text()


@case(script=say)
@sgl.function
def parent_goes_on(s):
    s += "p"
    forks = s.fork(2)
    s += "q" + sgl.gen("own")
    forks += "r" + sgl.gen("x")
    s += "t" + sgl.gen("more")
    forks.join()
    return s["x"], s["own"], s["more"]


@case(script=say)
@sgl.function
def fork_in_a_turn(s):
    with s.user():
        s += "open "
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"{i}"
            f += sgl.user_end()
            f += sgl.assistant(sgl.gen("x"))
    forks.join()
    return [f.messages() for f in forks], s.messages()


@case(script=say)
@sgl.function
def roles_in_branches(s):
    s += sgl.system("brief")
    forks = s.fork(2)
    for f, q in zip(forks, ["one", "two"], strict=False):
        with f.user():
            f += q
        with f.assistant():
            f += sgl.gen("answer")
    forks.join()
    return s["answer"], [m["role"] for m in forks[1].messages()]


@case(script={"x": ["a", "b", "c"]})
@sgl.function
def early_reads_in_the_loop(s):
    out = []
    for f in s.fork(3):
        f += sgl.gen("x")
        out.append(f["x"])
    return out


@case(script=say)
@sgl.function
def meta_of_branches(s):
    forks = s.fork(2)
    forks += sgl.gen("x", max_tokens=1)
    forks.join()
    return [m["finish"] for m in s.get_meta_info("x")]


@case(script=say)
@sgl.function
def rebound_and_missing(s):
    s.set_var("kept", "old")
    s.set_var("changed", "old")
    forks = s.fork(2)
    forks[0].set_var("changed", "new")
    forks[1] += sgl.gen("only")
    forks.join()
    return s["kept"], s["changed"], s["only"]


@case(script={"x": ["one", ValueError("boom"), "three"]})
@sgl.function
def failed_branch(s):
    forks = s.fork(3)
    for f in forks:
        f += sgl.gen("x")
    forks.join()
    try:
        return s["x"]
    except sgl.SgnbError as error:
        return error.message, forks[0]["x"], forks[2]["x"]


@case(script={"a": ValueError("boom"), "b": "fine"})
@sgl.function
def parent_fails(s):
    s += sgl.gen("a")
    forks = s.fork(2)
    forks += sgl.gen("b")
    try:
        return forks[0]["b"]
    except sgl.SgnbError as error:
        return error.message


@case(script={"x": ["one", ValueError("boom")]})
@sgl.function
def failed_concat(s):
    forks = s.fork(2)
    forks[0] += sgl.gen("x")
    note(forks[0]["x"])
    forks[1] += sgl.gen("x")
    try:
        forks.join("concate_and_append")
    except sgl.SgnbError as error:
        note(error.message)
    s += "after"


@case()
@sgl.function
def append_after_join(s):
    forks = s.fork(1)
    forks.join()
    forks[0] += "late"


@case()
@sgl.function
def unknown_mode(s):
    s.fork(2).join("best_of_all")


@case(script=say)
@sgl.function
def break_and_continue(s):
    kept = []
    for i, f in enumerate(s.fork(5)):
        if i == 1:
            continue
        if i == 4:
            break
        f += f"{i}" + sgl.gen("x")
        kept.append(f)
    return [f["x"] for f in kept]


@case(script=say)
@sgl.function
def finally_in_a_branch(s):
    (f,) = s.fork(1)
    try:
        f += sgl.gen("x")
        raise KeyError(f["x"])
    except KeyError:
        f += "caught"
    finally:
        f += "end" + sgl.gen("y")
    return f.text()


@case(script=say)
@sgl.function
def helper_gets_a_branch(s):
    def ask(branch, what):
        branch += what + sgl.gen("x")
        return branch["x"]

    return [ask(f, f"q{i}") for i, f in enumerate(s.fork(2))]


@sgl.function
def expert(s, field):
    s += f"As an expert in {field}: " + sgl.gen("view", max_tokens=16)


@case(script=say)
@sgl.function
def programs_on_branches(s):
    s += "Question. "
    forks = s.fork(2)
    for f, field in zip(forks, ("law", "art"), strict=False):
        expert(f, field)
    forks.join()
    s += " / ".join(s["view"])


@case(script=say)
@sgl.function
def scope_in_a_branch(s):
    forks = s.fork(2)
    for f in forks:
        with f.var_scope("all"):
            f += "{" + sgl.gen("x") + "}"
    forks.join()
    return s["all"]


@case(script=say)
@sgl.function
def samples(s):
    s += "q" + sgl.gen("x", n=3) + "end"
    s += sgl.gen("y")
    return len(s["x"]), len(s.get_meta_info("x"))


@case(n=2, script=say)
@sgl.function
def samples_by_default(s):
    s += "q" + sgl.gen("x")
    return s["x"]


@case(script={"mood": "good"})
@sgl.function
def choose(s):
    s += "Mood: " + sgl.select("mood", choices=["good", "bad", "so-so"]) + "."
    return s["mood"], s.get_meta_info("mood")["choice"]


@case(script={"kind": "b", "val": "text"})
@sgl.function
def gen_choices(s):
    with s.assistant():
        s += sgl.gen(choices=["a", "b"], name="kind", temperature=0) + sgl.gen(name="val")


@case(script=say)
@sgl.function
def choice_by_score(s):
    s += "x"
    for i in range(4):
        s += f"{i}" + sgl.select("c", ["p", "q", "r"], choices_method=sgl.greedy_token_selection)
        note(s["c"])


@case(script={"tool": ["search", "finish"]})
@sgl.function
def choice_drives_a_loop(s):
    for _ in range(5):
        s += "Next: " + sgl.select("tool", ["search", "finish"]) + "\n"
        if s["tool"] == "finish":
            break
        note("searching")
        s += "Found: " + sgl.gen("x") + "\n"


@case(script={"pick": "no"})
@sgl.function
def choice_in_a_block(s):
    with sgl.assistant():
        pick = sgl.select("pick", ["yes", "no"])
    if pick == "no":
        s += sgl.user("Why?")
    return pick


@case()
@sgl.function
def no_options(s):
    s += "x"
    s += sgl.select("c", [])


@case(script={"c": ["x", "y"]})
@sgl.function
def choices_in_branches(s):
    forks = s.fork(2)
    for f in forks:
        f += sgl.select("c", ["x", "y"])
        note(f["c"])
    forks.join()
    return s["c"]


@case(script=say)
@sgl.function
def marks(s):
    s += "p"
    mark = s.mark()
    tried = []
    for i in range(3):
        s += f"{i}" + sgl.gen("x")
        tried.append(s["x"])
        s.rewind(mark)
    s += "end" + sgl.gen("y")
    return tried


@case(script=say)
@sgl.function
def alias_and_index(s):
    forks = s.fork(3)
    same = forks
    same[0] += "zero" + sgl.gen("x")
    i = 1
    forks[i] += "one" + sgl.gen("x")
    last = forks[-1]
    last += "two" + sgl.gen("x")
    return [f["x"] for f in same], len(forks), [f.text() for f in forks[1:]]
