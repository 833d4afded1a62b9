"""GGUF metadata: equal to what the `gguf` package wrote, and never more than an error on corrupt bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.gguf_metadata import read_metadata
from rip.schemas.errors import BadInput

TOKENS = ["<s>", "a", "ü", "🙂", ""]


def test_values_are_those_that_were_written(write_gguf: Callable[..., Path]) -> None:
    assert read_metadata(write_gguf(tokens=TOKENS)) == {
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
    assert read_metadata(tmp_path / "m.gguf") == {"nested": [[7, 8], [9]], "text": {"bytes": "fffe"}}


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
        read_metadata(tmp_path / "m.gguf")


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
        assert isinstance(read_metadata(path), dict)
