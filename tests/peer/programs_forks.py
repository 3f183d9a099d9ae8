"""Programs that say ``import sglang as sgl``: choices, forks, programs in programs, shapes of examples.

``test_peer_programs.py`` runs each in sgnb and in SGLang's interpreter: the file is loaded twice, once for each front end.
"""

import json

import sglang as sgl
from peer_cases import collect

CASES, case = collect()


# ------------------------------------------------------------ choices


@case()
@sgl.function
def choose_one(s):
    s += "yes or no?" + sgl.select("pick", ["yes", "no"]) + "."


@case()
@sgl.function
def choose_with_gen(s):
    s += "size? " + sgl.gen("size", choices=["small", "large", "none"]) + "\n" + sgl.gen("why", max_tokens=3)


@case()
@sgl.function
def choose_by_each_method(s):
    for method in (
        sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized,
    ):  # fmt: skip
        s += "? " + sgl.select("pick", choices=["left", "right"], choices_method=method) + "\n"


@case()
@sgl.function
def choose_and_branch(s):
    s += "fork or spoon? " + sgl.select("tool", choices=["fork", "spoon"])
    s += " to eat " + ("soup" if s["tool"] == "spoon" else "pasta") + sgl.gen("x", max_tokens=2)


@case()
@sgl.function
def choose_in_a_turn(s):
    s += sgl.user("Is it so?")
    s += sgl.assistant("It is " + sgl.select("truth", ["true", "false"]))


@case()
@sgl.function
def choose_in_branches(s):
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += f"{i} " + sgl.select("pick", ["a", "b", "c"])
    forks.join()
    return s["pick"]


# ------------------------------------------------------------ forks


@case("health")
@sgl.function
def fork_and_join(s, topic):
    s += f"Tips about {topic}."
    forks = s.fork(3)
    for i in range(3):
        forks[i] += f" Tip {i}:" + sgl.gen("tip", max_tokens=4)
    forks.join()
    s += "".join(s["tip"]) + sgl.gen("summary", max_tokens=3)


@case()
@sgl.function
def fork_read_without_join(s):
    s += "base"
    a, b = s.fork(2)
    a += "/a" + sgl.gen("x", max_tokens=2)
    b += "/b" + sgl.gen("x", max_tokens=2)
    s += a["x"] + b["x"]
    return a.text(), b.text()


@case()
@sgl.function
def fork_with_function(s):
    s += "base"
    forks = s.fork(3)
    forks += lambda i: f" arm {i}" + sgl.gen("x", max_tokens=2)
    forks.join()


@case()
@sgl.function
def fork_with_expression(s):
    forks = s.fork(2)
    forks += sgl.user("all the same") + sgl.assistant(sgl.gen("x", max_tokens=2))
    forks.join()


@case()
@sgl.function
def fork_with_list(s):
    forks = s.fork(2)
    forks += ["one", "two" + sgl.gen("x", max_tokens=2)]
    return [f.text() for f in forks]


@case()
@sgl.function
def fork_inside_a_turn(s):
    s += sgl.user_begin()
    s += "shared "
    forks = s.fork(2)
    for i in range(2):
        forks[i] += f"own {i}" + sgl.user_end()
        forks[i] += sgl.assistant(sgl.gen("a", max_tokens=2))
    forks.join()
    return [f.messages() for f in (forks[0], forks[1])]


@case()
@sgl.function
def forks_in_forks(s):
    s += "root"
    leaves = []
    outer = s.fork(2)
    for i in range(2):
        outer[i] += f" {i}"
        inner = outer[i].fork(2)
        for j in range(2):
            inner[j] += f".{j}" + sgl.gen("leaf", max_tokens=2)
            leaves.append(inner[j])
    return [leaf.text() for leaf in leaves]


@case()
@sgl.function
def branch_sees_variables(s):
    s += "v" + sgl.gen("v", max_tokens=2)
    fork = s.fork(1)[0]
    fork += " again" + fork["v"] + sgl.gen("w", max_tokens=2)
    return "w" in s, fork["w"]


@case()
@sgl.function
def copy_of_a_state(s):
    s += "base" + sgl.gen("a", max_tokens=2)
    with s.copy() as c:
        c += " aside" + sgl.gen("b", max_tokens=2)
    s += " on"
    return s["b"]


@case()
@sgl.function
def join_by_text(s):
    s += "Facts:\n"
    forks = s.fork(3)
    forks += lambda i: f"{i}. fact" + sgl.gen("fact", max_tokens=3) + "\n"
    forks.join(mode="concate_and_append")
    s += "So" + sgl.gen("so", max_tokens=3)


