"""Kernels for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel_rig import MOCK, Kernel, kernel_env


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, runtime_dir: Path) -> Iterator[Kernel]:
    """One kernel for a module's tests that leave nothing behind, with the extension and a scripted backend."""
    kernel = Kernel(kernel_env(tmp_path_factory.mktemp("kernel"), runtime_dir))
    kernel.ok("%load_ext sgnb")
    kernel.ok(MOCK)
    yield kernel
    kernel.close()


@pytest.fixture
def make_kernel(tmp_path: Path, runtime_dir: Path) -> Iterator[Callable[..., Kernel]]:
    """Start kernels with extra environment variables; all are ended after the test."""
    kernels: list[Kernel] = []

    def make(**extra: str) -> Kernel:
        kernels.append(Kernel(kernel_env(tmp_path, runtime_dir, **extra)))
        return kernels[-1]

    yield make
    for kernel in kernels:
        kernel.close()


@pytest.fixture
def kernel(make_kernel: Callable[..., Kernel]) -> Kernel:
    """A fresh kernel without the extension."""
    return make_kernel()
