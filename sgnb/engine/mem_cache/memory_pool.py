"""The two tables of the KV cache: request → slots, and slot → keys and values of every layer.

Scheduler process (or wherever the runner lives); owned by the model runner. Which slot belongs to whom is decided
elsewhere (allocator, radix cache): these pools store and look up, they neither hand out nor count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sgnb.errors import EngineStartError

DEFAULT_SLOTS = 65_536
_RAM_SHARE = 0.25
_GPU_SHARE = 0.85


class ReqToTokenPool:
    """``max_running`` rows of ``context_length`` slot numbers: where each token of a running request lies."""

    def __init__(self, max_running: int, context_length: int) -> None:
        self.max_running = max_running
        self.context_length = context_length
        self.table: npt.NDArray[np.int64] = np.zeros((max_running, context_length), dtype=np.int64)

    def write(self, req_pool_idx: int, start: int, locs: Sequence[int]) -> None:
        """Tokens ``start…`` of a request lie at ``locs``."""
        self.table[req_pool_idx, start : start + len(locs)] = locs

    def read(self, req_pool_idx: int, length: int) -> npt.NDArray[np.int64]:
        """Slots of the first ``length`` tokens; a view, valid until the next write."""
        return self.table[req_pool_idx, :length]


class TokenToKVPool:
    """Keys and values by slot. One buffer a layer, ``[slots + 1, 2 * kv_heads, head_dim]``: keys first, then values, so
    that one copy writes and one gather reads both. Slots are numbered from 0 or from 1, as the allocator likes."""

    def __init__(
        self,
        slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self.num_kv_heads = num_kv_heads
        try:
            # not zeroed: nobody reads a slot before it is written, and the system hands out the pages only then
            self.kv = [
                torch.empty((slots + 1, 2 * num_kv_heads, head_dim), dtype=dtype, device=device)
                for _ in range(num_layers)
            ]
        except RuntimeError as error:  # torch's out of memory, on either device
            raise EngineStartError(
                f"no memory for {slots} KV slots: {str(error).splitlines()[0]}",
                hint="Give a smaller max_total_tokens.",
            ) from None

    def key(self, layer_id: int) -> torch.Tensor:
        """Keys of a layer, a view ``[slots + 1, kv_heads, head_dim]``."""
        return self.kv[layer_id][:, : self.num_kv_heads]

    def value(self, layer_id: int) -> torch.Tensor:
        """Values of a layer, a view ``[slots + 1, kv_heads, head_dim]``."""
        return self.kv[layer_id][:, self.num_kv_heads :]

    def set_kv(self, layer_id: int, loc: torch.Tensor, kv: torch.Tensor) -> None:
        """Write new tokens: ``kv`` is ``[N, 2 * kv_heads, head_dim]``, keys first, rounded to the pool's type; ``loc``
        int64 ``[N]``."""
        self.kv[layer_id].index_copy_(0, loc, kv.to(self.kv[layer_id].dtype))

    def move(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """The content of slots ``src`` goes to ``dst``, all at once; int64 ``[N]`` each. Takes room for N slots of one
        layer."""
        for layer in self.kv:
            layer.index_copy_(0, dst, layer.index_select(0, src))

    def copy_rotated(
        self, src: torch.Tensor, dst: torch.Tensor, rotate_: Callable[[torch.Tensor], None]
    ) -> None:
        """Slots ``src`` are copied to ``dst``, all at once (int64 ``[N]`` each); ``rotate_`` changes their keys
        ``[N, kv_heads, head_dim]`` in place. Rounded once more to the pool's type."""
        for layer in self.kv:
            copied = layer.index_select(0, src)
            rotate_(copied[:, : self.num_kv_heads])
            layer.index_copy_(0, dst, copied)


def slot_bytes(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes one token's keys and values take over all layers."""
    return num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Memory that is available now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo") as lines:  # counts reclaimable page cache too, which AVPHYS does not
            available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    return available


def choose_slots(
    given: int | None, per_slot: int, device: torch.device, context_length: int
) -> tuple[int, str]:
    """How many slots to make, and a sentence if they hold less than one full context or more than there is memory for (else
    empty).

    ``given`` wins; else DEFAULT_SLOTS (on a GPU: all that fits), bounded by a share of free memory. EngineStartError when
    not even 64 slots fit.
    """
    free = free_bytes(device)
    room = int(free * (_GPU_SHARE if device.type == "cuda" else _RAM_SHARE)) // per_slot
    slots = given if given is not None else room if device.type == "cuda" else min(room, DEFAULT_SLOTS)
    if given is None and slots < 64:
        raise EngineStartError(
            f"free memory holds {room} KV slots of {per_slot} bytes; at least 64 are needed",
            hint="Close other programs, or give a smaller model.",
        )
    if slots * per_slot > free:
        sizes = f"{slots * per_slot / 2**30:,.1f} GB, and {free / 2**30:,.1f} GB of memory are free"
        return slots, f"the KV pool's {slots} slots take {sizes}: filled, they may end the engine"
    if slots < context_length:
        return slots, f"the KV pool has {slots} slots, less than the context of {context_length} tokens"
    return slots, ""
