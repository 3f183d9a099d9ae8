"""A state machine over RadixCache, TokenAllocator and ReqKV, beside a model made of dictionaries.

The model keeps, by name space, each stored prefix (a tuple of tokens) with its slot and last use; what each request holds;
and what every slot was written with. After every rule the real tree, the books and the slots are compared with it.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sgnb.engine.mem_cache.allocator import TokenAllocator
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.req_kv import ReqKV

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
SPACES = st.sampled_from(["", "", "", "salt"])
PICK = st.integers(0, 1000)
Prefix = tuple[str, tuple[int, ...]]


def array(ids):
    return np.array(ids, dtype=np.int32)


class OpenReq:
    """A request of the model: its tokens, how many have KV, how many of them the tree holds."""

    def __init__(self, space: str, ids: list[int], kv: ReqKV) -> None:
        self.space, self.ids, self.kv = space, ids, kv
        self.locked = 0


class RadixMachine(RuleBasedStateMachine):
    cache_class = RadixCache
    kv_class = ReqKV

    @initialize(size=st.integers(4, 64))
    def start(self, size: int) -> None:
        self.allocator = TokenAllocator(size)
        self.cache = self.cache_class(self.allocator)
        self.stored: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.doomed: set[Prefix] = set()
        self.written: dict[int, Prefix] = {}
        self.open: list[OpenReq] = []
        self.sessions: list = []
        self.tick = 0

    # ------------------------------------------------------------ model

    def touch(self, space: str, ids: list[int]) -> int:
        """One operation walks down this path; returns how far the model's tree goes."""
        self.tick += 1
        length = 0
        while length < len(ids) and (space, tuple(ids[: length + 1])) in self.stored:
            length += 1
            self.used[space, tuple(ids[:length])] = self.tick
        return length

    def model_insert(self, space: str, ids: list[int], slots: list[int]) -> None:
        length = self.touch(space, ids)
        inherits = (space, tuple(ids[:length])) in self.doomed
        for end in range(length + 1, len(ids) + 1):
            prefix = (space, tuple(ids[:end]))
            self.stored[prefix] = slots[end - 1]
            self.used[prefix] = self.tick
            if inherits:
                self.doomed.add(prefix)

    def locks(self, prefix: Prefix) -> int:
        space, ids = prefix
        return sum(
            req.space == space and req.locked >= len(ids) and tuple(req.ids[: len(ids)]) == ids
            for req in self.open
        )

    def forget(self, prefixes) -> None:
        for prefix in prefixes:
            del self.stored[prefix], self.used[prefix]
            self.doomed.discard(prefix)

    def ends(self) -> dict:
        """Node of the real tree → the prefix that ends with it."""
        out = {}
        for node in self.cache.nodes():
            parent = out.get(node.parent, (node.extra_key, ()))
            out[node] = (node.extra_key, parent[1] + tuple(node.key.tolist()))
        return out

    def pick(self, at: int) -> OpenReq:
        return self.open[at % len(self.open)]

    def close(self, req: OpenReq, kept: int | None) -> None:
        """The model's and the real release; ``kept`` tokens are left in the tree."""
        self.open.remove(req)
        flushed = req.locked and (req.space, tuple(req.ids[: req.locked])) in self.doomed
        slots = list(req.kv.slots)
        node = req.kv.release(None if kept is None else array(req.ids[:kept]))
        if kept is not None and not flushed:
            self.model_insert(req.space, req.ids[:kept], slots)
            assert node is not None
        self.forget([prefix for prefix in self.doomed if not self.locks(prefix)])
        req.kv.release()  # idempotent

    # ------------------------------------------------------------ rules

    @rule(space=SPACES, ids=TOKENS, count=st.integers(0, 12), store=st.booleans())
    def admit(self, space: str, ids: list[int], count: int, store: bool) -> None:
        kv = self.kv_class(self.cache, self.allocator, space)
        peeked = self.cache.peek(array(ids[:-1]), space).length
        matched = kv.bind(array(ids))
        length = self.touch(space, ids[:-1])
        assert matched == peeked == length, "a match is the longest common prefix, short of the last token"
        for end in range(1, length + 1):
            self.doomed.discard((space, tuple(ids[:end])))
        req = OpenReq(space, ids, kv)
        req.locked = length
        self.open.append(req)
        self.advance(req, count)
        if store:
            self.commit(req)

    @rule(space=SPACES, ids=TOKENS, cut=st.integers(0, 2))
    def serve(self, space: str, ids: list[int], cut: int) -> None:
        """A whole request in one rule, so that the tree is rarely empty."""
        self.admit(space, ids, len(ids), False)
        self.close(self.open[-1], max(0, len(self.open[-1].kv.slots) - cut))

    @precondition(lambda self: self.open)
    @rule(at=PICK, count=st.integers(1, 6), token=st.integers(0, 2))
    def compute(self, at: int, count: int, token: int) -> None:
        req = self.pick(at)
        if len(req.kv.slots) == len(req.ids) < 16:
            req.ids = [*req.ids, token]  # a decode step
        self.advance(req, count)

    def advance(self, req: OpenReq, count: int) -> None:
        count = min(count, len(req.ids) - len(req.kv.slots))
        if not self.make_room(count):
            return
        slots = self.allocator.alloc(count)
        for slot in slots:
            req.kv.grow([slot])
            self.written[slot] = (req.space, tuple(req.ids[: len(req.kv.slots)]))

    @precondition(lambda self: self.open)
    @rule(at=PICK)
    def store(self, at: int) -> None:
        self.commit(self.pick(at))

    def commit(self, req: OpenReq) -> None:
        done = len(req.kv.slots)
        own = list(req.kv.slots)
        req.kv.store(array(req.ids[:done]))
        self.model_insert(req.space, req.ids[:done], own)
        req.locked = done
        assert req.kv.in_flight == 0

    @precondition(lambda self: self.open)
    @rule(at=PICK, cut=st.integers(0, 4))
    def finish(self, at: int, cut: int) -> None:
        req = self.pick(at)
        self.close(req, max(0, len(req.kv.slots) - cut))

    @precondition(lambda self: self.open)
    @rule(at=PICK)
    def abort(self, at: int) -> None:
        self.close(self.pick(at), None)

    @precondition(lambda self: self.open)
    @rule(at=PICK, length=st.integers(0, 12))
    def truncate(self, at: int, length: int) -> None:
        self.pick(at).kv.truncate(length)

    @precondition(lambda self: self.stored)
    @rule(space=SPACES, ids=TOKENS)
    def open_session(self, space: str, ids: list[int]) -> None:
        node = self.cache.match_prefix(array(ids), space).node
        length = self.touch(space, ids)
        for end in range(1, length + 1):
            self.doomed.discard((space, tuple(ids[:end])))
        self.cache.soft_ref(node)
        self.sessions.append(node)

    @precondition(lambda self: self.sessions)
    @rule(at=PICK)
    def close_session(self, at: int) -> None:
        node = self.sessions.pop(at % len(self.sessions))
        self.cache.soft_unref(self.cache.resolve(node))

    @precondition(lambda self: self.stored)
    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.make_room(self.allocator.available + count)

    @precondition(lambda self: len(self.stored) > 8)
    @rule()
    def flush(self) -> None:
        locked = {prefix for prefix in self.stored if self.locks(prefix)}
        result = self.cache.flush()
        assert result == (len(self.stored) - len(locked), len(locked))
        self.forget([prefix for prefix in self.stored if prefix not in locked])
        self.doomed = locked

    def make_room(self, count: int) -> bool:
        """Evict until ``count`` slots are free, and check who was evicted: unlocked leaves, plain before soft, LRU."""
        if self.allocator.available >= count:
            return True
        expected = self.expected_victims(count - self.allocator.available)
        before = set(self.stored)
        freed = self.cache.evict(count - self.allocator.available)
        left = {(*end[:1], end[1][:cut]) for end in self.ends().values() for cut in range(1, len(end[1]) + 1)}
        gone = before - left
        assert gone == expected, "eviction takes unlocked leaves, plain ones first, least recently used first"
        assert freed == len(gone)
        self.forget(gone)
        return self.allocator.available >= count

    def expected_victims(self, count: int) -> set[Prefix]:
        ends = self.ends()
        children = {node: len(node.children) for node in ends}
        soft = dict.fromkeys(ends, 0)
        for node in map(self.cache.resolve, self.sessions):
            if node in soft:
                soft[node] += 1
        gone: set[Prefix] = set()
        while count > 0:
            leaves = [node for node in children if not children[node] and not self.locks(ends[node])]
            if not leaves:
                break
            node = min(leaves, key=lambda leaf: (soft[leaf] > 0, self.used[ends[leaf]]))
            del children[node]
            if node.parent in children:
                children[node.parent] -= 1
                soft[node.parent] += soft[node]
            space, ids = ends[node]
            gone |= {(space, ids[:end]) for end in range(len(ids) - len(node.key) + 1, len(ids) + 1)}
            count -= len(node.key)
        return gone

    # ------------------------------------------------------------ invariants

    @invariant()
    def tree_is_the_model(self) -> None:
        found: dict[Prefix, int] = {}
        for node, (space, ids) in self.ends().items():
            base = len(ids) - len(node.key)
            for index, slot in enumerate(node.value.tolist()):
                found[space, ids[: base + index + 1]] = slot
            assert node.lock_ref == self.locks((space, ids)), "locks equal the requests under the node"
        assert found == self.stored

    @invariant()
    def each_slot_has_one_owner(self) -> None:
        own = [slot for req in self.open for slot in req.kv.slots[req.kv.tree_len :]]
        tree = list(self.stored.values())
        free = self.allocator._stack[: self.allocator.available].tolist()
        assert sorted(own + tree + free) == list(range(self.allocator.size))
        assert self.cache.evictable_size + self.cache.protected_size == len(tree)
        assert self.cache.lock_total == len(self.open)

    @invariant()
    def slots_hold_what_they_should(self) -> None:
        for req in self.open:
            for position, slot in enumerate(req.kv.slots):
                assert self.written[slot] == (req.space, tuple(req.ids[: position + 1]))

    @invariant()
    def books_are_even(self) -> None:
        self.allocator.check()
        self.cache.check()
        for node in map(self.cache.resolve, self.sessions):
            assert node.soft_ref >= 1

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for req in list(self.open):
            self.close(req, None)
        for node in self.sessions:
            self.cache.soft_unref(self.cache.resolve(node))
        self.cache.flush()
        assert self.allocator.available == self.allocator.size, "drained, the pool is as at the start"
        assert not self.cache.lock_total
