"""Tensors of a checkpoint: where a safetensors file keeps them, and how their bytes become digests.

A tensor's *content* is BLAKE3 over its bytes. Its *leaf* is BLAKE3 over `{"dtype":…,"name":…,"shape":…}`
(canonical JSON), a line feed, and the 32 bytes of the content. The *root* is BLAKE3 over the leaves (32 bytes
each), ordered by name. None depends on which file holds a tensor, or where. Only headers are read here.

The windows of a tensor are what strength `sampled` reads: eight of 4 KiB, at offsets that follow from its
name. A tensor of up to 32 KiB is read whole. A larger one of n bytes is cut into eight parts, part i from
n·i//8 to n·(i+1)//8, and one window begins in each at r_i mod (length of the part − 4095), where r_i is the
i-th little-endian 64-bit word of BLAKE3(`rip sampled windows/1`, line feed, name). The same windows are read
everywhere, so sampled digests compare; a change outside of them is not seen.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from blake3 import blake3

from ...schemas.open_files import open_regular

if TYPE_CHECKING:
    from pathlib import Path


DIGEST_BYTES = 32
MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library itself accepts."""
MAX_DIMENSIONS = 32
_LENGTH_BYTES = 8
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits an element. A dtype that is not listed is newer than this table: its byte count is taken as stated."""
MAX_LISTED = 2000
"""Above so many tensors a fingerprint lists layers instead, which keeps it below half a megabyte."""
_AS_LINE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""For a table of text and integers this is RFC 8785, at a fraction of the cost of a general writer."""
_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.|$)")


class LayoutFault(Exception):
    """Why a file's tensors cannot be separated."""


@dataclass(frozen=True)
class Tensor:
    """One tensor and its place: bytes `begin` to `end` of its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @cached_property
    def line(self) -> bytes:
        """Name, dtype and shape as a line of canonical JSON (RFC 8785).

        Raises:
            LayoutFault: The name is not Unicode text (half a character), so that it has no canonical form.
        """
        entry = {"dtype": self.dtype, "name": self.name, "shape": list(self.shape)}
        try:
            return (_AS_LINE(entry) + "\n").encode()
        except UnicodeEncodeError:
            raise LayoutFault(f"a tensor's name has half a character: {self.name!r}") from None


@dataclass(frozen=True)
class Layout:
    """What a file's header says, checked against the file's size."""

    tensors: tuple[Tensor, ...]
    """By place; they neither overlap nor leave a hole."""
    header_sha256: str
    """Of all bytes before the first tensor."""
    state: os.stat_result
    """Of the file when its header was read."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The key-value pairs in the header."""


Contents = Iterable[tuple[Tensor, bytes]]
"""Tensors, each with the digest of its bytes (or of the windows that were read of them)."""


def root_of(contents: Contents) -> str:
    """Hex BLAKE3 over the leaves in the order of their names (as UTF-8)."""
    by_name = sorted(contents, key=lambda pair: pair[0].name)
    return blake3(b"".join(blake3(tensor.line + content).digest() for tensor, content in by_name)).hexdigest()


def listed(contents: Contents) -> dict[str, Any]:
    """Name → what a fingerprint keeps of a tensor; above `MAX_LISTED` tensors, layer → root of its tensors.

    A layer is a name up to its first number: `model.layers.3.*` holds `model.layers.3.mlp.gate_proj.weight`;
    a tensor whose name has no number stands for itself.
    """
    known = sorted(contents, key=lambda pair: pair[0].name)
    if len(known) <= MAX_LISTED:
        return {
            tensor.name: {"blake3": content.hex(), "dtype": tensor.dtype, "shape": list(tensor.shape)}
            for tensor, content in known
        }
    layers: dict[str, list[tuple[Tensor, bytes]]] = {}
    for tensor, content in known:
        match = _LAYER.match(tensor.name)
        layers.setdefault(f"{match[0]}.*" if match else tensor.name, []).append((tensor, content))
    if len(layers) > MAX_LISTED:  # names without layers
        layers = {"*": known}
    return {layer: {"root": root_of(held), "tensors": len(held)} for layer, held in layers.items()}


def layout_sha256(tensors: Iterable[Tensor]) -> str:
    """Hex SHA-256 over `Tensor.line`, ordered by name: names, dtypes and shapes, no bytes."""
    known = sorted(tensors, key=lambda tensor: tensor.name)
    return hashlib.sha256(b"".join(tensor.line for tensor in known)).hexdigest()


