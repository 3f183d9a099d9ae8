"""What stays host code inside compiled programs, and what runs eagerly."""

# ruff: noqa: C416, F842 (the written forms themselves are what is tested)

import asyncio
import contextlib

from corpus.case import case, note

import sgnb as sgl


@case(script=["1", "2", "3"])
@sgl.function
def own_iterator(s):
    def items():
        for name in "abc":
            s.user(sgl.gen(name))
            yield s[name]

    return [value for value in items()], [v for v in map(str, range(2))]


class Box:
    """Dunder methods that touch a state."""

    def __init__(self, s):
        self.s = s

    def __getitem__(self, key):
        return self.s[key] + "!"

    def __len__(self):
        return len(self.s["x"])

    def __call__(self, extra):
        self.s += extra
        return self.s["x"]


@case(script="boxed")
@sgl.function
def dunders(s):
    box = Box(s)
    s += sgl.gen("x")
    return box["x"], len(box), box("more"), bool(box)


@case(script="q")
@sgl.function
def class_inside(s):
    s += sgl.gen("x")

    class Local:
        value = s["x"]

        def get(self):
            return self.value + s["x"]

    return Local().get(), Local.value


@contextlib.contextmanager
def section(s, title):
    s += f"<{title}>"
    try:
        yield s
    finally:
        s += f"</{title}>"


@case(script="in")
@sgl.function
def foreign_context(s):
    with section(s, "a") as inner:
        inner += sgl.gen("x")
        note(s["x"])
    return s["x"]


@case(script="text")
@sgl.function
def imports(s):
    import math
    from string import ascii_lowercase as letters

    s += sgl.gen("x")
    return math.floor(2.5), letters[:3], s["x"]


@case(script="text")
@sgl.function
def deletes(s):
    s += sgl.gen("x")
    table = {"a": 1, "b": 2}
    del table[s["x"] and "a"]
    value = s["x"]
    del value
    x: str = s["x"]
    y: int
    assert x == s["x"], "equal"
    return table, x


@case(script=["a", "b"])
@sgl.function
def async_helper(s):
    async def fetch(n):
        await asyncio.sleep(0)
        return n * 2

    s += sgl.gen("x")
    doubled = asyncio.run(fetch(21))
    s += f"{doubled}" + sgl.gen("y")
    return s["y"]


@case(script="lam")
@sgl.function
def lazy_values(s):
    with sgl.assistant():
        x = sgl.gen("x")
    note(str(x), f"{x:>5}", x + "!", "<" + x, len(x), "a" in x, x == "lam", x.upper(), [c for c in x], x[0])
    s += "tail " + x
    return x


@case(script="from an eager one")
@sgl.function
def eager_inside(s):
    s += "a "
    value = without_source(s)
    s += " b"
    return value


namespace = {"sgl": sgl, "__name__": __name__}
exec("@sgl.function\ndef without_source(s):\n    s += 'x' + sgl.gen('e')\n    return s['e']\n", namespace)
without_source = namespace["without_source"]
case(script="no source", eager="source is not known")(without_source)


@case(script={"a": "fine"})
@sgl.function
def turns_of_a_context_manager(s):
    """A generator-based manager that appends; what it opens it closes, also around a read."""

    @contextlib.contextmanager
    def turn(role):
        s.__iadd__(sgl.user_begin() if role == "user" else sgl.assistant_begin())
        try:
            yield role
        finally:
            s.__iadd__(sgl.user_end() if role == "user" else sgl.assistant_end())

    with turn("user") as who:
        s += f"I am the {who}"
    with turn("assistant"):
        s += sgl.gen("a")
        note(s["a"])
    return s.messages()
