"""GGUF headers: equal to what the `gguf` package reads, and never more than an error on corrupt bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.model.gguf_metadata import TENSOR_TYPES, read_header
from rip.fingerprint.model.tensor_digests import Layout, LayoutFault
from rip.schemas.errors import BadInput

TOKENS = ["<s>", "a", "ü", "🙂", ""]


def test_values_are_those_that_were_written(write_gguf: Callable[..., Path]) -> None:
    assert read_header(write_gguf(tokens=TOKENS)).metadata == {
        "general.architecture": "llama",
        "general.file_type": 3,
        "llama.rope.freq_base": 100000.0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1, 2, 3],
        "tokenizer.ggml.scores": [0.5, -1.25],
        "general.large": 2**63,
        "tokenizer.chat_template": "{{ messages }}",
    }


def pair(key: bytes, kind: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}Q", len(key)) + key + struct.pack(f"{order}I", kind) + value


def document(*pairs: bytes, count: int | None = None, version: int = 3, order: str = "<") -> bytes:
    header = struct.pack(f"{order}IQQ", version, 0, len(pairs) if count is None else count)
    return b"GGUF" + header + b"".join(pairs)


def test_big_endian_nested_arrays_and_text_that_is_no_utf8(tmp_path: Path) -> None:
    nested = struct.pack(">IQ", 9, 2) + struct.pack(">IQHH", 2, 2, 7, 8) + struct.pack(">IQH", 2, 1, 9)
    text = struct.pack(">Q", 2) + b"\xff\xfe"
    content = document(pair(b"nested", 9, nested, ">"), pair(b"text", 8, text, ">"), order=">")
    (tmp_path / "m.gguf").write_bytes(content)
    assert read_header(tmp_path / "m.gguf").metadata == {"nested": [[7, 8], [9]], "text": {"bytes": "fffe"}}


HUGE = struct.pack("<Q", 2**64 - 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GG", "truncated"),
        (b"PKZIP---------", "not a GGUF file"),
        (document(version=1), "GGUF version 1"),
        (document(count=2**63), "truncated"),
        (document(pair(b"a", 8, HUGE)), "truncated"),
        (document(pair(b"a", 9, struct.pack("<I", 4) + HUGE)), "truncated"),
        (document(pair(b"a", 9, struct.pack("<I", 8) + HUGE)), "truncated"),
        (document(pair(b"a", 9, struct.pack("<IQ", 9, 1) * 500)), "too deeply"),
        (document(pair(b"a", 77, b"")), "unknown metadata type 77"),
        (document(pair(b"a", 0, b"\1"), pair(b"a", 0, b"\1")), "stands twice"),
    ],
)
def test_corrupt_metadata_is_an_error_in_words(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_header(tmp_path / "m.gguf")


@given(
    cut=st.integers(0, 400), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)
)
def test_no_damage_does_more_than_that(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    whole = document(
        pair(b"general.architecture", 8, struct.pack("<Q", 5) + b"llama"),
        pair(b"numbers", 9, struct.pack("<IQ", 6, 3) + struct.pack("<fff", 1, 2, 3)),
        pair(b"words", 9, struct.pack("<IQ", 8, 2) + (struct.pack("<Q", 1) + b"x") * 2),
    )
    damaged = bytearray(whole[: max(1, len(whole) - cut)])
    for place, value in flips:
        damaged[place % len(damaged)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(BadInput):
        assert isinstance(read_header(path).metadata, dict)


# Tensors -------------------------------------------------------------------------------------------------


def test_the_table_of_tensor_types_is_that_of_the_gguf_package() -> None:
    import gguf

    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    both = set(theirs) & set(TENSOR_TYPES)
    assert len(both) > 25
    assert {kind: TENSOR_TYPES[kind] for kind in both} == {kind: theirs[kind] for kind in both}


def test_tensors_lie_where_the_gguf_package_finds_them(tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.arange(24, dtype=np.float32).reshape(2, 12))
    writer.add_tensor("output_norm.weight", np.ones(5, dtype=np.float16))
    blocks = np.zeros((3, 34), dtype=np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    layout = read_header(path).layout
    assert isinstance(layout, Layout)
    found = {
        tensor.name: (tensor.dtype, list(tensor.shape), tensor.begin, tensor.end) for tensor in layout.tensors
    }
    assert found == {
        tensor.name: (
            tensor.tensor_type.name,
            [int(length) for length in tensor.shape],
            int(tensor.data_offset),
            int(tensor.data_offset + tensor.n_bytes),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }
    path.write_bytes(path.read_bytes()[:-40])
    fault = read_header(path).layout
    assert isinstance(fault, LayoutFault)
    assert "cut off" in str(fault)


def tensor(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    head = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


def file_of(*tensors: bytes, weights: int, pairs: bytes = b"", count: int = 0) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + pairs + b"".join(tensors)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(weights)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_of(tensor(b"a", [4], 99, 0), weights=32), "type 99, which this version of rip does not know"),
        (file_of(tensor(b"a", [33], 8, 0), weights=64), "33 elements are no whole blocks of Q8_0"),
        (file_of(tensor(b"a", [4], 0, 0), tensor(b"a", [4], 0, 32), weights=64), "names a tensor twice"),
        (file_of(tensor(b"a", [4], 0, 0), tensor(b"b", [4], 0, 8), weights=64), "overlaps 'a'"),
        (file_of(tensor(b"a", [4], 0, 64), weights=96), "64 bytes before tensor 'a' belong to none"),
        (file_of(tensor(b"a", [4], 0, 0), weights=64), "48 bytes after the last tensor belong to none"),
        (file_of(tensor(b"a", [2**63, 2**63], 0, 0), weights=64), "cut off"),
        (file_of(tensor(b"a", [1] * 40, 0, 0), weights=32), "does not describe its tensors"),
        (
            file_of(pairs=pair(b"general.alignment", 4, struct.pack("<I", 0)), count=1, weights=0),
            "its alignment is 0",
        ),
    ],
)
def test_places_that_contradict_the_file_are_found_out(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    fault = read_header(tmp_path / "m.gguf").layout
    assert isinstance(fault, LayoutFault)
    assert message in str(fault)


def test_places_that_do_not_contradict_it_are_taken(tmp_path: Path) -> None:
    content = file_of(tensor(b"a", [4], 0, 0), tensor(b"b", [32], 8, 32), weights=66)
    (tmp_path / "m.gguf").write_bytes(content)
    layout = read_header(tmp_path / "m.gguf").layout
    assert isinstance(layout, Layout)
    assert [one.end - one.begin for one in layout.tensors] == [16, 34]
