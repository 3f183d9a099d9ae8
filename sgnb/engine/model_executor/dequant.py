"""GGUF block formats to float32, by vectorised numpy. Pure functions of bytes; used by ``loader`` in the scheduler process.

No files, no models, no torch here. The formats are those of the GGUF specification; tests compare each with the
``gguf`` package. ``split_q4`` gives the parts of a 4-bit tensor, for kernels that multiply without dequantising.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sgnb.engine.model_executor.gguf import BLOCKS

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def dequantise(raw: U8, type_name: str, shape: tuple[int, ...]) -> F32:
    """float32 array of ``shape`` from the bytes of a tensor of GGUF type ``type_name`` (one of ``gguf.BLOCKS``)."""
    if type_name == "F32":
        return raw.view("<f4").reshape(shape)
    if type_name == "F16":
        return raw.view("<f2").astype(np.float32).reshape(shape)
    if type_name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    blocks = raw.reshape(-1, BLOCKS[type_name][1])
    return _BLOCKS[type_name](blocks).reshape(shape)


def split_q4(raw: U8, type_name: str, rows: int) -> tuple[U8, F32, F32]:
    """Q4_0 or Q4_1 as (q 0..15 ``[rows, K]``, scale ``[rows, K/32]``, minimum ``[rows, K/32]``): w = q * scale + minimum."""
    blocks = raw.reshape(-1, BLOCKS[type_name][1])
    scale = _half(blocks[:, 0:2])
    head = 4 if type_name == "Q4_1" else 2
    minimum = _half(blocks[:, 2:4]) if type_name == "Q4_1" else scale * np.float32(-8)
    return (
        _nibbles(blocks[:, head:]).reshape(rows, -1),
        scale.reshape(rows, -1),
        minimum.reshape(rows, -1),
    )


def _half(raw: U8) -> F32:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(raw: U8) -> U8:
    """[blocks, 16] bytes → [blocks, 32] values: low halves first, then high halves."""
    out = np.empty((raw.shape[0], 2 * raw.shape[1]), dtype=np.uint8)
    np.bitwise_and(raw, 15, out=out[:, : raw.shape[1]])
    np.right_shift(raw, 4, out=out[:, raw.shape[1] :])
    return out


def _q4_0(blocks: U8) -> F32:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)) * _half(blocks[:, :2])


def _q4_1(blocks: U8) -> F32:
    out = _nibbles(blocks[:, 4:]).astype(np.float32)
    out *= _half(blocks[:, :2])
    out += _half(blocks[:, 2:4])
    return out


def _q8_0(blocks: U8) -> F32:
    out = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    out *= _half(blocks[:, :2])
    return out


def _q4_k(blocks: U8) -> F32:
    """256 elements: d, dmin (fp16), 8 six-bit scales and minima in 12 bytes, 128 bytes of nibbles."""
    n = blocks.shape[0]
    d, dmin = _half(blocks[:, 0:2]), _half(blocks[:, 2:4])
    low, mid, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([mid & 63, (high >> 4) | ((mid >> 6) << 4)], axis=1)
    quants = blocks[:, 16:].reshape(n, 4, 32)
    values = np.stack([quants & 15, quants >> 4], axis=2).reshape(n, 8, 32).astype(np.float32)
    out = values * (d * scales)[:, :, None] - (dmin * minima)[:, :, None]
    return np.asarray(out, dtype=np.float32)


def _q6_k(blocks: U8) -> F32:
    """256 elements: 128 bytes low halves, 64 bytes high pairs, 16 int8 scales, d (fp16)."""
    n = blocks.shape[0]
    low = blocks[:, :128].reshape(n, 2, 1, 64)
    high = blocks[:, 128:192].reshape(n, 2, 1, 32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    shifts = np.array([0, 4], dtype=np.uint8).reshape(1, 1, 2, 1)
    pairs = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    quants = ((low >> shifts) & 15).reshape(n, 8, 32) | (((high >> pairs) & 3) << 4).reshape(n, 8, 32)
    values = quants.astype(np.float32).reshape(n, 16, 16) - np.float32(32)
    out = values * (_half(blocks[:, 208:210]) * scales)[:, :, None]
    return np.asarray(out, dtype=np.float32)


_BLOCKS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k}
