# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
"""The fused kernel for GPUs, in Triton: row hash, sketch, L2 and absmax of many rows, without synchronising.

It knows rows in device memory and the slots of `rows.py`; the definitions stand in
`row_hash_and_sketch.py`. Additions happen in exactly the order of the reference, unfused: not only the hash
agrees bit for bit.

A program has ROWS rows and walks along them in steps of BLOCKS blocks of 16 lanes. Hash and absmax are free
of order, so a step's elements are spread over all threads of the program. The sketch and L2 have their order
within each of the 16 lanes: there, block follows block, and what runs in parallel is the rows. The elements
are read a second time for that, from the first-level cache.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ...schemas.trace import SKETCH_SIZE
from .row_hash_and_sketch import SAFE_SQUARES, WORD_BYTES, hash_keys, hash_offset, is_negative
from .rows import ABSMAX_HALF, L2_HALF, SKETCH_HALF, SLOT_HALVES, SLOT_WORDS

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Dtypes that the kernel reads."""

FEW_ROWS = 64
"""Up to this many rows (a decode step), a row has a program with four warps of its own, because its length in
steps is what takes the time. With more, a warp serves four rows: the ordered part keeps all threads busy."""

_LANES = tl.constexpr(SKETCH_SIZE)
_KEYS_0, _KEYS_1, _BIAS_0, _BIAS_1, _SIGNS = (tl.constexpr(line) for line in range(5))
_SLOT_WORDS, _SLOT_HALVES = tl.constexpr(SLOT_WORDS), tl.constexpr(SLOT_HALVES)
_L2, _ABSMAX, _SKETCH = tl.constexpr(L2_HALF), tl.constexpr(ABSMAX_HALF), tl.constexpr(SKETCH_HALF)
_LOW, _HIGH = tl.constexpr(SAFE_SQUARES[0]), tl.constexpr(SAFE_SQUARES[1])
_NAN, _INFINITY, _MAGNITUDE = tl.constexpr(0x7FC00000), tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)
_TABLE_START = 4096
"""Words of the rows that the smallest table is for."""
_TABLE_PADDING = 2048
"""Entries beyond the widest row: a step reads whole blocks, of at most 512 elements and 1024 words."""


@triton.jit
def _value(bits, element: tl.constexpr):
    """The values of raw bits, exactly: float32 for 16-bit floats, float64 for the others."""
    if element == tl.bfloat16:
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif element == tl.float16:
        return bits.to(tl.float16, bitcast=True).to(tl.float32)
    elif element == tl.float32:
        return bits.to(tl.float32, bitcast=True).to(tl.float64)
    else:
        return bits.to(tl.float64, bitcast=True)


@triton.jit
def _rounded_bits(values):
    """The bits of values as float32, every NaN made the canonical one."""
    bits = values.to(tl.float32).to(tl.int32, bitcast=True)
    return tl.where((bits & _MAGNITUDE) > _INFINITY, _NAN, bits)


@triton.jit
def _halved(lanes, ROWS: tl.constexpr):
    """[ROWS, 16] → [ROWS]: lane b + lane b + 8, then + 4, + 2, + 1. A sum of two has only one order."""
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 8)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 4)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 2)), axis=1)
    return tl.sum(lanes, axis=1)


