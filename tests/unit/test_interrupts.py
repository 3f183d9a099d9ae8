"""The gate: where an interrupt may land."""

from __future__ import annotations

import os
import signal

import pytest

from sgnb.interrupts import InterruptGate


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_shielded_code_is_not_interrupted_and_open_code_is() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with InterruptGate() as gate:
            interrupt()
            assert gate.pending
            with pytest.raises(KeyboardInterrupt), gate.open():
                raise AssertionError("the waiting interrupt must come first")
            with pytest.raises(KeyboardInterrupt), gate.open():
                interrupt()
            interrupt()  # shielded again
            assert gate.count == 3
        interrupt()  # the same burst, after the cell: swallowed
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_press_does_not_land_in_the_first_ones_unwinding() -> None:
    before = signal.getsignal(signal.SIGINT)
    cleaned = []
    try:
        with InterruptGate() as gate, pytest.raises(KeyboardInterrupt), gate.open():
            try:
                interrupt()
            finally:
                interrupt()
                cleaned.append(True)
        assert cleaned == [True]
        assert gate.count == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_closed_stretch_raises_at_its_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []
    try:
        with InterruptGate() as gate, pytest.raises(KeyboardInterrupt), gate.open():
            with gate.closed():
                interrupt()
                done.append(True)
            raise AssertionError("not reached")
        assert done == [True]
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_an_interrupt_nothing_is_left_behind() -> None:
    before = signal.getsignal(signal.SIGINT)
    with InterruptGate() as gate, gate.open():
        pass
    assert signal.getsignal(signal.SIGINT) is before
