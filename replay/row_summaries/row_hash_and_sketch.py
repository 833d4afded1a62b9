"""Row hash, sketch, L2 norm and largest magnitude of a row: the numpy reference that defines their values.

It does not know tensors or fast kernels (see `summarise.py`, `cpu_kernels.py`, `gpu_kernels.py`).
Specified with test vectors in docs/row-summaries.md.

    h_k = c_k + Σ_{j=0..n} a_kj · (w_j + 1)  mod 2^64     k = 0, 1

`w_0` is the row's length in bytes, `w_1 … w_n` its raw little-endian bytes as 32-bit words, the last one
filled up with zeros. Integer addition is associative: every order of summation on every device gives the same
value.

    S(x)_b = Σ_i σ_{16i+b} · x_{16i+b}     b = 0 … 15,  σ = ±1

The sketch is linear, so ‖S(x) − S(y)‖ estimates ‖x − y‖ whatever x and y are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...schemas.trace import SKETCH_SIZE

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


F32 = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]

SIGN_SEED = 0xA4093822299F31D0
"""The fractional bits of π that follow the row hash's."""

SKETCH_NAME = f"countsketch{SKETCH_SIZE}/splitmix64-bit63/seed={SIGN_SEED:016x}/sum=f32-16bit,f64-wider"
"""Every parameter that changes a sketch. Sketches under different names must not be compared."""

SAFE_SQUARES = (2.0**-50, 2.0**50)
"""Rows whose largest magnitude is in this range can be squared and added in float32: nothing overflows, and
what underflows is below 2^-49 of the sum. All other rows are squared in float64."""


def is_negative(count: int) -> npt.NDArray[np.bool_]:
    """Whether σ_i = −1, for i = 0 … count − 1: bit 63 of splitmix64 output i + 1.

    Returns:
        bool[count].
    """
    return splitmix64(SIGN_SEED, 1, count) >= np.uint64(2**63)


def bfloat16_values(bits: npt.NDArray[np.uint16]) -> F32:
    """The values of bfloat16 bit patterns (numpy has no such dtype)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def sketch_rows_reference(values: Values) -> F32:
    """The sketch of each row, by definition: per lane, signed adds in order of i, in the dtype of `values`.

    Args:
        values: [rows, W]; float32 for rows of 16-bit floats, float64 for all others.

    Returns:
        float32[rows, 16]; NaN (canonical) where a sum is not a number.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        signed = np.where(is_negative(values.shape[1]), -values, values)
        return _canonical(_lane_sums(signed).astype(np.float32))


def l2_rows_reference(values: Values) -> F32:
    """The Euclidean norm of each row: squares added in 16 lanes as in the sketch, then lane by lane.

    Args:
        values: As for `sketch_rows_reference`.

    Returns:
        float32[rows]; infinite only where the norm exceeds float32 or the row holds an infinity; NaN for NaN.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        norms = np.sqrt(_halved(_lane_sums(values * values))).astype(np.float32)
        largest = absmax_rows_reference(values)
        unsafe = np.isfinite(largest) & (largest != 0)
        unsafe &= (largest < SAFE_SQUARES[0]) | (largest > SAFE_SQUARES[1])
        wide = values[unsafe].astype(np.float64)
        norms[unsafe] = np.sqrt(_halved(_lane_sums(wide * wide))).astype(np.float32)
        return _canonical(norms)


def absmax_rows_reference(values: Values) -> F32:
    """The largest magnitude in each row.

    Args:
        values: As for `sketch_rows_reference`.

    Returns:
        float32[rows], rounded to nearest; NaN if any element is NaN; 0 for an empty row.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _canonical(np.abs(values).max(axis=1, initial=0).astype(np.float32))


def estimate_distance(
    sketch_a: npt.NDArray[np.floating], sketch_b: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Estimate ‖a − b‖₂ from two sketches.

    The estimate divided by the true distance lies between 0.7 and 1.4 from the 5th to the 95th percentile.

    Args:
        sketch_a: [..., 16].
        sketch_b: [..., 16].

    Returns:
        float64[...]; NaN where either row holds NaN, or infinities that cancel.
    """
    with np.errstate(invalid="ignore"):
        difference: npt.NDArray[np.float64] = sketch_a.astype(np.float64) - sketch_b
        distance: npt.NDArray[np.float64] = np.linalg.norm(difference, axis=-1)
    return distance


def _lane_sums(values: Values) -> Values:
    """[rows, W] → [rows, 16]: element 16i+b goes to lane b, in order of i (np.sum would pair otherwise)."""
    rows, width = values.shape
    padded = np.zeros((rows, -(-width // SKETCH_SIZE), SKETCH_SIZE), values.dtype)
    padded.reshape(rows, padded.shape[1] * SKETCH_SIZE)[:, :width] = values
    sums = np.zeros((rows, SKETCH_SIZE), values.dtype)
    for i in range(padded.shape[1]):
        sums += padded[:, i]
    return sums


def _halved(lanes: Values) -> Values:
    """[rows, 16] → [rows]: lane b + lane b + 8, then + 4, + 2, + 1."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def _canonical(values: F32) -> F32:
    values[np.isnan(values)] = np.nan
    return values