@case()
@sgl.function
def join_several_variables(s):
    forks = s.fork(2)
    for i in range(2):
        forks[i] += f"{i}" + sgl.gen("a", max_tokens=1) + sgl.gen("b", max_tokens=2)
        forks[i]["own"] = i * 10
    forks.join()
    return s["own"]


@case()
@sgl.function
def parent_goes_on_during_a_fork(s):
    s += "start"
    forks = s.fork(2)
    s += " parent" + sgl.gen("p", max_tokens=2)
    for i in range(2):
        forks[i] += f" child {i}" + sgl.gen("c", max_tokens=2)
    forks.join()
    s += "".join(s["c"])


# ------------------------------------------------------------ programs in programs


@sgl.function
def expand(s, tip):
    s += "Expand:" + tip + "\n" + sgl.gen("detail", max_tokens=5)
    return len(tip)


@case("staying warm")
@sgl.function
def two_stages(s, topic):
    s += (
        "Tips for "
        + topic
        + "\n1."
        + sgl.gen("one", stop=[".", "\n"])
        + "\n2."
        + sgl.gen("two", max_tokens=2)
    )
    first, second = expand(tip=s["one"]), expand.run(tip=s["two"])
    s += "\nTip 1:" + first["detail"] + "\nTip 2:" + second["detail"]
    return first.ret_value + second.ret_value


def shots(s, pairs):
    for question, answer in pairs:
        s += f"Q: {question}\nA: {answer}\n"
    return s


def ask(s, question):
    s += f"Q: {question}\nA:"
    s += sgl.gen("answer", stop="\n")


@case([("1+1", "2"), ("2+2", "4")], "3+3")
@sgl.function
def helpers(s, pairs, question):
    shots(s, pairs)
    ask(s, question)


@case(3)
@sgl.function
def recursion_of_a_helper(s, depth):
    def down(level):
        nonlocal s
        s += f"[{level}" + sgl.gen(f"g{level}", max_tokens=1)
        if level:
            down(level - 1)
        s += "]"

    down(depth)


bound = expand.bind(tip=" a bound tip")
case()(bound)


@case()
@sgl.function(num_api_spec_tokens=None)
def decorated_with_brackets(s):
    s += "x" + sgl.gen("x", max_tokens=2)


@case(batch=[{"word": "a"}, {"word": "b"}, {"word": "c", "count": 2}])
@sgl.function
def batch_of_dicts(s, word, count=3):
    s += f"batch {word}" + sgl.gen("x", max_tokens=count)


@case(batch=[("a",), ("b", 2)])
@sgl.function
def batch_of_tuples(s, word, count=3):
    s += f"batch {word}" + sgl.gen("x", max_tokens=count)


# ------------------------------------------------------------ shapes of the examples that SGLang ships


@case("What is 5 + 5?")
@sgl.function
def tool_by_choice(s, question):
    s += "To answer: " + question + " I take a " + sgl.gen("tool", choices=["calculator", "search engine"])
    if s["tool"] == "calculator":
        s += ". The formula is" + sgl.gen("formula", max_tokens=4)
    else:
        s += ". I look for" + sgl.gen("query", max_tokens=4)


@case(answers={"can be said by": " a botanist.", "would say:": " Leaves breathe.\nAnd more."})
@sgl.function
def expert(s):
    s += "Why are leaves green? It can be said by" + sgl.gen("expert", stop=[".", "\n"]) + ".\n"
    s += "Then" + s["expert"] + " would say:" + sgl.gen("answer", stop="\n")


@case("An essay about rain.")
@sgl.function
def judge_in_three_ways(s, essay):
    s += sgl.system("You judge essays.")
    s += sgl.user("Essay: " + essay)
    forks = s.fork(3)
    for f, side in zip(forks.states, ["style", "facts", "order"], strict=True):
        f += sgl.user(f"Judge its {side}.") + sgl.assistant("Judgement:" + sgl.gen("judgement", max_tokens=4))
    forks.join()
    s += sgl.user("Sum up: " + "\n".join(s["judgement"]))
    s += sgl.assistant(sgl.gen("summary", max_tokens=4) + " Grade: " + sgl.select("grade", ["A", "B"]))


