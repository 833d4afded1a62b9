"""Reading the header of a GGUF file (versions 2 and 3): its key-value metadata, and where its tensors lie.

Own code because the `gguf` package needs two seconds for a 49,000-token vocabulary, flattens nested arrays,
and belongs to an extra that a fingerprint must do without. It does not read weights.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from io import BufferedReader, FileIO
from typing import TYPE_CHECKING, Any

from ...schemas.errors import BadInput
from ...schemas.open_files import open_regular
from .ref import GGUF_MAGIC
from .tensor_digests import MAX_DIMENSIONS, Layout, LayoutFault, Tensor, check_offsets

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 128 * 1024 * 1024
"""The largest vocabularies take some twenty megabytes. What is beyond could fill the memory."""
_BUFFER_BYTES = 1024 * 1024
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type → struct code."""
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 8
_READABLE_VERSIONS = (2, 3)
_ALIGNMENT = 32
"""Where the metadata names no other."""
TENSOR_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Tensor type → its name, elements a block, bytes a block (ggml's type traits)."""


@dataclass(frozen=True)
class GgufHeader:
    """What stands before the weights of a GGUF file."""

    metadata: dict[str, Any]
    """All key-value pairs as plain JSON values; a string that is not UTF-8 is `{"bytes": <hex>}`."""
    layout: Layout | LayoutFault
    """Where the tensors lie, or why that is unknown."""


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensor places of a GGUF file.

    Raises:
        BadInput: Not a GGUF file, a version rip does not know, or truncated or contradictory metadata.
    """
    try:
        with open_regular(path) as raw, BufferedReader(raw, _BUFFER_BYTES) as file:
            state = os.fstat(file.fileno())
            reader = _Reader(file, state.st_size)
            metadata = reader.metadata()
            try:
                tensors, start = reader.tensors(metadata.get("general.alignment", _ALIGNMENT))
                check_offsets(tensors, start, state.st_size, reader.alignment)
                return GgufHeader(metadata, Layout(tensors, _sha256(file, start), state))
            except (LayoutFault, _Corrupt) as fault:
                return GgufHeader(metadata, LayoutFault(str(fault)))
    except OSError as error:
        raise BadInput(
            f"{path} could not be read: {error.strerror}", "check the file and its permissions"
        ) from None
    except _Corrupt as fault:
        raise BadInput(f"{path}: {fault}", "fetch or convert the file again") from None


def _sha256(file: BufferedReader[FileIO], size: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(size)).hexdigest()


class _Corrupt(Exception):
    """What is wrong with the bytes, in words."""


class _Reader:
    """A cursor over the bytes. Every length is checked against what is left before it is believed."""

    def __init__(self, file: BufferedReader[FileIO], size: int) -> None:
        self._file, self._size, self._offset, self._order = file, size, 0, "<"
        self._tensor_count = 0
        self.alignment = _ALIGNMENT

    def metadata(self) -> dict[str, Any]:
        if self._size == 0:
            raise _Corrupt("the file is empty")
        if self._take(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise _Corrupt("not a GGUF file")
        raw_version = self._take(4)
        version = int.from_bytes(raw_version, "little")
        if version & 0xFFFF == 0:  # a small number whose bytes are in the other order
            self._order, version = ">", int.from_bytes(raw_version, "big")
        if version not in _READABLE_VERSIONS:
            raise _Corrupt(f"GGUF version {version}; rip reads 2 and 3")
        self._tensor_count, pairs = self._number("Q"), self._number("Q")
        found: dict[str, Any] = {}
        for _ in range(pairs):  # a wrong count runs into the end of the file, which is reported
            key = self._string()
            if not isinstance(key, str) or key in found:
                raise _Corrupt("a metadata key is not text or stands twice")
            found[key] = self._value(self._number("I"), depth=0)
        return found

    def tensors(self, alignment: Any) -> tuple[tuple[Tensor, ...], int]:
        """The tensors by place, and where the first may begin. To be called after `metadata`.

        Raises:
            LayoutFault: A tensor is of an unknown type, or described twice.
        """
        if type(alignment) is not int or not 0 < alignment <= self._size:
            raise LayoutFault(f"its alignment is {alignment!r}")
        self.alignment = alignment
        described = [self._tensor() for _ in range(self._tensor_count)]
        if len({name for name, *_ in described}) != len(described):
            raise LayoutFault("its header names a tensor twice")
        start = -(-self._offset // alignment) * alignment
        tensors = [
            Tensor(name, dtype, shape, start + offset, start + offset + size)
            for name, dtype, shape, offset, size in described
        ]
        if not tensors:
            start = min(start, self._size)  # a vocabulary alone need not be padded
        return tuple(sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end))), start

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("I")
        if not isinstance(name, str) or dimensions > MAX_DIMENSIONS:
            raise LayoutFault("its header does not describe its tensors")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        kind, offset = self._number("I"), self._number("Q")
        if kind not in TENSOR_TYPES:
            raise LayoutFault(f"tensor {name!r} is of type {kind}, which this version of rip does not know")
        dtype, block_elements, block_bytes = TENSOR_TYPES[kind]
        elements = 1
        for length in shape:
            elements *= length
        if elements % block_elements:
            raise LayoutFault(f"tensor {name!r}: {elements} elements are no whole blocks of {dtype}")
        return name, dtype, shape, offset, elements // block_elements * block_bytes

    def _take(self, count: int) -> bytes:
        end = self._offset + count
        if end > self._size:
            raise _Corrupt("the metadata is truncated or corrupt")
        if end > MAX_HEADER_BYTES:
            raise _Corrupt(f"the metadata is larger than {MAX_HEADER_BYTES >> 20} MiB")
        taken = self._file.read(count)
        if len(taken) != count:
            raise _Corrupt("the file became shorter while it was read")
        self._offset = end
        return taken

    def _number(self, code: str) -> Any:
        return struct.unpack(self._order + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self) -> str | dict[str, str]:
        raw = self._take(self._number("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return {"bytes": raw.hex()}

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY or depth >= _MAX_DEPTH:
            raise _Corrupt(
                f"unknown metadata type {kind}" if kind != _ARRAY else "metadata nested too deeply"
            )
        item_kind, count = self._number("I"), self._number("Q")
        if item_kind in _SCALARS:
            code = _SCALARS[item_kind]
            raw = self._take(count * struct.calcsize("<" + code))
            return list(struct.unpack(f"{self._order}{count}{code}", raw))
        return [self._value(item_kind, depth + 1) for _ in range(count)]
