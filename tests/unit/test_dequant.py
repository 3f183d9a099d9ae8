"""Our dequantisation against the ``gguf`` package, bit for bit, for every supported type."""

import gguf
import numpy as np
import pytest

from sgnb.engine.model_executor.dequant import dequantise, split_q4
from sgnb.engine.model_executor.gguf import BLOCKS


def random_blocks(type_name: str, n: int = 96) -> np.ndarray:
    """Random bytes: any bit pattern is a legal block. NaN and infinity are kept out of the scales."""
    raw = np.random.default_rng(7).integers(0, 256, (n, BLOCKS[type_name][1]), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q8_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}.get(type_name, [])
    for at in halves:
        raw[:, at + 1] &= 0xBB
    if not halves:
        raw[:, -1] &= 0x3F
    return raw.reshape(-1)


@pytest.mark.parametrize("type_name", list(BLOCKS))
def test_equal_to_the_gguf_package(type_name):
    raw = random_blocks(type_name)
    shape = (2, raw.size // BLOCKS[type_name][1] * BLOCKS[type_name][0] // 2)
    expected = gguf.quants.dequantize(raw.copy(), getattr(gguf.GGMLQuantizationType, type_name))
    found = dequantise(raw, type_name, shape)
    assert found.dtype == np.float32 and found.shape == shape
    assert np.array_equal(
        found.reshape(-1).view(np.uint32), np.asarray(expected, np.float32).reshape(-1).view(np.uint32)
    )


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
def test_split_parts_give_the_same_matrix(type_name):
    raw = random_blocks(type_name)
    q, scale, minimum = split_q4(raw, type_name, 3)
    assert q.max() == 15 and q.shape == (3, 1024) and scale.shape == minimum.shape == (3, 32)
    rebuilt = q.reshape(3, 32, 32) * scale[..., None] + minimum[..., None]
    np.testing.assert_allclose(
        rebuilt.reshape(3, -1), dequantise(raw, type_name, (3, 1024)), rtol=1e-6, atol=1e-3
    )