@case({"oak": "hard wood", "fir": "soft wood"}, "Which one burns longer?")
@sgl.function
def stages_with_synthesis(s, things, question):
    s += "Question: " + question + "\n\n"
    names = list(things)
    forks = s.fork(len(names))
    for i, name in enumerate(names):
        forks[i] += f"{name}: {things[name]}\n"
        forks[i] += sgl.gen(f"analysis_{name}", stop="\n\n", max_tokens=6)
    s += "Together:\n"
    for i, name in enumerate(names):
        s += f"[{name}] " + forks[i][f"analysis_{name}"]
    s += "\nBest:" + sgl.gen("pick", max_tokens=4)


@case("How many legs have 3 cats?", 3)
@sgl.function
def several_decodings(s, question, count):
    s += "Question: " + question + "\nAnswer:"
    probe = s.fork(1)[0]
    forks, answers = s.fork(count), s.fork(count)
    probe += sgl.gen("first", max_tokens=1)
    for i in range(count):
        forks[i] += f" ({i})" + probe["first"] + sgl.gen("answer", max_tokens=5)
        answers[i] += forks[i]["answer"] + "\nSo it is" + sgl.gen("span", max_tokens=2)
    return [answers[i]["span"] for i in range(count)]


@case(answers={"Action 1: Search [": "owls]", "Action 2: Finish [": "a bird]"})
@sgl.function
def think_and_act(s):
    s += "Question: What is an owl?\n"
    for i, act in enumerate(["Search", "Finish"], 1):
        s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop=[".", "\n"]) + ".\n"
        s += f"Action {i}: {act} [" + sgl.gen(f"what_{i}", stop="]") + "].\n"
        if act == "Search":
            s += f"Observation {i}: It is about {s[f'what_{i}']}.\n"
    return s["what_2"]


@case("red fox")
@sgl.function
def fill_a_form(s, animal):
    s += f"{animal}: "
    with s.var_scope("form"):
        s += '{\n "legs": "' + sgl.gen("legs", stop='"', max_tokens=2) + '",\n'
        s += ' "colour": "' + sgl.select("colour", ["red", "blue"]) + '"\n}'
    return sorted(json.loads(s["form"].replace("\n", " ")))


@case(["first page", "second page"])
@sgl.function
def map_and_reduce(s, pages):
    forks = s.fork(len(pages))
    forks += lambda i: f"Page: {pages[i]}\nShort:" + sgl.gen("short", max_tokens=3)
    forks.join()
    for number, short in enumerate(s["short"]):
        s += f"{number}.{short}\n"
    s += "All:" + sgl.gen("all", max_tokens=4)


@case("A bridge", 2)
@sgl.function
def tree_of_plans(s, problem, width):
    def propose(state, text):
        state += sgl.user(text)
        arms = state.fork(width)
        arms += sgl.assistant(sgl.gen("plan", max_tokens=3))
        return arms

    scores = []
    for plan in propose(s, "Plan for: " + problem).states:
        for detail in propose(plan, "Details").states:
            detail += sgl.user("Rate it.") + sgl.assistant(sgl.select("score", ["1", "2", "3"]))
            scores.append(detail["score"])
    return scores


@case("weather", 3)
@sgl.function
def vote(s, question, count):
    s += question
    forks = s.fork(count)
    for i, f in enumerate(forks.states):
        f += f" voter {i}: " + sgl.select("vote", ["yes", "no"])
    forks.join()
    votes = s["vote"]
    s += f" So: {max(set(votes), key=lambda v: (votes.count(v), v))}"


@case(["I like it.", "It broke."])
@sgl.function
def classify_in_one_go(s, texts):
    for i, text in enumerate(texts):
        s += f"{text} -> " + sgl.select(f"mood_{i}", ["good", "bad"]) + "\n"
    return [s[f"mood_{i}"] for i in range(len(texts))]


@case("long article " * 20)
@sgl.function
def question_after_long_text(s, article):
    s += sgl.system("Read well.") + sgl.user(article)
    forks = s.fork(2)
    for i, question in enumerate(["Who?", "Where?"]):
        forks[i] += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=3))
    forks.join()
    return s["answer"]


@case(answers={"calculate(": "6*7) = "})
@sgl.function
def calculator(s):
    s += "The product of 6 and 7 is calculate(" + sgl.gen("expression", stop=")") + ") = "
    with s.var_scope("answer"):
        left, _, right = s["expression"].partition("*")
        s += str(int(left) * int(right))


@case("Ada")
@sgl.function
def character_sheet(s, name):
    s += "A character.\nName: " + name + "\n"
    for field in ("Birthday", "Job", "Hobby"):
        s += f"{field}:" + sgl.gen(field.lower(), stop="\n", max_tokens=4) + "\n"
    return {field: s[field] for field in ("birthday", "job", "hobby")}
