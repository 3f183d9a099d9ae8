"""Programs that say ``import sglang as sgl``: text, roles, parameters, control flow, scopes.

``test_peer_programs.py`` runs each in sgnb and in SGLang's interpreter: the file is loaded twice, once for each front end.
"""

import json
import re

import sglang as sgl
from peer_cases import collect

CASES, case = collect()


# ------------------------------------------------------------ text, generations, roles


@case()
@sgl.function
def one_gen(s):
    s += "The sky is"
    s += sgl.gen("colour")


@case()
@sgl.function
def one_expression(s):
    s += "A:" + sgl.gen("a", max_tokens=3) + " B:" + sgl.gen("b", max_tokens=2) + " end"


@case()
@sgl.function
def text_only(s):
    s += "no model"
    s += " is needed" + ""


@case()
@sgl.function
def nothing(s):
    pass


@case()
@sgl.function
def returns_a_value(s):
    s += "x" + sgl.gen("x", max_tokens=2)
    return {"length": len(s["x"])}


@case("Wien?")
@sgl.function
def roles_as_expressions(s, question):
    s += sgl.system("You answer briefly.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=6))


@case("Wien?")
@sgl.function
def roles_as_blocks(s, question):
    with s.system():
        s += "You answer briefly."
    with s.user():
        s += "Question: "
        s += question
    with s.assistant():
        s += "Well,"
        s += sgl.gen("answer", stop=["\n", "."])


@case("Wien?")
@sgl.function
def roles_as_methods(s, question):
    s.system("You answer briefly.")
    s.user(question + "!")
    s.assistant("So:" + sgl.gen("answer", max_tokens=5))


@case()
@sgl.function
def roles_begin_and_end(s):
    s += sgl.user_begin()
    s += "one " + "two"
    s += sgl.user_end() + sgl.assistant_begin() + sgl.gen("a", max_tokens=4) + sgl.assistant_end()


@case()
@sgl.function
def role_left_open(s):
    s += sgl.user("Go on.") + sgl.assistant_begin()
    s += "I" + sgl.gen("a", max_tokens=4)


@case()
@sgl.function
def text_beside_roles(s):
    s += "before\n"
    s += sgl.user("u")
    s += "between"
    s += sgl.assistant(sgl.gen("a", max_tokens=3))
    s += "after"


@case()
@sgl.function
def empty_turns(s):
    s += sgl.system("") + sgl.user()
    s += sgl.assistant(sgl.gen("a", max_tokens=2))


@case("one", "two", "three")
@sgl.function
def chat_of_three_turns(s, *questions):
    for number, question in enumerate(questions):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(f"answer_{number}", max_tokens=5))


@case()
@sgl.function
def messages_midway(s):
    s += sgl.user("u") + sgl.assistant(sgl.gen("a", max_tokens=4))
    first = s.messages()[-1]["content"]
    s += sgl.user("You said: " + first) + sgl.assistant(sgl.gen("b", max_tokens=4))
    return len(s.messages())


@case()
@sgl.function
def turn_with_blanks_before_it(s):
    s += sgl.user("\n  indented ") + sgl.assistant(sgl.gen("a", max_tokens=4))


# ------------------------------------------------------------ sampling parameters


@case(max_new_tokens=3)
@sgl.function
def length_of_the_run(s):
    s += "a" + sgl.gen("a") + "|" + sgl.gen("b", max_tokens=5)


@case(stop=".")
@sgl.function
def stop_of_the_run(s):
    s += "a" + sgl.gen("a") + "|" + sgl.gen("b", stop=";")


@case(stop=["\n", ";"])
@sgl.function
def stops_of_the_run(s):
    s += "stops" + sgl.gen("a") + "|" + sgl.gen("b")


@case()
@sgl.function
def stop_lists(s):
    s += "a" + sgl.gen("a", stop=[" moss", "."]) + "|" + sgl.gen("b", stop=("\n", " owl"))


@case(temperature=0, top_p=0.9, top_k=40, min_p=0.05, frequency_penalty=0, presence_penalty=0)
@sgl.function
def all_sampling_arguments(s):
    s += "p" + sgl.gen("a", max_tokens=4, temperature=0.5, top_p=0.8, top_k=3, min_p=0.1, ignore_eos=True)


