"""The windows of a tensor that strength `sampled` reads: eight of 4 KiB, at places that follow from its name.

A tensor of up to 32 KiB is read whole. A larger one of n bytes is cut into eight parts, part i from n·i//8
to n·(i+1)//8, and one window begins in each at r_i mod (length of the part − 4095), where r_i is the i-th
little-endian 64-bit word of BLAKE3(`rip sampled windows/1`, line feed, name). The same windows are read
everywhere, so sampled digests compare; a change outside of them is not seen.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from .tensors import Tensor

WINDOWS = 8
WINDOW_BYTES = 4096
_SEED = b"rip sampled windows/1\n"


def windows_of(tensor: Tensor) -> list[tuple[int, int]]:
    """(begin, end) in the file, ascending, without overlap."""
    size = tensor.end - tensor.begin
    if size <= WINDOWS * WINDOW_BYTES:
        return [(tensor.begin, tensor.end)]
    words = struct.unpack(f"<{WINDOWS}Q", blake3(_SEED + tensor.name.encode()).digest(length=8 * WINDOWS))
    found = []
    for part, word in enumerate(words):
        low, high = size * part // WINDOWS, size * (part + 1) // WINDOWS
        begin = tensor.begin + low + word % (high - low - WINDOW_BYTES + 1)
        found.append((begin, begin + WINDOW_BYTES))
    return found
