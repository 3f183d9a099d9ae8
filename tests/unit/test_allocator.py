from __future__ import annotations

import pytest

from sgnb.engine.mem_cache.allocator import TokenAllocator
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
