"""Exceptions, ``finally``, contexts and failing generations."""

import contextlib
import threading

from corpus.case import case, note

import sgnb as sgl
from sgnb.errors import RequestError

BROKEN = {"bad": RequestError("no such luck", code="test"), "good": "fine"}


@case(script="x")
@sgl.function
def finally_runs(s):
    try:
        s += sgl.gen("x")
        note(s["x"])
    finally:
        s += " done"
        note("finally")


@case(script="x")
@sgl.function
def raises(s):
    with s.user():
        s += "a" + sgl.gen("x")
        raise ValueError(f"got {s['x']}")


@case(script="x")
@sgl.function
def caught(s):
    try:
        s += sgl.gen("x")
        int(s["x"])
    except ValueError as error:
        s += f" not a number: {type(error).__name__}"
    else:
        note("never")
    try:
        raise KeyError("k")
    except KeyError:
        s += " in handler " + s["x"]
        inner = helper(s)
        note(inner)
    return s["x"]


def helper(s):
    s += "helped" + sgl.gen("h")
    return s["h"]


@case(script=BROKEN)
@sgl.function
def generation_fails(s):
    s += "a" + sgl.gen("bad") + "b"
    note("before the read")
    return s["bad"]


@case(script=BROKEN)
@sgl.function
def failure_caught(s):
    s += sgl.gen("bad")
    try:
        note(s["bad"])
    except RequestError as error:
        note("caught", error.code)
    s += "ignored" + sgl.gen("good")
    note(type(s.error()).__name__)


@case(script=BROKEN)
@sgl.function
def failure_in_own_state(s):
    other = broken.run()
    s += sgl.gen("good")
    try:
        other.sync()
    except RequestError as error:
        s += f" sub failed: {error.code}"
    return s["good"]


@sgl.function
def broken(s):
    s += sgl.gen("bad")


@case(script="y")
@sgl.function
def unknown_variable(s):
    s += sgl.gen("x")
    try:
        s["y"]
    except KeyError as error:
        note(type(error).__name__)
    return s["z"]


@case(script="y")
@sgl.function
def stop_iteration(s):
    s += sgl.gen("x")
    note(next(iter(s["x"])))
    next(iter(""))


@case(script="y")
@sgl.function
def stop_iteration_caught(s):
    try:
        stop_iteration(s)
    except StopIteration:
        note("caught")
    return s["x"]


@case(script="z")
@sgl.function
def contexts(s):
    lock = threading.RLock()
    with lock, contextlib.suppress(ValueError):
        s += sgl.gen("x")
        note(s["x"])
        int(s["x"])
    with contextlib.ExitStack() as stack:
        stack.callback(note, "left")
        s += "more"
    with contextlib.redirect_stdout(None), s.user():
        s += sgl.gen("u")
    return s["u"]


@case(script="z")
@sgl.function
def nested_finally(s):
    for i in range(3):
        try:
            try:
                s += f"{i}" + sgl.gen("x")
                if i == 1:
                    continue
                if i == 2:
                    return s["x"]
            finally:
                note("inner", i, s["x"])
        finally:
            note("outer", i)


@case(script="z")
@sgl.function
def exception_chain(s):
    s += sgl.gen("x")
    try:
        {}[s["x"]]
    except KeyError as error:
        raise RuntimeError("wrapped") from error


@case(script="z")
@sgl.function
def reraised(s):
    try:
        s += sgl.gen("x")
        raise LookupError(s["x"])
    except LookupError:
        note("seen", s["x"])
        raise


@case(script="z")
@sgl.function
def scope_fails(s):
    try:
        with s.var_scope("v"):
            s += sgl.gen("x")
            raise ArithmeticError(s["x"])
    except ArithmeticError:
        pass
    return s["v"]


@case(script="z")
@sgl.function
def role_closed_after_error(s):
    try:
        with s.user():
            s += "half"
            raise OSError
    except OSError:
        pass
    with s.assistant():
        s += sgl.gen("x")
    return s.messages()


@case(script="z")
@sgl.function
def wrong_append(s):
    s += sgl.gen("x")
    s += None


@case(script="z")
@sgl.function
def nested_roles(s):
    with s.user():
        s += sgl.gen("x")
        s += sgl.assistant("no")


@case(script="z")
@sgl.function
def wrong_argument(s):
    s += sgl.gen("x", regx="[0-9]+")


@case(script=BROKEN)
@sgl.function
def another_name_in_a_failed_branch(s):
    """Whether the failure is known yet changes nothing: a name that nothing binds is unknown."""
    arms, said = s.fork(3), []
    for i, arm in enumerate(arms):
        arm += f"{i}" + sgl.gen("bad" if i == 1 else "good")
    for arm in arms:
        try:
            said.append(arm["good"])
        except KeyError as error:
            said.append(type(error).__name__)
    try:
        arms[1]["bad"]
    except RequestError as error:
        said.append(error.message)
    return said
