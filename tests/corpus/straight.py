"""Text, roles and generations without control flow."""

from corpus.case import case, note

import sgnb as sgl


@case(script="blue")
@sgl.function
def plain(s):
    s += "The sky is"
    s += sgl.gen("colour", max_tokens=8)


@case(script={"a": "one", "b": "two"})
@sgl.function
def two_gens(s):
    s += "A: " + sgl.gen("a") + "\nB: " + sgl.gen("b") + "\n"
    s += "end"


@case("Paris?", script={"answer": "Yes, Paris."})
@sgl.function
def roles_as_calls(s, question):
    s += sgl.system("You are brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", stop="."))


@case("Paris?", script={"answer": "Yes, Paris."})
@sgl.function
def roles_as_blocks(s, question):
    with s.system():
        s += "You are brief."
    with s.user():
        s += question
    with s.assistant():
        s += "Well: "
        s += sgl.gen("answer", stop=[",", "!"])


@case(script={"x": "lazy value"})
@sgl.function
def module_blocks(state):
    with sgl.user():
        state += "Say it."
    with sgl.assistant():
        x = sgl.gen("x")
    return x


@case(script={"gen_0": "first", "gen_1": "second"})
@sgl.function
def bare_gens(s):
    with sgl.assistant():
        sgl.gen()
        sgl.gen(max_tokens=3)


@case(script="ok")
@sgl.function
def begin_end(s):
    s += sgl.user_begin()
    s += "hi"
    s += sgl.user_end()
    s += sgl.assistant_begin() + sgl.gen("r") + sgl.assistant_end()


@case(script="ok")
@sgl.function
def method_turns(s):
    s.system("Be kind.")
    s.user("Hello " + sgl.text("<|im_end|>"))
    s.assistant(sgl.gen("reply"))


@case("cats", n=3, script="purr")
@sgl.function
def f_strings(s, topic, n=1):
    s += f"{n} facts on {topic!r:>8}:\n"
    s += sgl.gen("facts")
    s += f"\nSo: {s['facts'].upper()} {s['facts'][0]}{s['facts'][-1]}{len(s['facts'])}"


@case(script=["one", "two", "three"])
@sgl.function
def unnamed(s):
    s += sgl.gen() + ", " + sgl.gen() + ", "
    s += sgl.gen()
    note(s["gen_0"], s["gen_2"])


@case(script="some text")
@sgl.function
def scope(s):
    with s.var_scope("all"):
        s += "<"
        s += sgl.gen("inner")
        s += ">"
    note(s["all"], s["inner"])
    s += s["all"]


@case(script="meta words here")
@sgl.function
def meta(s):
    s += sgl.gen("x", max_tokens=2)
    info = s.get_meta_info("x")
    note(info["finish_reason"]["type"], info["completion_tokens"])
    s.set_var("y", 7)
    note(s["y"], "x" in s, "z" in s, s.get_var("x"))
    return s.text()


@case(script={"a": "ab", "b": "cd"})
@sgl.function
def messages_midway(s):
    s += sgl.user("u") + sgl.assistant(sgl.gen("a"))
    note(s.messages())
    s.sync()
    s += sgl.user("v") + sgl.assistant(sgl.gen("b"))
    return s.messages()


@case(script="a b c d e f g")
@sgl.function
def stops(s):
    s += sgl.gen("one", stop="c") + "|"
    s += sgl.gen("two", stop=["f", "e"]) + "|"
    s += sgl.gen("none", max_tokens=0)
    note(s.get_meta_info("one")["finish_reason"], repr(s["none"]), s.get_meta_info("none")["finish"])
