"""The GGUF reader on sound files, and on every way we know a header can lie (F58, F59, B183, B184)."""

import itertools
import os
import struct
import time

import numpy as np
import pytest
from gguf_files import TYPES, File, Tensor, Value, sample, string
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgnb.engine.model_executor.gguf import GGUFReader
from sgnb.errors import ModelFileError


@pytest.fixture
def read(tmp_path):
    """Parse bytes (or a File) as a GGUF file."""
    opened = []

    def run(content):
        path = tmp_path / "m.gguf"
        path.write_bytes(content.build() if isinstance(content, File) else content)
        opened.append(GGUFReader(path))
        return opened[-1]

    yield run
    for reader in opened:
        reader.close()


def refusal(read, content) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(content)
    assert "m.gguf" in str(caught.value)
    return str(caught.value)


def test_metadata_and_tensors(read):
    reader = read(sample())
    assert reader.metadata == {
        "general.architecture": "llama",
        "a.flag": True,
        "a.int": 7,
        "a.float": 0.5,
        "a.list": [1, 2, 3],
        "a.words": ["x", "yö", ""],
    }
    assert {n: (t.shape, t.type) for n, t in reader.tensors.items()} == {
        "w.a": ((3, 4), "F32"),
        "w.b": ((5,), "F32"),
        "w.c": ((3, 32), "Q4_1"),
    }
    assert reader.read("w.a").tobytes() == bytes(range(48))


def test_version_2_is_read(read):
    file = sample()
    file.version = 2
    assert read(file).version == 2


@pytest.mark.loader
@pytest.mark.parametrize("alignment", [32, 64, 8, 4096])
def test_B184_last_tensor_unpadded_at_any_alignment(read, alignment):
    reader = read(sample(alignment))
    assert all(t.offset % alignment == 0 for t in reader.tensors.values())
    assert reader.read("w.c").nbytes == 60


@pytest.mark.loader
def test_B183_offset_wraps_back_into_the_file(read):
    file = sample()
    file.tensors[1].offset = 2**64 - 64
    text = refusal(read, file)
    assert "'w.b'" in text and "beyond the file" in text


@pytest.mark.loader
def test_B183_overlapping_tensors(read):
    file = sample()
    file.tensors[1].offset = 32
    text = refusal(read, file)
    assert "'w.b'" in text and "overlaps" in text and "'w.a'" in text


@pytest.mark.loader
@pytest.mark.parametrize("field", ["n_tensors", "n_keys"])
def test_B183_count_of_a_trillion_is_refused_at_once(read, field):
    file = sample()
    setattr(file, field, 2**40)
    started = time.monotonic()
    assert str(2**40) in refusal(read, file)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: setattr(f, "magic", b"GGML"), ["magic", "GGML"]),
        (lambda f: setattr(f, "version", 1), ["version", "found 1"]),
        (lambda f: setattr(f, "version", 4), ["version", "found 4"]),
        (lambda f: setattr(f, "version", 0x03000000), ["big-endian"]),
        (lambda f: setattr(f.tensors[1], "name", "w.a"), ["'w.a'", "twice"]),
        (lambda f: setattr(f.tensors[1], "n_dims", 0), ["'w.b'", "found 0"]),
        (lambda f: setattr(f.tensors[1], "n_dims", 2**31), ["'w.b'", "dimensions"]),
        (lambda f: setattr(f.tensors[1], "dims", [0]), ["'w.b'", "at least 1"]),
        (lambda f: setattr(f.tensors[1], "dims", [-1]), ["'w.b'", "beyond the file"]),
        (lambda f: setattr(f.tensors[1], "dims", [2**62, 2**62, 4, 4]), ["'w.b'", "beyond the file"]),
        (lambda f: setattr(f.tensors[2], "dims", [31, 3]), ["'w.c'", "multiple of 32", "found 31"]),
        (lambda f: setattr(f.tensors[1], "type", 99), ["'w.b'", "type 99", "supported", "Q4_1"]),
        (lambda f: setattr(f.tensors[1], "type", 16), ["'w.b'", "IQ2_XXS", "not supported"]),
        (lambda f: setattr(f.tensors[1], "offset", 8), ["'w.b'", "multiple of 32", "found 8"]),
        (lambda f: f.metadata.update({"general.alignment": 0}), ["alignment", "found 0"]),
        (lambda f: f.metadata.update({"general.alignment": 48}), ["alignment", "power of two", "48"]),
        (lambda f: f.metadata.update({"general.alignment": "x"}), ["alignment", "'x'"]),
        (lambda f: f.metadata.update({"k": Value(13, b"")}), ["'k'", "found 13"]),
        (lambda f: f.metadata.update({"k": Value(8, struct.pack("<Q", 2**63))}), ["'k'", str(2**63)]),
        (lambda f: f.metadata.update({"k": Value(8, string(b"\xff\xfe"))}), ["'k'", "UTF-8"]),
        (lambda f: f.metadata.update({"k": Value(9, struct.pack("<IQ", 4, 2**60))}), ["'k'", str(2**60)]),
        (lambda f: f.metadata.update({"k": Value(9, struct.pack("<IQ", 9, 1))}), ["'k'", "element type 9"]),
        (lambda f: setattr(f, "metadata", [("k", 1), ("k", 2)]), ["duplicate", "'k'"]),
    ],
)
def test_F59_one_lie_is_refused_with_its_place(read, change, words):
    file = sample()
    change(file)
    text = refusal(read, file)
    for word in words:
        assert word in text


