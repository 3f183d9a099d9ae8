"""Whole programs as people write them: experts, trees of thought, agents, judges, extraction, chains."""

from corpus.case import case, note

import sgnb as sgl


def say(prompt, name, params):
    return f"<{name}{len(prompt)}>"


SHOTS = [("2+2?", "4"), ("3+3?", "6")]


@case(SHOTS, "5+5?", script={"answer": "10\nmore"})
@sgl.function
def few_shot(s, shots, question):
    for q, a in shots:
        s += f"Q: {q}\nA: {a}\n\n"
    s += f"Q: {question}\nA:" + sgl.gen("answer", stop="\n", temperature=0)


@case("Why?", "And then?", script=say)
@sgl.function
def two_turns(s, first, second):
    s += sgl.system("You help.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=64))
    with s.user():
        s += second
    with s.assistant():
        s += sgl.gen("answer_2", max_tokens=64)


@case("How deep is the sea?", script={"expert": "an oceanographer.", "answer": "Deep."})
@sgl.function
def expert_answer(s, question):
    s += "Question: " + question + "\nA good person to ask is" + sgl.gen("expert", stop=[".", "\n"]) + ".\n"
    s += "For example, " + s["expert"] + " would say:" + sgl.gen("answer", stop=".")


@sgl.function
def propose(s, problem, count):
    s += sgl.user(f"Propose a plan for: {problem}")
    forks = s.fork(count)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=32))
    return forks


@sgl.function
def score(s):
    s += sgl.user("Rate the plan.")
    s += sgl.assistant(sgl.select("score", ["1", "2", "3"]))


@case("a bridge", 2, script=say)
@sgl.function
def tree_of_thought(s, problem, width):
    plans = propose(s, problem, width)
    leaves = []
    for plan in plans:
        solutions = propose(plan, "the details", width)
        for leaf in solutions:
            score(leaf)
            leaves.append(leaf)
    best = max(leaves, key=lambda leaf: (leaf["score"], leaf["plan"]))
    return best["plan"], len(leaves)


@case("What is 12 * 7?", script={"thought": ["I need a tool.", "I know."], "act": ["multiply", "finish"],
                                "args": "12,7"})  # fmt: skip
@sgl.function
def agent(s, question):
    s += f"Question: {question}\n"
    for step in range(4):
        s += f"Thought {step}: " + sgl.gen("thought", stop="\n") + "\n"
        s += f"Act {step}: " + sgl.select("act", ["multiply", "finish"])
        if s["act"] == "finish":
            s += " 84\n"
            break
        s += "[" + sgl.gen("args", stop="]") + "]\n"
        a, b = s["args"].split(",")
        note("tool", a, b)
        s += f"Observation {step}: {int(a) * int(b)}\n"
    return s["act"]


@case("The sky", script=say)
@sgl.function
def judge(s, essay):
    s += sgl.user(f"Essay: {essay}")
    forks = s.fork(3)
    for f, dimension in zip(forks, ["clarity", "style", "truth"], strict=False):
        f += sgl.user(f"Judge its {dimension}.") + sgl.assistant("Judgement: " + sgl.gen("judgement"))
    forks.join()
    s += sgl.user("\n".join(s["judgement"]))
    s += sgl.assistant(sgl.gen("summary") + " Grade: " + sgl.select("grade", ["A", "B", "C"]))


@case(["red fox", "blue whale"], script={"name": "X", "colour": "red", "legs": "4"})
@sgl.function
def extract(s, animals):
    rows = []
    for f, animal in zip(s.fork(len(animals)), animals, strict=False):
        f += f"{animal}: " + '{"name": "' + sgl.gen("name", stop='"') + '", "legs": '
        f += sgl.gen("legs", max_tokens=1) + ', "colour": "' + sgl.select("colour", ["red", "blue"]) + '"}'
        rows.append(f)
    return [{key: row[key] for key in ("name", "legs", "colour")} for row in rows]


@case(["one", "two", "three"], script=say)
@sgl.function
def map_reduce(s, pages):
    s += "Summaries:\n"
    forks = s.fork(len(pages))
    forks += lambda i: f"Page: {pages[i]}\nSummary: "
    forks += sgl.gen("summary", max_tokens=16)
    forks.join()
    for number, summary in enumerate(s["summary"]):
        s += f"{number}. {summary}\n"
    s += "Together: " + sgl.gen("all")


@case("Is water wet?", 3, script={"vote": ["yes", "no", "yes"]})
@sgl.function
def majority(s, question, count):
    s += question + " "
    forks = s.fork(count)
    for f in forks:
        f += sgl.select("vote", ["yes", "no"])
        note(f["vote"])
    forks.join()
    votes = s["vote"]
    s += "Most say " + max(sorted(set(votes)), key=votes.count)


@case("draft", script=say)
@sgl.function
def critique_loop(s, text):
    s += sgl.user(f"Write: {text}") + sgl.assistant(sgl.gen("draft"))
    for _ in range(2):
        (critic,) = s.fork(1)
        critic += sgl.user("What is wrong with it?") + sgl.assistant(sgl.gen("critique"))
        s += sgl.user(f"Improve it: {critic['critique']}") + sgl.assistant(sgl.gen("draft"))
    return s["draft"]


@case("hello", script={"language": "French", "out": "bonjour"})
@sgl.function
def routed(s, text):
    s += f"Translate {text} to " + sgl.select("language", ["French", "German"])
    match s["language"]:
        case "French":
            s += ": (fr) " + sgl.gen("out")
        case _:
            s += ": (de) " + sgl.gen("out")


@case("Tell a story", 3, script=say)
@sgl.function
def skeleton(s, topic, count):
    s += sgl.user(topic) + sgl.assistant("Points: " + sgl.gen("points"))
    forks = s.fork(count)
    for i, f in enumerate(forks):
        f += sgl.user(f"Expand point {i + 1}") + sgl.assistant(sgl.gen("part"))
    forks.join("concate_and_append")
    s += sgl.user("Conclude") + sgl.assistant(sgl.gen("end"))
