"""The row hash: what it is, its keys, and the numpy reference that defines its value.

It does not know tensors or fast kernels (see `summarise.py`, `cpu_kernels.py`, `gpu_kernels.py`).
Specified with test vectors in docs/row-summaries.md.

    h_k = c_k + Σ_{j=0..n} a_kj · (w_j + 1)  mod 2^64     k = 0, 1

`w_0` is the row's length in bytes, `w_1 … w_n` its raw little-endian bytes as 32-bit words, the last one
filled up with zeros. Integer addition is associative: every order of summation on every device gives the same
value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""splitmix64's increment: 2^64 divided by the golden ratio."""

SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""One key stream for each half of the digest: the first 128 fractional bits of π."""

ROW_HASH_NAME = f"multilinear128/w32le/splitmix64-odd/seeds={SEEDS[0]:016x},{SEEDS[1]:016x}"
"""Every parameter that changes a digest. Digests under different names must not be compared."""

WORD_BYTES = 4


def splitmix64(seed: int, first: int, count: int) -> U64:
    """Outputs `first … first + count − 1` of the counter form of splitmix64: mix(seed + i · GOLDEN_GAMMA).

    Returns:
        uint64[count].
    """
    counter = np.arange(first, first + count, dtype=np.uint64)
    z = np.uint64(seed) + counter * np.uint64(GOLDEN_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_keys(k: int, count: int) -> U64:
    """The multipliers a_k0 … a_k,count−1, all odd, so that a change of one word always changes h_k.

    Returns:
        uint64[count]; `a_kj` is splitmix64 output j + 1, output 0 being `hash_offset(k)`.
    """
    return splitmix64(SEEDS[k], 1, count) | np.uint64(1)


def hash_offset(k: int) -> int:
    """The constant c_k."""
    return int(splitmix64(SEEDS[k], 0, 1)[0])


def row_words(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The words w_0 … w_n of each row.

    Args:
        bits: uint8[rows, bytes], the rows' own little-endian bytes.

    Returns:
        uint32[rows, 1 + ceil(bytes / 4)].
    """
    rows, length = bits.shape
    n = -(-length // WORD_BYTES)
    padded = np.zeros((rows, n * WORD_BYTES), np.uint8)
    padded[:, :length] = bits
    words = np.empty((rows, 1 + n), np.uint32)
    words[:, 0] = length % 2**32
    words[:, 1:] = padded.view("<u4")
    return words


def hash_rows_reference(bits: npt.NDArray[np.uint8]) -> U64:
    """The row hash of each row, by definition.

    Args:
        bits: uint8[rows, bytes], the rows' own little-endian bytes.

    Returns:
        uint64[rows, 2]: h_0 and h_1. `digests` gives them as 16-byte strings.
    """
    words = row_words(bits).astype(np.uint64) + np.uint64(1)
    halves = [
        np.uint64(hash_offset(k)) + (words * hash_keys(k, words.shape[1])).sum(axis=1, dtype=np.uint64)
        for k in range(2)
    ]
    return np.stack(halves, axis=1)


def digests(halves: U64) -> npt.NDArray[np.void]:
    """The 16-byte digests h_0 ‖ h_1, little endian, without a copy on a little-endian machine.

    Args:
        halves: uint64[..., 2], contiguous.

    Returns:
        void16[...]; an element's `.tobytes()` is the digest.
    """
    little: npt.NDArray[np.void] = halves.astype("<u8", copy=False).view("V16")
    return little[..., 0]
