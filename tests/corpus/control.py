"""Control flow on host values and on generated ones."""

from corpus.case import case, note

import sgnb as sgl


@case(4, script=["1", "2", "3", "4"])
@sgl.function
def loop(s, count):
    for i in range(count):
        s += f"{i}: " + sgl.gen(f"x{i}") + "\n"
    return [s[f"x{i}"] for i in range(count)]


@case(script=["no", "no", "yes", "never"])
@sgl.function
def until(s):
    tries = 0
    while True:
        s += sgl.gen("answer")
        tries += 1
        if s["answer"] == "yes":
            break
        s += " again "
    else:
        note("not reached")
    return tries


@case(script={"kind": "math", "m": "4", "t": "hello"})
@sgl.function
def branch(s):
    s += "kind: " + sgl.gen("kind")
    if "math" in s["kind"]:
        s += " calc " + sgl.gen("m")
    elif s["kind"] == "talk":
        s += " talk " + sgl.gen("t")
    else:
        s += " unknown"


@case(script={"kind": "talk", "t": "hello"})
@sgl.function
def matched(s):
    s += sgl.gen("kind")
    match s["kind"].split():
        case ["math", *_]:
            s += "calc"
        case [one] if one == s["kind"]:
            s += sgl.gen("t")
        case _:
            s += "none"
    return s["t"]


@case(script=["a", "b", "c", "d"])
@sgl.function
def loop_else_continue(s):
    for name in ("p", "q", "r"):
        s += sgl.gen(name)
        if s[name] == "b":
            continue
        note("after", name, s[name])
    else:
        s += "!" + sgl.gen("last")
    return s["last"]


@case(script="42")
@sgl.function
def walrus(s):
    s += sgl.gen("n")
    if (n := int(s["n"])) > 40:
        s += f"big {n}"
    return n


@case(script="one two three")
@sgl.function
def conditional(s):
    s += sgl.gen("x")
    y = s["x"] if "two" in s["x"] else "nothing"
    s += (s["x"] and "has") + " " + (y or "not")
    z = not s["x"] or 1 < len(s["x"]) < 100
    return y, z


@case(script=["a", "b", "c"])
@sgl.function
def comprehensions(s):
    for n in "xyz":
        s += sgl.gen(n)
    values = [s[n] for n in "xyz"]
    pairs = {n: s[n].upper() for n in "xyz" if s[n] != "b"}
    sets = {s[n] for n in ("x", "x", "y")}
    nested = [[s[n] + m for n in "xy"] for m in "12"]
    total = sum(len(s[n]) for n in "xyz")
    found = [last := s[n] for n in "xyz"]
    note(values, pairs, sorted(sets), nested, total, found, last)
    return [(i, v) for i, v in enumerate(values) if i]


@case(script=["a", "b"])
@sgl.function
def append_in_comprehension(s):
    def add(n):
        nonlocal s
        s += sgl.gen(n)
        return s[n]

    return [add(n) for n in "pq"]


@case(script="v")
@sgl.function
def containers(s):
    box = {"s": s, "list": [s]}
    box["s"] += "one "
    box["list"][0] += sgl.gen("x")
    table = {"k": 1}
    table["k"] += len(s["x"])
    key = "x"
    s[key] += "!"
    t = s
    t += " alias"
    return table, s["x"]


@case(script=["1", "2", "3"])
@sgl.function
def unpacking(s):
    for n in "abc":
        s += sgl.gen(n)
    first, *rest = (s["a"], s["b"], s["c"])
    (x, y), z = (s["a"], s["b"]), [s["c"]]
    note(first, rest, x, y, z, *[s["a"]])
    return max(s["a"], s["c"], key=lambda v: int(v))


@case(script="deep")
@sgl.function
def early_read(s):
    s += "For example, " + str(sgl.gen("x").name)
    s += sgl.gen("x")
    s += "again " + s["x"] + sgl.gen("y") + s["x"]
    return s["y"]


@case(script=["x"] * 3)
@sgl.function
def generator_expressions(s):
    for n in "abc":
        s += sgl.gen(n)
    joined = ",".join(s[n] for n in "abc")
    lazy = (c for c in s["a"] + s["b"])
    return joined, list(lazy), sorted("abc", key=lambda n: s[n])