@case(n=1)
@sgl.function
def two_samples(s):
    s += "n" + sgl.gen("a", n=2, max_tokens=3)
    s += "!"
    return len(s["a"])


@case(max_new_tokens=2)
@sgl.function
def none_means_the_run_s(s):
    s += "a" + sgl.gen("a", max_tokens=None, temperature=None, stop=None)


# ------------------------------------------------------------ control flow and reads


@case(answers={"mood?": " blue"})
@sgl.function
def branch_on_a_value(s):
    s += "mood?" + sgl.gen("mood")
    if "blue" in s["mood"]:
        s += " then sing" + sgl.gen("song", max_tokens=4)
    else:
        s += " then rest"


@case(4)
@sgl.function
def loop_with_names(s, count):
    for i in range(count):
        s += f"\n{i}." + sgl.gen(f"item_{i}", stop=[".", "\n"], max_tokens=6)


@case(answers={"0:": " go", "1:": " go", "2:": " stop"})
@sgl.function
def loop_until(s):
    for i in range(5):
        s += f"\n{i}:" + sgl.gen("step")
        if s["step"] == " stop":
            break
    return i


@case()
@sgl.function
def value_used_again(s):
    s += "Name:" + sgl.gen("name", max_tokens=2)
    s += "\nHello" + s["name"] + "," + sgl.gen("hello", max_tokens=3)
    s += f"\nBye{s['name']}."


@case()
@sgl.function
def text_read_midway(s):
    s += "abc" + sgl.gen("a", max_tokens=3)
    s += f" ({len(s.text())} characters)"


@case()
@sgl.function
def set_and_ask(s):
    s += "v" + sgl.gen("v", max_tokens=2)
    s.set_var("seen", 5)
    s["list"] = [1, 2]
    return "seen" in s, s.get_var("seen"), s["list"], "never" in s


@case()
@sgl.function
def sync_and_error(s):
    s += "v" + sgl.gen("v", max_tokens=2)
    s.sync()
    return s.error()


@case()
@sgl.function
def meta_of_a_gen(s):
    s += "v" + sgl.gen("v", max_tokens=3)
    meta = s.get_meta_info("v")
    return meta["completion_tokens"], meta["finish_reason"]["type"]


@case()
@sgl.function
def python_error_is_caught(s):
    try:
        s += "x" + sgl.gen("x", max_tokens=2)
        raise ValueError("mine")
    except ValueError as error:
        s += f" [{error}]"
    finally:
        s += " finally"


@case({"a": 1, "b": [2, 3]})
@sgl.function
def json_in_a_prompt(s, data):
    s += json.dumps(data) + "\n" + sgl.gen("answer", max_tokens=5)
    return re.findall(r"\w+", s["answer"])


@case([3, 1, 2])
@sgl.function
def comprehension(s, numbers):
    s += ",".join(str(n) for n in sorted(numbers))
    s += "".join([f"<{n}>" for n in numbers]) + sgl.gen("x", max_tokens=2)


@case("a", "b", default="c")
@sgl.function
def arguments_of_all_kinds(s, first, second="z", *, default="d", other="e"):
    s += first + second + default + other + sgl.gen("x", max_tokens=2)


@case()
@sgl.function
def state_under_another_name(s):
    t = s
    t += "via t" + sgl.gen("x", max_tokens=2)
    s += " via s" + t["x"]


# ------------------------------------------------------------ scopes of variables


@case()
@sgl.function
def scope(s):
    s += "outside "
    with s.var_scope("all"):
        s += "{" + sgl.gen("inner", max_tokens=3)
        s += "}"
    s += " again " + s["all"]


@case()
@sgl.function
def scopes_in_scopes(s):
    with s.var_scope("outer"):
        s += "a"
        with s.var_scope("inner"):
            s += sgl.gen("x", max_tokens=2)
        s += "b"
    return s["outer"], s["inner"]


@case()
@sgl.function
def scope_over_turns(s):
    with s.var_scope("talk"):
        s += sgl.user("u") + sgl.assistant(sgl.gen("a", max_tokens=3))
    return len(s["talk"])


@case()
@sgl.function
def scope_inside_a_turn(s):
    with s.user():
        s += "Fill: "
        with s.var_scope("field"):
            s += "<" + sgl.gen("x", max_tokens=2) + ">"
    s += sgl.assistant(s["field"] + sgl.gen("y", max_tokens=2))
