"""A file's bytes, in order, to the digests of its tensors or of their windows. It reads nothing itself.

The windows of a tensor are what strength `sampled` reads: eight of 4 KiB, at offsets that follow from its
name. A tensor of up to 32 KiB is read whole. A larger one of n bytes is cut into eight parts, part i from
n·i//8 to n·(i+1)//8, and one window begins in each at r_i mod (length of the part − 4095), where r_i is the
i-th little-endian 64-bit word of BLAKE3(`rip sampled windows/1`, line feed, name). The same windows are read
everywhere, so sampled digests compare; a change outside of them is not seen.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from blake3 import blake3

from .tensors import Tensor

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
