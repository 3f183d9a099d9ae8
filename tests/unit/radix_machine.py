"""A state machine over RadixCache, both allocators and ReqKV, beside a model made of dictionaries.

The model keeps, by name space, each stored prefix (a tuple of tokens, whole pages) with the slots of its last page and its
last use; what each request holds; and what every slot was written with. After every rule the real tree, the books and the
slots are compared with it.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sgnb.engine.mem_cache.allocator import PagedAllocator, make_allocator
from sgnb.engine.mem_cache.defragment import defragment
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.req_kv import ReqKV

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
SPACES = st.sampled_from(["", "", "", "salt"])
PICK = st.integers(0, 1000)
Prefix = tuple[str, tuple[int, ...]]


def array(ids):
    return np.array(ids, dtype=np.int32)


def free_slots(allocator) -> list[int]:
    """What an allocator has, slot by slot."""
    if not isinstance(allocator, PagedAllocator):
        return allocator._stack[: allocator.available].tolist()
    page = allocator.page_size
    return [
        slot for first in free_slots(allocator._pages) for slot in range(first * page, (first + 1) * page)
    ]


class OpenReq:
    """A request of the model: its tokens, how many have KV, how many of them the tree holds."""

    def __init__(self, space: str, ids: list[int], kv: ReqKV) -> None:
        self.space, self.ids, self.kv = space, ids, kv
        self.locked = 0


class RadixMachine(RuleBasedStateMachine):
    cache_class = RadixCache
    kv_class = ReqKV
    page_sizes = (1, 1, 2, 4, 16)

    @initialize(size=st.integers(4, 64), data=st.data())
    def start(self, size: int, data) -> None:
        self.page = data.draw(st.sampled_from(self.page_sizes))
        size = max(size, 3 * self.page)
        self.allocator = make_allocator(size, self.page, data.draw(st.sampled_from(["lifo", "lowest"])))
        self.cache = self.cache_class(self.allocator)
        self.stored: dict[Prefix, tuple[int, ...]] = {}
        self.used: dict[Prefix, int] = {}
        self.doomed: set[Prefix] = set()
        self.written: dict[int, Prefix] = {}
        self.open: list[OpenReq] = []
        self.sessions: list = []
        self.pins: list = []
        self.tick = 0

    # ------------------------------------------------------------ model

    def touch(self, space: str, ids: list[int]) -> int:
        """One operation walks down this path; returns how far the model's tree goes."""
        self.tick += 1
        length = 0
        while (longer := length + self.page) <= len(ids) and (space, tuple(ids[:longer])) in self.stored:
            length = longer
            self.used[space, tuple(ids[:length])] = self.tick
        return length

    def whole(self, length: int) -> int:
        return length // self.page * self.page

    def model_insert(self, space: str, ids: list[int], slots: list[int]) -> None:
        length = self.touch(space, ids)
        inherits = (space, tuple(ids[:length])) in self.doomed
        for end in self.ends_of_pages(length, len(ids)):
            prefix = (space, tuple(ids[:end]))
            self.stored[prefix] = tuple(slots[end - self.page : end])
            self.used[prefix] = self.tick
            if inherits:
                self.doomed.add(prefix)

    def locks(self, prefix: Prefix) -> int:
        space, ids = prefix
        return sum(
            req.space == space and req.locked >= len(ids) and tuple(req.ids[: len(ids)]) == ids
            for req in self.open
        )

    def ends_of_pages(self, start: int, end: int) -> range:
        """Where the pages of tokens ``start … end`` end, whole ones only."""
        return range(start + self.page, end + 1, self.page)

    def pinned(self, prefix: Prefix) -> bool:
        space, ids = prefix
        return any(where == space and path[: len(ids)] == ids for _, (where, path) in self.pins)

    def held(self, prefix: Prefix) -> bool:
        return bool(self.locks(prefix)) or self.pinned(prefix)

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
        self.forget([prefix for prefix in self.doomed if not self.held(prefix)])
        req.kv.release()  # idempotent

    # ------------------------------------------------------------ rules

    @rule(space=SPACES, ids=TOKENS, count=st.integers(0, 12), store=st.booleans())
    def admit(self, space: str, ids: list[int], count: int, store: bool) -> None:
        kv = self.kv_class(self.cache, self.allocator, space)
        peeked = self.cache.peek(array(ids[:-1]), space).length
        matched = kv.bind(array(ids))
        length = self.touch(space, ids[:-1])
        assert matched == peeked == length, "a match is the longest common prefix, short of the last token"
        for end in self.ends_of_pages(0, length):
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

    @precondition(lambda self: self.stored)
    @rule(at=PICK, token=st.integers(0, 2))
    def serve_again(self, at: int, token: int) -> None:
        """A request with a prefix that is cached: what was stored first is not what was used last."""
        space, ids = sorted(self.stored)[at % len(self.stored)]
        self.serve(space, [*ids, token], 0)

    @precondition(lambda self: self.open)
    @rule(at=PICK, count=st.integers(1, 6), token=st.integers(0, 2))
    def compute(self, at: int, count: int, token: int) -> None:
        req = self.pick(at)
        if len(req.kv.slots) == len(req.ids) < 16:
            req.ids = [*req.ids, token]  # a decode step
        self.advance(req, count)

    def advance(self, req: OpenReq, count: int) -> None:
        count = min(count, len(req.ids) - len(req.kv.slots))
        start, lack = len(req.kv.slots), req.kv.lack(count)
        if not self.make_room(lack):
            return
        for at, slot in enumerate(req.kv.grow(self.allocator.alloc(lack), count)):
            self.written[slot] = (req.space, tuple(req.ids[: start + at + 1]))

    @precondition(lambda self: self.open)
    @rule(at=PICK)
    def store(self, at: int) -> None:
        self.commit(self.pick(at))

    def commit(self, req: OpenReq) -> None:
        done = len(req.kv.slots)
        own = list(req.kv.slots)
        req.kv.store(array(req.ids[:done]))
        self.model_insert(req.space, req.ids[:done], own)
        req.locked = self.whole(done)
        assert req.kv.in_flight == req.kv.lack(0) + self.allocator.round_up(done - req.locked)

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
        for end in self.ends_of_pages(0, length):
            self.doomed.discard((space, tuple(ids[:end])))
        self.cache.soft_ref(node)
        self.sessions.append(node)

    @precondition(lambda self: self.sessions)
    @rule(at=PICK)
    def close_session(self, at: int) -> None:
        node = self.sessions.pop(at % len(self.sessions))
        self.cache.soft_unref(self.cache.resolve(node))

    @precondition(lambda self: self.stored)
    @rule(space=SPACES, ids=TOKENS)
    def pin(self, space: str, ids: list[int]) -> None:
        node = self.cache.match_prefix(array(ids), space).node
        length = self.touch(space, ids)
        for end in self.ends_of_pages(0, length):
            self.doomed.discard((space, tuple(ids[:end])))
        self.cache.pin(node)
        self.pins.append((node, (space, tuple(ids[:length]))))

    @precondition(lambda self: self.pins)
    @rule(at=PICK)
    def unpin(self, at: int) -> None:
        node, _ = self.pins.pop(at % len(self.pins))
        assert self.cache.unpin(node)

    @precondition(lambda self: len(self.stored) > 2)
    @rule()
    def defragment(self) -> None:
        """Everything keeps its owner and its KV; what is free is one run at the end."""
        stored = self.slots_of_tree()

        def move(src, dst):
            content = [self.written.get(slot) for slot in src]
            self.written.update(
                {slot: what for slot, what in zip(dst, content, strict=True) if what is not None}
            )

        defragment(self.cache, [req.kv for req in self.open], self.allocator, move)
        now = self.slots_of_tree()
        assert now.keys() == stored.keys() == self.stored.keys()
        self.stored = {prefix: now[prefix] for prefix in self.stored}
        taken = self.allocator.size - self.allocator.available
        assert sorted(free_slots(self.allocator)) == list(range(taken, self.allocator.size))

    @precondition(lambda self: self.stored)
    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.make_room(self.allocator.available + count)

    @precondition(lambda self: len(self.stored) > 8)
    @rule()
    def flush(self) -> None:
        held = {prefix for prefix in self.stored if self.held(prefix)}
        result = self.cache.flush()
        assert result == ((len(self.stored) - len(held)) * self.page, len(held) * self.page)
        self.forget([prefix for prefix in self.stored if prefix not in held])
        self.doomed = {prefix for prefix in held if not self.pinned(prefix)}

    def make_room(self, count: int) -> bool:
        """Evict until ``count`` slots are free, and check who was evicted: unlocked leaves, plain before soft, LRU."""
        if self.allocator.available >= count:
            return True
        expected = self.expected_victims(count - self.allocator.available)
        before = set(self.stored)
        freed = self.cache.evict(count - self.allocator.available)
        left = {
            (space, ids[:cut])
            for space, ids in self.ends().values()
            for cut in self.ends_of_pages(0, len(ids))
        }
        gone = before - left
        assert gone == expected, "eviction takes unlocked leaves, plain ones first, least recently used first"
        assert freed == len(gone) * self.page
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
            leaves = [node for node in children if not children[node] and not self.held(ends[node])]
            if not leaves:
                break
            node = min(leaves, key=lambda leaf: (soft[leaf] > 0, self.used[ends[leaf]]))
            del children[node]
            if node.parent in children:
                children[node.parent] -= 1
                soft[node.parent] += soft[node]
            space, ids = ends[node]
            gone |= {(space, ids[:end]) for end in self.ends_of_pages(len(ids) - len(node.key), len(ids))}
            count -= len(node.key)
        return gone

    # ------------------------------------------------------------ invariants

    def slots_of_tree(self) -> dict[Prefix, tuple[int, ...]]:
        """Each prefix of whole pages in the real tree, with the slots of its last page."""
        found = {}
        for node, (space, ids) in self.ends().items():
            base, slots = len(ids) - len(node.key), node.value.tolist()
            for end in self.ends_of_pages(base, len(ids)):
                found[space, ids[:end]] = tuple(slots[end - self.page - base : end - base])
        return found

    @invariant()
    def tree_is_the_model(self) -> None:
        for node, (space, ids) in self.ends().items():
            assert node.lock_ref == self.locks((space, ids)), "locks equal the requests under the node"
            assert node.doomed == ((space, ids) in self.doomed), "flushed is what was held at the flush"
        assert self.slots_of_tree() == self.stored

    @invariant()
    def each_slot_has_one_owner(self) -> None:
        own = [slot for req in self.open for slot in req.kv.own_slots]
        tree = [slot for page in self.stored.values() for slot in page]
        free = free_slots(self.allocator)
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
        assert self.cache.unpin_all() == len(self.pins)
        for node in self.sessions:
            self.cache.soft_unref(self.cache.resolve(node))
        self.cache.flush()
        assert self.allocator.available == self.allocator.size, "drained, the pool is as at the start"
        assert not self.cache.lock_total
