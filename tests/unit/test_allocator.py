from __future__ import annotations

import pytest

from sgnb.engine.mem_cache.allocator import PagedAllocator, TokenAllocator
from sgnb.engine.mem_cache.base import IntegrityError, OutOfSlots


def test_slots_come_in_ascending_runs_and_go_back():
    allocator = TokenAllocator(8)
    first, second = allocator.alloc(3), allocator.alloc(2)
    assert (first, second) == ([0, 1, 2], [3, 4])
    allocator.free(first)
    assert allocator.alloc(3) == first
    allocator.check()


def test_short_pool_gives_nothing():
    allocator = TokenAllocator(4)
    allocator.alloc(3)
    with pytest.raises(OutOfSlots, match="2 KV slots are needed, 1 of 4 are free"):
        allocator.alloc(2)
    assert allocator.available == 1


@pytest.mark.parametrize("slots", [[0, 0], [3], [4], [-1]], ids=["within", "free", "foreign", "negative"])
def test_double_free_is_found(slots):
    allocator = TokenAllocator(4)
    allocator.alloc(3)
    with pytest.raises(IntegrityError):
        allocator.free(slots)
    allocator.check()
    assert allocator.available == 1


def test_check_compares_stack_and_flags():
    allocator = TokenAllocator(4)
    allocator._top -= 1
    with pytest.raises(IntegrityError):
        allocator.check()


def test_a_pool_has_slots():
    with pytest.raises(ValueError, match="at least 1"):
        TokenAllocator(0)


# ------------------------------------------------------------ pages


def test_pages_come_whole_and_in_order():
    allocator = PagedAllocator(19, 4)
    assert (allocator.size, allocator.available) == (16, 16)
    assert allocator.alloc(5) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert allocator.available == 8
    with pytest.raises(OutOfSlots, match="9 KV slots are needed, 3 pages of 4; 2 pages are free"):
        allocator.alloc(9)
    allocator.free([4, 5, 6, 7, 0, 1, 2, 3])
    assert allocator.available == 16


@pytest.mark.parametrize(
    "slots", [[0, 1], [1, 2, 3, 4], [3, 2, 1, 0], [8, 9, 10, 11], [0, 1, 2, 3] * 2], ids=str
)
def test_parts_of_pages_and_double_frees_are_found(slots):
    allocator = PagedAllocator(16, 4)
    allocator.alloc(8)
    told = []
    allocator.on_free = told.append
    with pytest.raises(IntegrityError):
        allocator.free(slots)
    allocator.check()
    assert allocator.available == 8 and not told


def test_free_pages_are_one_run_after_compaction():
    allocator = PagedAllocator(32, 4)
    allocator.alloc(24)
    allocator.free([4, 5, 6, 7, 12, 13, 14, 15])
    assert allocator.fragmentation() == (3, 8)
    allocator.compact(16)
    assert allocator.fragmentation() == (1, 16)
    assert allocator.alloc(1) == [16, 17, 18, 19]
    with pytest.raises(IntegrityError, match="4 pages are said to be taken, 5 are"):
        allocator.compact(16)
