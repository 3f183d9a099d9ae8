"""States used from outside any program, at random moments: what the backend saw is what the state says.

The script's answer is a digest of its prompt, so a text that got lost, or came twice or in another order, changes all
that follows it. A plain model in this file says what the text must be.
"""

from __future__ import annotations

import hashlib
import random
import time

import pytest
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.runtime.run import run_cell


def answer(prompt, name="", params=None):
    return f"<{hashlib.blake2b(prompt.encode(), digest_size=3).hexdigest()}>"


@sgl.function
def begin(s, text):
    s += text


class World:
    """Pairs of a state and the text it must have."""

    def __init__(self, seed, backend=None):
        self.rng = random.Random(seed)
        self.backend = backend or MockBackend(answer, delay=self.rng.choice((0.0, 0.0, 0.002)))
        self.live = [[begin.run("Q", backend=self.backend), "Q"]]
        self.marks = []
        self.count = 0
        self.done = []

    def step(self):
        pair = self.rng.choice(self.live)
        state, text = pair
        self.count += 1
        kind = self.rng.choice("ttgggscfffFbmmrrcwL")
        if kind == "t":
            state += f" t{self.count}"
            pair[1] += f" t{self.count}"
        elif kind == "g":
            state += sgl.gen(f"g{self.count}", max_tokens=64)
            pair[1] += answer(text)
        elif kind == "s":
            state += f" u{self.count}" + sgl.gen("v", max_tokens=64) + "."
            pair[1] = self.said(f"{text} u{self.count}") + "."
        elif kind == "w":
            time.sleep(self.rng.choice((0.0, 0.001, 0.01)))
            state.sync()
        elif kind == "m":
            self.marks.append((pair, state.mark(), text))
        elif kind == "r":
            mine = [mark for mark in self.marks if mark[0] is pair]
            if mine:
                _, mark, before = self.rng.choice(mine)
                state.rewind(mark)
                pair[1] = before
                if self.rng.random() < 0.5:
                    self.marks = [one for one in self.marks if one[1] is not mark]
        elif kind == "c":
            cell = f"s += ' c{self.count}' + gen('c')"
            run_cell(cell, cell_name="c", user_ns={}, start=state, backend=self.backend).drive()
            pair[1] = self.said(f"{text} c{self.count}")
        elif kind == "L" and len(self.live) > 1:
            self.live.remove(pair)
            self.marks = [mark for mark in self.marks if mark[0] is not pair]
            state.close() if self.rng.random() < 0.5 else None
        else:
            self.fork(pair, kind)

    def said(self, text):
        return text + answer(text)

    def fork(self, pair, kind):
        state, text = pair
        if state.depth >= 5 or (kind == "F" and len(self.live) > 6):
            return
        group = state.fork(2)
        texts = [text, text]
        if kind == "F":  # they live on by themselves
            self.live += [[branch, text] for branch in group]
            return
        for number in (0, 1):
            if self.rng.random() < 0.8:
                group[number] += f" b{number}" + sgl.gen("b", max_tokens=64)
                texts[number] = self.said(f"{text} b{number}")
            if self.rng.random() < 0.3:
                group[number] += "!"
                texts[number] += "!"
            if self.rng.random() < 0.3:
                time.sleep(0.003)
        if kind == "b":
            best = self.rng.randrange(2)
            group.join("best", by=lambda branch: branch is group[best])
            pair[1] = texts[best]
        elif self.rng.random() < 0.5:
            group.join("concate_and_append")
            pair[1] = text + "".join(part[len(text) :] for part in texts)
        else:
            group.join()

    def check(self):
        for state, text in self.live:
            assert state.text() == text
            state += sgl.gen("last", max_tokens=64)
            assert state.text() == self.said(text)


@pytest.mark.parametrize("seed", range(40))
def test_what_the_backend_saw_is_what_the_state_says(seed):
    world = World(seed)
    for _ in range(25):
        world.step()
    world.check()
    world.backend.shutdown()


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_holds_the_ids_that_the_state_knows(seed, tmp_path):
    """A state saved and loaded again is made of what the notebook knows: it must go on as the session does."""
    engine = WholeEngine(max_total_tokens=40_000)
    world = World(seed, engine)
    for _ in range(25):
        world.step()
    for state, _ in world.live:
        state.save(tmp_path / "state.json")
        twin = sgl.load_state(tmp_path / "state.json", backend=engine)
        for one in (state, twin):
            one += sgl.gen("last", max_tokens=6, temperature=0.0)
        assert twin["last"] == state["last"]
        assert twin.get_meta_info("last")["prompt_tokens"] == state.get_meta_info("last")["prompt_tokens"]
    world.live.clear()
    world.marks.clear()
    engine.settle()
    engine.scheduler.check_integrity()
    engine.shutdown()