def safetensors_layout(path: Path) -> Layout:
    """Read the header of a safetensors file and check it against the file's size.

    Raises:
        OSError: The file cannot be read.
        LayoutFault: The header contradicts itself, the file, or the format.
    """
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        length_bytes = file.read(_LENGTH_BYTES)
        length = int.from_bytes(length_bytes, "little")
        if len(length_bytes) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, state.st_size - _LENGTH_BYTES):
            raise LayoutFault(f"its header would have {length} bytes, the file has {state.st_size}")
        header = file.read(length)
    if len(header) != length:
        raise LayoutFault("it became shorter while it was read")
    entries = _table(header)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise LayoutFault("its __metadata__ is not a table of texts")
    start = _LENGTH_BYTES + length
    tensors = sorted(
        (_tensor(name, entry, start) for name, entry in entries.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    check_offsets(tensors, start, state.st_size)
    return Layout(tuple(tensors), hashlib.sha256(length_bytes + header).hexdigest(), state, metadata)


def check_offsets(tensors: Iterable[Tensor], start: int, size: int, padding: int = 1) -> None:
    """Tensors in order of their places fill the file from `start` on, without overlap or hole.

    Args:
        tensors: By place.
        start: Where the first tensor may begin.
        size: Of the file, in bytes.
        padding: Tensors begin at multiples of it; the bytes skipped for that are no hole.

    Raises:
        LayoutFault: They do not.
    """
    at, last = start, None
    for tensor in tensors:
        _ = tensor.line  # a name without canonical form is found before any weights are read
        if tensor.begin < at:
            raise LayoutFault(
                f"tensor {tensor.name!r} overlaps {last!r}" if last else "it overlaps its header"
            )
        if tensor.begin - at >= padding:
            raise LayoutFault(f"{tensor.begin - at} bytes before tensor {tensor.name!r} belong to none")
        if tensor.end > size:
            raise LayoutFault(
                f"tensor {tensor.name!r} ends at byte {tensor.end}, the file has {size}: it is cut off"
            )
        at, last = tensor.end, tensor.name
    if size - at >= padding:
        raise LayoutFault(f"{size - at} bytes after the last tensor belong to none")


def _table(header: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise LayoutFault("its header names something twice")
        return found

    def not_json(word: str) -> NoReturn:
        raise LayoutFault(f"its header is not JSON ({word})")

    try:
        table = json.loads(header.decode("utf-8"), object_pairs_hook=unique, parse_constant=not_json)
    except (ValueError, RecursionError):
        raise LayoutFault("its header is not JSON") from None
    if not isinstance(table, dict):
        raise LayoutFault("its header is not a JSON object")
    return table


def _tensor(name: str, entry: Any, start: int) -> Tensor:
    fault = LayoutFault(f"its header does not describe tensor {name!r}")
    if not isinstance(entry, dict):
        raise fault
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise fault
    begin, end = offsets
    bits = _BITS.get(dtype)
    if begin > end or (bits is not None and math.prod(shape) * bits != (end - begin) * 8):
        raise LayoutFault(f"tensor {name!r}: {end - begin} bytes do not fit {dtype} {shape}")
    return Tensor(name, dtype, tuple(shape), start + begin, start + end)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    # Bounded, so that no product of them takes long.
    return (
        isinstance(values, list)
        and len(values) <= MAX_DIMENSIONS
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


WINDOWS = 8
WINDOW_BYTES = 4096
_SEED = b"rip sampled windows/1\n"
GROUP_BYTES = 256 * 1024 * 1024
"""Tensors are read and remembered in groups of about this size, so that large files are shared out among
cores where no SHA-256 of the whole is asked for, and a killed run loses little."""


class TensorStream:
    """Takes the bytes of a file in order and digests those of each tensor, or of its windows."""

    def __init__(self, tensors: Sequence[Tensor], windows: bool = False) -> None:
        self._work = [
            (begin, end, index)
            for index, tensor in enumerate(tensors)
            for begin, end in (windows_of(tensor) if windows else [(tensor.begin, tensor.end)])
            if begin < end
        ]
        self._at = 0
        self._hasher: Any = None  # one at a time: a hasher takes two kilobytes, and tensors can be 100,000
        self._digests: list[bytes | None] = [None] * len(tensors)

    def ranges(self) -> Iterable[tuple[int, int]]:
        """The byte ranges to feed, ascending."""
        return [(begin, end) for begin, end, _ in self._work]

    def feed(self, offset: int, block: memoryview) -> None:
        """Take a block that begins at a file offset. Ascending; what no range holds may be left out."""
        block_end = offset + len(block)
        while self._at < len(self._work):
            begin, end, index = self._work[self._at]
            if begin >= block_end:
                return
            if self._hasher is None:
                self._hasher = blake3()
            self._hasher.update(block[max(begin - offset, 0) : end - offset])
            if end > block_end:
                return
            self._at += 1
            if self._at == len(self._work) or self._work[self._at][2] != index:
                self._digests[index] = self._hasher.digest()
                self._hasher = None

    def digests(self) -> list[bytes]:
        """A digest a tensor, in their order, after all ranges were fed."""
        empty = blake3().digest()  # tensors without bytes are never fed
        return [digest if digest is not None else empty for digest in self._digests]


def windows_of(tensor: Tensor) -> list[tuple[int, int]]:
    """(begin, end) in the file, ascending, without overlap."""
    size = tensor.end - tensor.begin
    if size <= WINDOWS * WINDOW_BYTES:
        return [(tensor.begin, tensor.end)]
    numbers = struct.unpack(f"<{WINDOWS}Q", blake3(_SEED + tensor.name.encode()).digest(length=8 * WINDOWS))
    found = []
    for part, number in enumerate(numbers):
        low, high = size * part // WINDOWS, size * (part + 1) // WINDOWS
        begin = tensor.begin + low + number % (high - low - WINDOW_BYTES + 1)
        found.append((begin, begin + WINDOW_BYTES))
    return found


def groups_of(tensors: Sequence[Tensor]) -> Iterator[slice]:
    """Tensors that follow each other, in slices of about `GROUP_BYTES`."""
    first = 0
    for index, tensor in enumerate(tensors):
        if tensor.end - tensors[first].begin >= GROUP_BYTES or index == len(tensors) - 1:
            yield slice(first, index + 1)
            first = index + 1


def kind_of(group: slice) -> str:
    """What the digests of a group are called in the cache; the number changes with what they are over."""
    return f"contents/1-{group.start}-{group.stop}"
