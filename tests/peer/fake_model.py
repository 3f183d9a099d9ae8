"""One fake model behind two front ends: what it writes is a function of the prompt alone.

``MockBackend(script)`` is sgnb's side of it; ``peer_backend(...)`` answers SGLang's interpreter with the same words, cut at
the same stops and lengths, and makes choices by the same scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from sglang_peer import peer_module

from sgnb.backends.mock import CHATML
from sgnb.backends.mock_script import choice_score, choose, cut, tokens_of

WORDS = (
    " river", " stone", " and", " the", " 17", " blue", ". A", ", then", "\n", " it is", ";", " moss", " owl",
)  # fmt: skip


def words(prompt: str, count: int = 12) -> str:
    """Some text that follows from the prompt."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=count).digest()
    return "".join(WORDS[byte % len(WORDS)] for byte in digest)


class Answers:
    """A script for both sides: answers by the end of the prompt, other prompts get ``words``."""

    def __init__(self, by_end: Mapping[str, str] | None = None) -> None:
        self.by_end = dict(by_end or {})
        self.prompts: list[str] = []

    def __call__(self, prompt: str, *_: object) -> str:
        self.prompts.append(prompt)
        for end, answer in self.by_end.items():
            if prompt.endswith(end):
                return answer
        return words(prompt)


def _texts(value: Any) -> tuple[str, ...]:
    return () if not value else (value,) if isinstance(value, str) else tuple(value)


def peer_backend(answers: Answers, fail_at: str = "", chat: str = "chatml") -> Any:
    """A backend for SGLang's interpreter. A prompt that ends with ``fail_at`` fails."""
    base = peer_module("lang.backend.base_backend")
    decisions = peer_module("lang.choices")
    templates = peer_module("lang.chat_template")

    class FakeModel(base.BaseBackend):  # type: ignore[misc,name-defined]
        is_chat_model = False

        def __init__(self) -> None:
            super().__init__()
            self.chat_template = templates.get_chat_template(chat)
            self.stops: list[Any] = []
            self.commits: list[str] = []

        def commit_lazy_operations(self, s: Any) -> None:
            self.commits.append(s.text_)

        def _cut(self, s: Any, params: Any) -> tuple[str, dict[str, Any]]:
            if fail_at and s.text_.endswith(fail_at):
                raise RuntimeError("the model failed")
            self.stops.append(params.stop)
            op = SimpleNamespace(
                params=SimpleNamespace(stop=_texts(params.stop), max_new_tokens=params.max_new_tokens)
            )
            return cut(answers(s.text_), op)  # type: ignore[arg-type]

        def generate(self, s: Any, sampling_params: Any) -> tuple[Any, dict[str, Any]]:
            samples = [self._cut(s, sampling_params) for _ in range(sampling_params.n)]
            text, finish = samples[0]
            meta = {"finish_reason": {"type": finish["type"]}, "completion_tokens": len(tokens_of(text))}
            return (text if len(samples) == 1 else [one for one, _ in samples]), meta

        def generate_stream(self, s: Any, sampling_params: Any) -> Any:
            text, _ = self._cut(s, sampling_params)
            for piece in tokens_of(text):
                yield piece, {}

        def select(self, s: Any, choices: Any, temperature: float, choices_method: Any = None) -> Any:
            answers.prompts.append(s.text_)
            winner = choose(s.text_, SimpleNamespace(options=tuple(choices)), None)  # type: ignore[arg-type]
            return decisions.ChoicesDecision(
                winner, {"scores": [choice_score(s.text_, one) for one in choices]}
            )

    return FakeModel()


__all__ = ["CHATML", "Answers", "peer_backend", "words"]
