"""Tensor digests: as described, independent of sharding, and never from a header that lies."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from fakes.checkpoints import SMALL, Tensors, reshard, write_raw, write_safetensors
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.model import read_and_hash, tensor_digests
from rip.fingerprint.model.read_and_hash import Job, read_files, sample_tensors
from rip.fingerprint.model.tensor_digests import (
    WINDOW_BYTES,
    WINDOWS,
    LayoutFault,
    Tensor,
    listed,
    root_of,
    safetensors_layout,
    windows_of,
)
from rip.schemas.base import canonical_json


def digests(*paths: Path, sha256: bool = True) -> list[tuple[Tensor, bytes]]:
    """Tensors and their contents, over several files."""
    layouts = {path: safetensors_layout(path) for path in paths}
    readings = read_files([Job(path, layout, sha256) for path, layout in layouts.items()])
    return [
        pair
        for path, layout in layouts.items()
        for pair in zip(layout.tensors, readings[path].contents, strict=True)
    ]


def root_by_hand(content: Tensors) -> str:
    """The root as docs/fingerprint.md describes it."""
    leaves = [
        blake3(
            canonical_json({"name": name, "dtype": dtype, "shape": list(shape)})
            + b"\n"
            + blake3(raw).digest()
        ).digest()
        for name, (dtype, shape, raw) in sorted(content.items())
    ]
    return str(blake3(b"".join(leaves)).hexdigest())


@pytest.mark.parametrize("sha256", [True, False])
def test_contents_and_root_are_those_that_the_description_gives(tmp_path: Path, sha256: bool) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", SMALL, {"format": "pt"})
    found = digests(path, sha256=sha256)
    assert {tensor.name: content for tensor, content in found} == {
        name: blake3(raw).digest() for name, (_, _, raw) in SMALL.items()
    }
    assert root_of(found) == root_by_hand(SMALL)


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    shards=st.integers(1, 5),
    block=st.integers(1, 70),
    group=st.integers(1, 500),
)
def test_the_root_depends_on_neither_shards_nor_order_nor_blocks(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], shards: int, block: int, group: int
) -> None:
    content: dict[str, tuple[str, list[int], bytes]] = {
        f"layers.{index}.ü": ("U8", [size], bytes((index * 7 + at) % 256 for at in range(size)))
        for index, size in enumerate(sizes)
    }
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_and_hash, "BLOCK_BYTES", block)
        patch.setattr(tensor_digests, "GROUP_BYTES", group)
        whole = digests(write_safetensors(folder / "whole.safetensors", content))
        parts = reshard(content, folder, shards)
        for sha256 in (True, False):
            assert root_of(digests(*parts, sha256=sha256)) == root_of(whole) == root_by_hand(content)


@pytest.mark.parametrize(
    "changed",
    [
        {"model.embed.weight": ("F32", [2, 8], bytes([1, *range(1, 64)]))},
        {"model.embed.weight": ("F32", [8, 2], bytes(range(64)))},
        {"model.embed.weight": ("I32", [2, 8], bytes(range(64)))},
        {"model.embed.bias": ("F32", [2, 8], bytes(range(64)))},
        {"model.embed.weight": ("F32", [2, 8], bytes(range(64))), "one more": ("U8", [0], b"")},
    ],
)
def test_a_byte_a_shape_a_dtype_or_a_name_is_another_root(
    tmp_path: Path, changed: dict[str, tuple[str, list[int], bytes]]
) -> None:
    before = digests(write_safetensors(tmp_path / "a.safetensors", SMALL))
    rest = {name: content for name, content in SMALL.items() if name != "model.embed.weight"}
    after = digests(write_safetensors(tmp_path / "b.safetensors", {**changed, **rest}))
    assert root_of(before) != root_of(after)
    shown = listed(before), listed(after)
    assert shown[0] != shown[1]
    assert {name for name in shown[0] if shown[1].get(name) == shown[0][name]} >= set(rest)


@given(st.text(), st.text(), st.lists(st.integers(0, 2**53 - 1)))
def test_what_precedes_the_bytes_is_canonical_json(name: str, dtype: str, shape: list[int]) -> None:
    line = Tensor(name, dtype, tuple(shape), 0, 0).line
    assert line == canonical_json({"name": name, "dtype": dtype, "shape": shape}) + b"\n"


# Lies ----------------------------------------------------------------------------------------------------

F4 = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {**F4, "data_offsets": [0, 5]}}, "5 bytes do not fit U8"),
        ({"a": {**F4, "shape": [5], "data_offsets": [4, 9]}}, "before tensor 'a' belong to none"),
        ({"a": {**F4, "shape": [9], "data_offsets": [0, 9]}}, "cut off"),
        ({"a": {**F4, "data_offsets": [4, 0]}}, "do not fit"),
        ({"a": F4, "b": {**F4, "data_offsets": [2, 6]}}, "overlaps 'a'"),
        ({"a": F4, "b": {**F4, "data_offsets": [5, 9]}}, "1 bytes before tensor 'b' belong to none"),
        ({"a": F4}, "4 bytes after the last tensor belong to none"),
        ({"a": {**F4, "shape": [-4]}}, "does not describe tensor 'a'"),
        ({"a": {**F4, "shape": [True, 4]}}, "does not describe tensor 'a'"),
        ({"a": {**F4, "shape": [2**70, 2**70]}}, "does not describe tensor 'a'"),
        ({"a": {**F4, "shape": [1] * 40}}, "does not describe tensor 'a'"),
        ({"a": {**F4, "data_offsets": [0]}}, "does not describe tensor 'a'"),
        ({"a": {"dtype": "U8"}}, "does not describe tensor 'a'"),
        ({"a": 7}, "does not describe tensor 'a'"),
        ({"__metadata__": {"a": 1}}, "__metadata__ is not a table of texts"),
        (b'{"a":{},"a":{}}', "names something twice"),
        (b'{"a":NaN}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b'{"\\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "half a character"),
    ],
)
def test_a_header_that_lies_is_found_out(tmp_path: Path, header: Any, message: str) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(LayoutFault, match=message):
        safetensors_layout(write_raw(tmp_path / "a.safetensors", text, bytes(8)))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9, 200, 0])
def test_a_header_of_a_wrong_length_is_not_read(tmp_path: Path, length: int) -> None:
    with pytest.raises(LayoutFault, match=r"would have|not JSON"):
        safetensors_layout(write_raw(tmp_path / "a.safetensors", b"{}", b"", length))


@given(st.data())
def test_no_damage_does_more_than_that(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    damaged = bytearray(write_safetensors(path, SMALL).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    with contextlib.suppress(LayoutFault):
        layout = safetensors_layout(path)
        assert sum(tensor.end - tensor.begin for tensor in layout.tensors) <= path.stat().st_size


# Windows and lists ---------------------------------------------------------------------------------------


@given(size=st.integers(0, 10**9), begin=st.integers(0, 10**6), name=st.text(min_size=1))
def test_windows_lie_inside_and_apart_and_depend_on_the_name_only(size: int, begin: int, name: str) -> None:
    found = windows_of(Tensor(name, "U8", (size,), begin, begin + size))
    assert found == sorted(found)
    assert begin <= found[0][0]
    assert found[-1][1] <= begin + size
    assert all(first[1] <= second[0] for first, second in pairwise(found))
    moved = windows_of(Tensor(name, "BF16", (1, size), 0, size))
    assert [(first - begin, last - begin) for first, last in found] == moved
    assert sum(last - first for first, last in found) == min(size, WINDOWS * WINDOW_BYTES)


def test_a_sample_is_what_a_whole_reading_says_and_sees_what_lies_in_its_windows(tmp_path: Path) -> None:
    size = 10 * WINDOWS * WINDOW_BYTES
    content: dict[str, tuple[str, list[int], bytes]] = {"w": ("U8", [size], bytes(size)), **SMALL}  # type: ignore[dict-item]
    path = write_safetensors(tmp_path / "a.safetensors", content)
    layout = safetensors_layout(path)
    before = sample_tensors({path: layout})[path]
    assert before == read_files([Job(path, layout)])[path].sampled
    large = next(tensor for tensor in layout.tensors if tensor.name == "w")
    windows = windows_of(large)
    for place, is_seen in ((windows[3][0], True), (windows[3][1] - 1, True), (windows[3][1], False)):
        changed = bytearray(path.read_bytes())
        changed[place] ^= 1
        other = tmp_path / "b.safetensors"
        other.write_bytes(changed)
        again = safetensors_layout(other)
        assert (sample_tensors({other: again})[other] != before) is is_seen
        whole = read_files([Job(other, again)])[other]
        assert (whole.sampled != before) is is_seen
        assert whole.contents != read_files([Job(path, layout)])[path].contents


def test_many_tensors_are_listed_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["embed.weight", *(f"model.layers.{layer}.experts.{e}.w1" for layer in (0, 1) for e in range(3))]
    known = [(Tensor(name, "U8", (1,), 0, 1), blake3(name.encode()).digest()) for name in names]
    assert set(listed(known)) == set(names)
    monkeypatch.setattr(tensor_digests, "MAX_LISTED", 5)
    shown = listed(known)
    assert set(shown) == {"embed.weight", "model.layers.0.*", "model.layers.1.*"}
    assert shown["model.layers.0.*"] == {"root": root_of(known[1:4]), "tensors": 3}
    monkeypatch.setattr(tensor_digests, "MAX_LISTED", 2)
    assert listed(known) == {"*": {"root": root_of(known), "tensors": 7}}


@pytest.mark.model
def test_a_real_model_in_five_files_has_the_same_root(smollm2: Path, tmp_path: Path) -> None:
    path = smollm2 / "model.safetensors"
    layout = safetensors_layout(path)
    with path.open("rb") as file:
        content: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
        for tensor in layout.tensors:
            file.seek(tensor.begin)
            content[tensor.name] = (tensor.dtype, tensor.shape, file.read(tensor.end - tensor.begin))
    parts = reshard(content, tmp_path, 5)
    assert len(parts) == 5
    assert root_of(digests(*parts)) == root_of(digests(path))
    for part in parts:
        part.unlink()
