"""What a model thinks before it answers, told apart from the answer by the marks its family writes.

A leaf: pure functions over text, used by ``lang.api.separate_reasoning`` (which families there are), by ``runtime`` (the
two variables and the state's text) and by the scheduler (what a session keeps), which must agree. No states, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around a thought; ``opened``: the chat template writes the first one, so the model may not."""

    begin: str
    end: str
    opened: bool = False


FAMILIES: dict[str, Marks] = {
    "deepseek-r1": Marks("<think>", "</think>", opened=True),
    "deepseek-v3": Marks("<think>", "</think>"),
    "glm45": Marks("<think>", "</think>"),
    "qwen3": Marks("<think>", "</think>"),
    "qwen3-thinking": Marks("<think>", "</think>", opened=True),
    "kimi": Marks("◁think▷", "◁/think▷"),
}
"""SGLang's names of model families."""


def split_reasoning(text: str, family: str) -> tuple[str, str]:
    """(reasoning, answer) of a model's text, without the marks and the white space around them.

    Text without marks is all answer, unless the family's template opens the thought: then it is all reasoning.
    """
    marks = FAMILIES[family]
    before, begun, rest = text.partition(marks.begin)
    if not begun:
        before, rest = "", text
        if not marks.opened and marks.end not in text:
            return "", text
    elif before.strip():
        return "", text
    thought, ended, answer = rest.partition(marks.end)
    return thought.strip(), answer.lstrip() if ended else ""