@triton.jit(do_not_specialize=["n_rows", "row_stride", "width", "first_slot", "slot_stride", "table_stride"])
def _summarise(
    rows, out, table, n_rows, row_stride, width, first_slot, slot_stride, table_stride,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Row r of `rows` (width elements, row_stride apart) → slot first_slot + r · slot_stride of `out`."""
    element: tl.constexpr = rows.dtype.element_ty
    size: tl.constexpr = element.primitive_bitwidth // 8
    bits_type: tl.constexpr = tl.int16 if size == 2 else (tl.int32 if size == 4 else tl.int64)
    sum_type: tl.constexpr = tl.float32 if size == 2 else tl.float64
    step: tl.constexpr = _LANES * BLOCKS

    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_there = row < n_rows
    starts = rows.to(tl.pointer_type(bits_type), bitcast=True) + row * row_stride
    lane = tl.arange(0, _LANES)
    span = tl.arange(0, step)
    keys_0, keys_1 = table + _KEYS_0 * table_stride, table + _KEYS_1 * table_stride
    signs = table + _SIGNS * table_stride

    hash_0 = tl.zeros((ROWS, step), tl.int64)
    hash_1 = tl.zeros((ROWS, step), tl.int64)
    most = tl.zeros((ROWS, step), bits_type)
    sums = tl.zeros((ROWS, _LANES), sum_type)
    squares = tl.zeros((ROWS, _LANES), sum_type)
    for first in range(0, width, step):
        column = first + span
        there = row_there[:, None] & (column < width)[None, :]
        bits = tl.load(starts[:, None] + column[None, :], mask=there, other=0)
        most = tl.maximum(most, bits & ((1 << (8 * size - 1)) - 1))
        if size == 8:
            low = bits & 0xFFFFFFFF
            high = (bits >> 32) & 0xFFFFFFFF
            hash_0 += low * tl.load(keys_0 + 1 + 2 * column)[None, :]
            hash_1 += low * tl.load(keys_1 + 1 + 2 * column)[None, :]
            hash_0 += high * tl.load(keys_0 + 2 + 2 * column)[None, :]
            hash_1 += high * tl.load(keys_1 + 2 + 2 * column)[None, :]
        elif size == 4:
            word = bits.to(tl.uint32, bitcast=True).to(tl.int64)
            hash_0 += word * tl.load(keys_0 + 1 + column)[None, :]
            hash_1 += word * tl.load(keys_1 + 1 + column)[None, :]
        else:
            # Half a word in its place; the word itself would need its two elements in one thread.
            shift = ((column & 1) << 4).to(tl.uint32)
            half = bits.to(tl.uint16, bitcast=True).to(tl.uint32)
            word = (half << shift[None, :]).to(tl.int64)
            hash_0 += word * tl.load(keys_0 + 1 + (column >> 1))[None, :]
            hash_1 += word * tl.load(keys_1 + 1 + (column >> 1))[None, :]
        for block in tl.static_range(BLOCKS):
            if block % 4 == 0:
                quad = tl.load(signs + first // (4 * _LANES) + block // 4)
            at = first + _LANES * block + lane
            there_16 = row_there[:, None] & (at < width)[None, :]
            x = tl.load(starts[:, None] + at[None, :], mask=there_16, other=0)
            negative = (quad >> (_LANES * (block % 4) + lane)) & 1
            sums += _value(x ^ (negative.to(bits_type) << (8 * size - 1))[None, :], element)
            value = _value(x, element)
            squares += value * value

    length = width * size
    words = (length + 3) // 4
    bias_0 = tl.load(table + _BIAS_0 * table_stride + words)
    bias_1 = tl.load(table + _BIAS_1 * table_stride + words)
    total_0 = tl.sum(hash_0, axis=1) + length * tl.load(keys_0) + bias_0
    total_1 = tl.sum(hash_1, axis=1) + length * tl.load(keys_1) + bias_1
    absmax = _value(tl.max(most, axis=1).to(bits_type), element)
    if size == 2:
        norm = tl.sqrt_rn(_halved(squares, ROWS))
        unsafe = (absmax != 0) & ((absmax < _LOW) | (absmax > _HIGH)) & (absmax < float("inf"))
        if tl.max(unsafe.to(tl.int32), axis=0) != 0:
            wide = tl.zeros((ROWS, _LANES), tl.float64)
            for first in range(0, width, _LANES):
                at = first + lane
                there_16 = row_there[:, None] & (at < width)[None, :]
                x = tl.load(starts[:, None] + at[None, :], mask=there_16, other=0)
                value_64 = _value(x, element).to(tl.float64)
                wide += value_64 * value_64
            norm = tl.where(unsafe, tl.sqrt(_halved(wide, ROWS)).to(tl.float32), norm)
    else:
        norm = tl.sqrt(_halved(squares, ROWS))

    slot = first_slot + row * slot_stride
    tl.store(out + slot * _SLOT_WORDS, total_0, mask=row_there)
    tl.store(out + slot * _SLOT_WORDS + 1, total_1, mask=row_there)
    halves = out.to(tl.pointer_type(tl.int32), bitcast=True) + slot * _SLOT_HALVES
    tl.store(halves + _L2, _rounded_bits(norm), mask=row_there)
    tl.store(halves + _ABSMAX, _rounded_bits(absmax), mask=row_there)
    tl.store(halves[:, None] + _SKETCH + lane[None, :], _rounded_bits(sums), mask=row_there[:, None])


class Launch:
    """A launch of the kernel on rows of one form, wherever they lie and whichever slots they go to.

    Args:
        rows: Number of rows.
        row_stride: Elements between their starts; 0 gives every slot the same row.
        width: Elements of a row.
        slot_stride: Slots between the results of two rows.
        table: The constants, by `table_for`.
    """

    def __init__(self, rows: int, row_stride: int, width: int, slot_stride: int, table: torch.Tensor) -> None:
        self.rows = rows
        few = rows <= FEW_ROWS
        rows_a_program, blocks, warps = (1, 32, 4) if few else (4, 8, 1)
        self._table = table
        self._grid = (triton.cdiv(rows, rows_a_program),)
        self._form = (rows, row_stride, width)
        self._after = (slot_stride, table.shape[1], rows_a_program, blocks)
        self._options = {"num_warps": warps, "enable_fp_fusion": False}

    def __call__(self, tensor: torch.Tensor, slots: torch.Tensor, first_slot: int) -> None:
        """Enqueue it on the current stream.

        Args:
            tensor: Starts with the first row; its dtype is one of DTYPES.
            slots: int64[positions, sites, 11] on the same device.
            first_slot: Where the first row's results go: position · sites + site.
        """
        if not self.rows:
            return
        if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
            with torch.cuda.device(tensor.device):
                self._enqueue(tensor, slots, first_slot)
        else:
            self._enqueue(tensor, slots, first_slot)

    def _enqueue(self, tensor: torch.Tensor, slots: torch.Tensor, first_slot: int) -> None:
        _summarise[self._grid](
            tensor, slots, self._table, *self._form, first_slot, *self._after, **self._options
        )


_tables: dict[torch.device, torch.Tensor] = {}


def table_for(device: torch.device, row_bytes: int) -> torch.Tensor:
    """The constants of hash and sketch on a device, for rows of up to `row_bytes`.

    Returns:
        int64[5, N]: a_0j, a_1j, c_k + Σ_{i≤j} a_ki for k = 0 and 1, and the signs: bit b of element i
        says whether σ_{64i+b} = −1. A table that is too short is replaced and never changed, so that a
        recorded graph can go on reading the one it holds.
    """
    words = 1 + -(-row_bytes // WORD_BYTES)
    known = _tables.get(device)
    if known is None or known.shape[1] < words + _TABLE_PADDING:
        length = max(_TABLE_START, 2 * words) + _TABLE_PADDING
        lines = np.zeros((5, length), np.uint64)
        for k in range(2):
            lines[k] = hash_keys(k, length)
            lines[2 + k] = np.uint64(hash_offset(k)) + np.cumsum(lines[k], dtype=np.uint64)
        # A word holds two elements at most, and 64 elements share an entry.
        negative = is_negative(length // 32 * 64).reshape(-1, 64).astype(np.uint64)
        lines[4, : len(negative)] = (negative << np.arange(64, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        known = _tables[device] = torch.from_numpy(lines.view(np.int64)).to(device)
    return known
