from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from radix_machine import RadixMachine, array

from sgnb.engine.mem_cache import miss, radix_cache
from sgnb.engine.mem_cache.allocator import TokenAllocator
from sgnb.engine.mem_cache.base import IntegrityError, OutOfSlots
from sgnb.engine.mem_cache.eviction import EvictionQueue
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.req_kv import ReqKV

MACHINE = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(MACHINE, max_examples=400, phases=[Phase.generate])
SOAK = settings(MACHINE, max_examples=2000, stateful_step_count=50, derandomize=False, print_blob=True)


def test_state_machine():
    run_state_machine_as_test(RadixMachine, settings=MACHINE)


@pytest.mark.soak
def test_state_machine_long():
    run_state_machine_as_test(RadixMachine, settings=SOAK)


# ------------------------------------------------------------ the checker is checked


class Without:
    """An object with one method that does nothing."""

    def __init__(self, target, name: str) -> None:
        self._target, self._name = target, name

    def __getattr__(self, name: str):
        return (lambda *args: None) if name == self._name else getattr(self._target, name)


class SkipsUnlockOnAbort(ReqKV):
    def release(self, ids=None):
        if ids is None:
            self._cache = Without(self._cache, "unlock")
        return super().release(ids)


class KeepsDuplicates(ReqKV):
    def store(self, ids):
        allocator, self._allocator = self._allocator, Without(self._allocator, "free")
        super().store(ids)
        self._allocator = allocator


class FreesTwice(ReqKV):
    def release(self, ids=None):
        slots, start = self.slots, self.tree_len
        node = super().release(ids)
        if ids is None:
            self._allocator.free(slots[start:])
        return node


class SplitsWithoutLock(RadixCache):
    def _split(self, node, length):
        upper = super()._split(node, length)
        upper.lock_ref = 0
        return upper


class ByCreation(EvictionQueue):
    def order(self, node):
        return (node.soft_ref > 0) * 1_000_000 + node.id


class EvictsByCreation(RadixCache):
    def __init__(self, allocator):
        super().__init__(allocator)
        self._queue = ByCreation("lru")