def test_F58_truncated_at_every_length(read):
    whole = sample().build()
    started = time.monotonic()
    for length in range(len(whole)):
        refusal(read, whole[:length])
    assert time.monotonic() - started < 60


def test_F58_truncated_data_names_sizes(read):
    whole = sample().build()
    text = refusal(read, whole[:-10])
    assert "'w.c'" in text and str(len(whole)) in text and str(len(whole) - 10) in text


def test_F58_every_header_byte_flipped_loads_or_is_refused(read):
    whole = sample().build()
    for i in range(len(whole) - 130):
        for bit in (0x01, 0x80):
            flipped = bytearray(whole)
            flipped[i] ^= bit
            try:
                read(bytes(flipped)).close()
            except ModelFileError:
                pass


lies = st.sampled_from(
    [
        "n_tensors",
        "n_keys",
        "version",
        "n_dims",
        "dims",
        "type",
        "offset",
        "name",
        "array",
        "string",
        "alignment",
    ]
)
numbers = st.one_of(
    st.integers(0, 100), st.integers(0, 2**64 - 1), st.sampled_from([2**31, 2**32 - 1, 2**63])
)


@settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lie=lies, number=numbers, which=st.integers(0, 2))
def test_F59_random_lies_end_in_an_error_or_a_sound_file(read, lie, number, which):
    file = sample()
    tensor = file.tensors[which]
    if lie in ("n_tensors", "n_keys", "version"):
        setattr(file, lie, number % 2**32 if lie == "version" else number)
    elif lie == "n_dims":
        tensor.n_dims = number % 2**32
    elif lie == "dims":
        tensor.dims = [number, *tensor.dims[1:]]
    elif lie == "type":
        tensor.type = number % 2**32
    elif lie == "offset":
        tensor.offset = number
    elif lie == "name":
        tensor.name = file.tensors[number % 3].name
    elif lie == "array":
        file.metadata["k"] = Value(9, struct.pack("<IQ", which * 4, number))
    elif lie == "string":
        file.metadata["k"] = Value(8, struct.pack("<Q", number))
    else:
        file.metadata["general.alignment"] = Value(10, struct.pack("<Q", number))
    content = file.build()
    try:
        reader = read(content)
    except ModelFileError:
        return
    spans = sorted((t.offset, t.offset + t.nbytes) for t in reader.tensors.values())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert all(start >= 0 and end <= len(content) for start, end in spans)
    reader.close()


@settings(max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_F58_random_bytes_behind_the_magic(read, content):
    with pytest.raises(ModelFileError):
        read(b"GGUF" + content)


def test_F62_truncated_while_open_is_an_error_not_a_signal(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(sample().build())
    with GGUFReader(path) as reader:
        os.truncate(path, reader.size - 40)
        with pytest.raises(ModelFileError, match="changed while"):
            reader.read("w.c")


def test_F62_replaced_in_place_while_open(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(sample().build())
    with GGUFReader(path) as reader:
        with open(path, "r+b") as handle:
            handle.seek(reader.tensors["w.a"].offset)
            handle.write(b"\xff" * 48)
        os.utime(path, ns=(1, 1))
        with pytest.raises(ModelFileError, match="changed while"):
            reader.read("w.a")


def test_missing_file_folder_and_fifo(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("no.gguf", "", "pipe"):
        with pytest.raises(ModelFileError):
            GGUFReader(tmp_path / name)


def test_read_gives_memory_of_its_own(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(File(tensors=[Tensor("w", [4], bytes(16), TYPES["F32"])]).build())
    with GGUFReader(path) as reader:
        first = reader.read("w")
        first += 1
        assert np.array_equal(reader.read("w"), np.zeros(16, dtype=np.uint8))
