"""Calls: programs, helpers, closures, methods, recursion, Python tools."""

# ruff: noqa: C417, E731 (the written forms themselves are what is tested)

import functools
import json
from types import SimpleNamespace

from corpus.case import case, note

import sgnb as sgl

GREETING = "hello"


def ask(s, question, name):
    """A helper that gets the state."""
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen(name))
    return s[name]


@case(script={"a": "1", "b": "2"})
@sgl.function
def helper(s):
    one = ask(s, "first?", "a")
    two = ask(s, question="second?", name="b")
    return one + two


@sgl.function
def sub(s, what):
    s += f"[{what}:" + sgl.gen(what) + "]"
    return s[what] * 2


@case(script={"x": "X", "y": "Y"})
@sgl.function
def inlined(s):
    s += "a "
    value = sub(s, "x")
    s += sub(s, what="y") + value
    return value


@case(script={"x": "own"})
@sgl.function
def own_state(s):
    other = sub.run("x")
    s += "got " + other["x"] + " " + other.text()
    third = sub("x")
    note(other.ret_value, third["x"])
    return other.ret_value


@case(4, script=["a", "b", "c", "d", "e"])
@sgl.function
def recursive(s, depth):
    s += f"{depth}" + sgl.gen(f"g{depth}")
    if depth:
        below = recursive(s, depth - 1)
        return [s[f"g{depth}"], *below]
    return [s["g0"]]


@case(script="z")
@sgl.function
def closures(s):
    prefix = "p"

    def tell(text):
        nonlocal s, prefix
        prefix += "+"
        s += f"{prefix}{text} "

    tell("a")
    tell("b")
    s += sgl.gen("x")
    tell(s["x"])
    return prefix


def make(word):
    @sgl.function
    def inner(s, times=2):
        for _ in range(times):
            s += word + " "
        s += sgl.gen(word)
        return s[word]

    return inner


@case(script={"cat": "meow"})
@sgl.function
def made(s):
    return make("cat")(s), make("cat")(s, times=1)


case(script={"dog": "woof"})(make("dog"))


@case(script="l")
@sgl.function
def lambdas(s):
    add = lambda t: s.append_text(t) if False else note(t)
    add("noted")
    read = lambda: s["x"]
    s += sgl.gen("x")
    note(read(), list(map(lambda k: s[k], ["x"])))
    return (lambda a, b=s["x"]: a + b)("c")


class Tools:
    """State in attributes, private names, properties."""

    __secret = "secret"

    def __init__(self):
        self.count = 0

    def use(self, s, name):
        self.count += 1
        s += f"({self.count} {self.__secret}) " + sgl.gen(name)
        return s[name]

    @property
    def doubled(self):
        return self.count * 2

    @staticmethod
    @sgl.function
    def static(s, word):
        s += word + sgl.gen("st")
        return s["st"]


class Loud(Tools):
    """Overrides, with ``super()``."""

    def use(self, s, name):
        s += "LOUD "
        return super().use(s, name).upper()


@case(script={"m": "method", "n": "other", "st": "static"})
@sgl.function
def methods(s):
    tools, loud = Tools(), Loud()
    note(tools.use(s, "m"), loud.use(s, "n"), tools.doubled, loud.count)
    return Tools.static(s, "w")


@case(script={"q": "2 + 3"})
@sgl.function
def tool(s):
    s += "expr: " + sgl.gen("q")
    left, _, right = s["q"].split()
    result = int(left) + int(right)
    note("computed", result)
    s += f" = {result}"
    with s.var_scope("note"):
        s += f" ({json.dumps({'r': result})})"
    return s["note"]


@case(script="g")
@sgl.function
def globals_and_builtins(s):
    global GREETING
    before = GREETING
    GREETING = "bye"
    s += GREETING + sgl.gen("x")
    GREETING = before
    local = (
        sorted(locals()),
        sorted(vars()),
        dir(),
        vars(SimpleNamespace(x=1)),
        "x" in dir(SimpleNamespace(x=1)),
    )
    return local, "GREETING" in globals(), eval("before + '!'")


@case(script="p")
@sgl.function
def partials(s):
    tell = functools.partial(ask, s, name="x")
    first = tell("why?")
    return first, functools.reduce(lambda a, b: a + b, [s["x"], s["x"]])


@case(script=["t1", "t2", "t3"])
@sgl.function
def react(s):
    s += "Question\n"
    for step in range(1, 4):
        s += f"Thought {step}:" + sgl.gen(f"thought{step}", stop=["\n"])
        action = s[f"thought{step}"]
        if action == "t3":
            s += " finish"
            break
        s += f" Observation {step}: {lookup(action)}\n"


def lookup(key):
    note("lookup", key)
    return {"t1": "one", "t2": "two"}[key]


@case(script={"w": "wrapped"})
@sgl.function
def decorated_helper(s):
    def twice(f):
        @functools.wraps(f)
        def run(*args):
            return f(*args), f(*args)

        return run

    @twice
    def step(name):
        nonlocal s
        s += sgl.gen(name)
        return s[name]

    return step("w")


@case(1, 2, 3, script="k", d=4)
@sgl.function
def signature(s, a, /, b, *rest, c="c", d, **more):
    s += f"{a}{b}{rest}{c}{d}{more}" + sgl.gen("x")
    return a, b, rest, c, d, more, s["x"]