class RoundsUp(RadixCache):
    def _whole(self, length):
        return -(-length // self.page_size) * self.page_size


def off_by_one(key, ids, start):
    length = min(len(key), len(ids) - start)
    differs = np.flatnonzero(key[:length] != ids[start : start + length])
    return min(length, int(differs[0]) + 1) if len(differs) else length


class KeepsSpare(ReqKV):
    def release(self, ids=None):
        self.spare = []
        return super().release(ids)


@pytest.mark.parametrize("pages", [(1,), (2,)], ids=["tokens", "pages"])
@pytest.mark.parametrize(
    "mutation",
    [
        {"kv_class": SkipsUnlockOnAbort},
        {"kv_class": KeepsDuplicates},
        {"kv_class": FreesTwice},
        {"cache_class": SplitsWithoutLock},
        {"cache_class": EvictsByCreation},
    ],
    ids=["skip-unlock", "keep-duplicates", "double-free", "split-lock", "evict-creation"],
)
def test_state_machine_finds_mutation(mutation, pages):
    assert_found(mutation, pages)


@pytest.mark.parametrize(
    "mutation", [{"cache_class": RoundsUp}, {"kv_class": KeepsSpare}], ids=["round-up", "spare"]
)
def test_state_machine_finds_mutation_of_pages(mutation):
    assert_found(mutation, (2, 4, 16))


def test_state_machine_finds_a_match_one_token_too_long(monkeypatch):
    monkeypatch.setattr(radix_cache, "_common", off_by_one)
    assert_found({}, (1,))


def assert_found(mutation, pages):
    machine = type("Mutant", (RadixMachine,), {**mutation, "page_sizes": pages})
    with pytest.raises((AssertionError, IntegrityError, OutOfSlots, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=HUNT)


# ------------------------------------------------------------ named cases


def make(size: int = 64, **kw):
    allocator = TokenAllocator(size)
    return RadixCache(allocator, **kw), allocator


def put(cache, allocator, ids, space=""):
    """Insert as a request would: only what is missing costs slots."""
    have = cache.peek(array(ids), space).length
    slots = [0] * have + allocator.alloc(len(ids) - have)
    return cache.insert(array(ids), slots, space)


@pytest.mark.radix
def test_B126_lock_protects_the_node_itself():
    cache, allocator = make()
    put(cache, allocator, [1, 2])
    node = put(cache, allocator, [1, 2, 3, 4]).node
    put(cache, allocator, [1, 9, 9])
    cache.lock(node)
    assert cache.evict(100) == 2
    assert cache.peek(array([1, 2, 3, 4])).length == 4
    cache.unlock(node)
    assert cache.evict(100) == 4
    assert allocator.available == 64


@pytest.mark.radix
def test_B128_unlock_from_a_handle_after_a_split_above_it():
    cache, allocator = make()
    node = put(cache, allocator, [1, 2, 3, 4]).node
    cache.lock(node)
    put(cache, allocator, [1, 2, 7])
    cache.check()
    assert cache.protected_size == 4
    cache.unlock(node)
    cache.check()
    assert (cache.protected_size, cache.evictable_size, cache.lock_total) == (0, 5, 0)
    with pytest.raises(IntegrityError, match="nobody locks"):
        cache.unlock(node)


def test_insert_returns_what_was_there_and_split_keeps_slots():
    cache, allocator = make()
    put(cache, allocator, [1, 2, 3, 4, 5])
    before = cache.match_prefix(array([1, 2, 3, 4, 5])).slots.tolist()
    result = put(cache, allocator, [1, 2, 3, 9])
    assert (result.existing, result.stored) == (3, 4)
    assert cache.match_prefix(array([1, 2, 3, 4, 5])).slots.tolist() == before


def test_F33_name_spaces_never_share():
    cache, allocator = make()
    put(cache, allocator, [1, 2, 3], "a")
    assert cache.match_prefix(array([1, 2, 3]), "b").slots.tolist() == []
    assert cache.peek(array([1, 2, 3]), "a").length == 3
    cache.flush()
    assert not [space for space in cache._roots if space == "a"], "an empty name space is forgotten"


def test_F35_a_match_leaves_one_token_to_compute():
    cache, allocator = make()
    put(cache, allocator, [1, 2, 3])
    kv = ReqKV(cache, allocator)
    assert kv.bind(array([1, 2, 3])) == 2
    kv.release()
    assert cache.lock_total == 0


def test_F41_flush_spares_locked_nodes_until_they_are_unlocked():
    cache, allocator = make()
    put(cache, allocator, [7, 7, 7])
    kv = ReqKV(cache, allocator)
    kv.bind(array([1, 2, 3]))
    kv.grow(allocator.alloc(3))
    kv.store(array([1, 2, 3]))
    assert cache.flush() == (3, 3)
    assert cache.peek(array([1, 2, 3])).length == 3
    kv.grow(allocator.alloc(1))
    kv.release(array([1, 2, 3, 4]))
    assert allocator.available == 64
    assert not list(cache.nodes())


def test_flushed_prefix_that_is_used_again_stays():
    cache, allocator = make()
    first, second = ReqKV(cache, allocator), ReqKV(cache, allocator)
    first.bind(array([1, 2, 3]))
    first.grow(allocator.alloc(3))
    first.store(array([1, 2, 3]))
    cache.flush()
    assert second.bind(array([1, 2, 3, 4])) == 3
    first.release()
    second.release()
    assert cache.peek(array([1, 2, 3])).length == 3


def test_what_ends_under_a_flushed_prefix_leaves_with_it():
    """A request that was admitted before its prefix was in the tree ends after a flush that another one outlives."""
    cache, allocator = make()
    first, second = ReqKV(cache, allocator), ReqKV(cache, allocator)
    second.bind(array([1, 2, 3, 4]))
    second.grow(allocator.alloc(3))
    first.bind(array([1, 2, 9]))
    first.grow(allocator.alloc(2))
    first.store(array([1, 2]))
    assert cache.flush() == (0, 2)
    node = second.release(array([1, 2, 3]))
    assert cache.resolve(node) is first.node, "a soft reference lies at what is left"
    assert cache.peek(array([1, 2, 3])).length == 2
    cache.check()
    first.release(array([1, 2]))
    assert allocator.available == 64
    assert not list(cache.nodes())


def test_F31_two_requests_compute_the_same_prefix():
    cache, allocator = make()
    reqs = [ReqKV(cache, allocator) for _ in range(2)]
    for kv in reqs:
        kv.bind(array([1, 2, 3]))
        kv.grow(allocator.alloc(3))
        kv.table_stale = False
    for kv in reqs:
        kv.store(array([1, 2, 3]))
    assert allocator.available == 61, "the duplicate is freed at once"
    assert reqs[0].slots == reqs[1].slots
    assert reqs[1].table_stale, "the runner must learn the new slots"
    for kv in reqs:
        kv.release(array([1, 2, 3]))
        kv.release()
    assert allocator.available == 61


def test_soft_references_are_evicted_last_but_never_block():
    cache, allocator = make()
    soft = put(cache, allocator, [1, 1]).node
    cache.soft_ref(soft)
    put(cache, allocator, [2, 2])
    cache.match_prefix(array([2, 2]))
    assert cache.evict(1) == 2
    assert cache.peek(array([1, 1])).length == 2
    assert cache.evict(1) == 2
    cache.soft_unref(cache.resolve(soft))
    with pytest.raises(IntegrityError, match="twice"):
        cache.soft_unref(cache.resolve(soft))


def test_disabled_cache_keeps_nothing():
    cache, allocator = make(disabled=True)
    kv = ReqKV(cache, allocator)
    assert kv.bind(array([1, 2, 3])) == 0
    kv.grow(allocator.alloc(3))
    kv.store(array([1, 2, 3]))
    assert kv.in_flight == 3
    kv.release(array([1, 2, 3]))
    assert allocator.available == 64
    assert cache.lock_total == 0


def test_check_reports_a_broken_book():
    cache, allocator = make()
    node = put(cache, allocator, [1, 2, 3]).node
    cache.check()
    cache.evictable_size += 1
    with pytest.raises(IntegrityError, match="4 and 0"):
        cache.check()
    cache.evictable_size -= 1
    node.value = node.value[:2]
    with pytest.raises(IntegrityError, match="3 tokens and 2 slots"):
        cache.check()


def test_what_is_remembered_of_evictions_is_bounded_and_keeps_the_latest(monkeypatch):
    monkeypatch.setattr(miss, "_REMEMBERED", 8)
    allocator = TokenAllocator(64)
    cache = RadixCache(allocator)
    for n in range(40):
        cache.insert(np.array([n, n], dtype=np.int32), allocator.alloc(2))
        cache.evict(2)
        assert len(cache._misses._gone) <= 16
        for back in range(min(n, 7) + 1):
            ids = np.array([n - back, n - back, 0, 0], dtype=np.int32)
            assert cache.explain(ids, "", 0).cause == "evicted", (n, back)


@pytest.mark.parametrize(
    ("prompt", "cause"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "evicted"),
        ([1, 2, 3, 4, 5, 6, 7, 8, 0, 0], "evicted"),
        ([1, 2, 3, 0], "evicted"),
        ([1, 9, 9, 9, 9, 9, 9, 9, 9, 9], "cold"),
        ([1, 2, 3, 4, 9, 9, 9, 9, 9, 9], "cold"),
    ],
)
def test_only_a_prompt_that_would_have_gone_on_in_it_misses_what_was_evicted(
    prompt: list[int], cause: str
) -> None:
    """The first token in common is not enough: "Question 10" does not miss the node of "Question 1 …"."""
    allocator = TokenAllocator(64)
    cache = RadixCache(allocator)
    cache.insert(np.arange(1, 13, dtype=np.int32), allocator.alloc(12))
    cache.evict(12)
    assert cache.explain(np.array(prompt, dtype=np.int32), "", 0).cause == cause


def test_of_new_text_nothing_is_told_that_it_does_not_mean() -> None:
    """Some tokens that happen to agree behind the first are no change of a cached prompt."""
    allocator = TokenAllocator(64)
    cache = RadixCache(allocator)
    cache.insert(np.arange(1, 13, dtype=np.int32), allocator.alloc(12))
    found = cache.explain(np.array([50, 2, 3, 4, 60, 61, 62], dtype=np.int32), "", 0)
    assert (found.cause, found.diverged_at, found.equal_again) == ("cold", -1, 0)


def test_eviction_goes_on_in_order_when_entries_are_out_of_date_or_there_twice():
    """A soft reference puts a leaf behind all others and its end brings it back: its entries are then two."""
    allocator = TokenAllocator(64)
    cache = RadixCache(allocator)
    nodes = [cache.insert(np.array([n, n]), allocator.alloc(2)).node for n in range(6)]
    for _ in range(3):
        cache.soft_ref(nodes[1])
        cache.next_victims(6)
        cache.match_prefix(np.array([1, 1]))
        cache.soft_unref(nodes[1])
    cache.soft_ref(nodes[3])
    cache.match_prefix(np.array([0, 0]))
    gone = []
    cache.on_change = lambda kind, node: gone.append(node.id)
    expected = [nodes[n].id for n in (2, 4, 5, 1, 0, 3)]
    assert cache.next_victims(6) == expected
    while cache.evict(1):
        pass
    assert gone == expected and allocator.available == 64 and not cache._queue._nodes
