# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
"""The fused CPU kernel: hash, sketch, L2 and absmax of many rows, compiled by numba, from raw pointers.

It knows memory, not tensors: `summarise.py` fills its tables. Rows are read in blocks of 16 lanes through
explicit LLVM vectors, because the vectoriser gave up on the plain floating-point loop (fifteen times slower).
Additions happen in exactly the reference's order, so those results agree bit for bit too. Everything that is
compiled stands in this one file, because numba's cache notices changes of this file only.
"""

from __future__ import annotations

import functools

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from ...schemas.trace import SKETCH_SIZE
from .row_hash_and_sketch import SAFE_SQUARES

LANES = SKETCH_SIZE
BFLOAT16, FLOAT16, FLOAT32, FLOAT64 = range(4)
"""Dtype codes of a job."""

ADDRESS, ROW_STRIDE, ROWS, ELEMENTS, DTYPE, FIRST_SLOT, JOB_LENGTH = range(7)
"""The int64 fields of a job, in order; address and stride in bytes. Row r goes to output slot
FIRST_SLOT + r · SLOT_STRIDE."""

(
    NEXT_UNIT, UNITS, UNITS_PER_TICKET, UNITS_PER_JOB, JOBS, SLOT_STRIDE, HASH, L2, ABSMAX, SKETCH,
    KEYS_0, KEYS_1, BIAS_0, BIAS_1, SIGNS_16, SIGNS_32, SIGNS_64, TASK_LENGTH,
) = range(18)  # fmt: skip
"""The int64 fields of a task, in order; all but the counts and the stride are addresses. Unit u is row
u mod UNITS_PER_JOB of job u div UNITS_PER_JOB; a thread takes UNITS_PER_TICKET at a time."""

LOW, HIGH = SAFE_SQUARES


class Lanes(types.Type):
    """16 numbers in vector registers. `kind` says how their bits are read."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"Lanes({kind})")


_INT = {bits: ir.IntType(bits) for bits in (16, 32, 64)}
_F32, _F64 = ir.FloatType(), ir.DoubleType()
_STORED = {
    "bf16": _INT[16], "f16": _INT[16], "f32": _INT[32], "f64": _INT[64],  # a row's elements, as raw bits
    "word": _INT[32], "u64": _INT[64], "sum32": _F32, "sum64": _F64,
}  # fmt: skip
_KINDS = {kind: Lanes(kind) for kind in _STORED}


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.VectorType(_STORED[fe_type.kind], LANES))


def _splat(vector: ir.VectorType, value) -> ir.Constant:
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * vector.count)


def _like(vector: ir.VectorType, element) -> ir.VectorType:
    return ir.VectorType(element, vector.count)


def _zeros(kind: str):
    @intrinsic
    def zeros(typing):
        return _KINDS[kind](), lambda ctx, b, sig, args: _splat(ctx.get_value_type(sig.return_type), 0)

    return zeros


bf16_zeros, f16_zeros, f32_zeros, f64_zeros = (_zeros(kind) for kind in ("bf16", "f16", "f32", "f64"))
word_zeros, u64_zeros = (_zeros(kind) for kind in ("word", "u64"))


def _build_load(ctx, b, sig, args):
    return b.load(b.inttoptr(args[0], args[1].type.as_pointer()), align=1)


@intrinsic
def load(typing, address, like):
    """16 lanes of `like`'s kind from an address of any alignment."""

    return like(types.intp, like), _build_load


@intrinsic
def load_scalar(typing, address, like):
    """One scalar of `like`'s type from an address of any alignment."""

    return like(types.intp, like), _build_load


@intrinsic
def store(typing, address, value):
    """Write a scalar to an address."""

    def build(ctx, b, sig, args):
        b.store(args[1], b.inttoptr(args[0], args[1].type.as_pointer()), align=1)
        return ctx.get_dummy_value()

    return types.void(types.intp, value), build


@intrinsic
def scratch_block(typing):
    """The address of 128 bytes on the caller's stack: room for one block of the widest kind."""

    def build(ctx, b, sig, args):
        block = cgutils.alloca_once(b, ir.ArrayType(_INT[64], LANES))
        return b.ptrtoint(block, ctx.get_value_type(types.intp))

    return types.intp(), build


@intrinsic
def fetch_add(typing, address, amount):
    """Add to the int64 at an address, atomically; returns the value before."""

    def build(ctx, b, sig, args):
        return b.atomic_rmw("add", b.inttoptr(args[0], _INT[64].as_pointer()), args[1], "monotonic")

    return types.int64(types.intp, types.int64), build


@intrinsic
def plus(typing, x, y):
    """x + y, lane by lane; integers modulo 2^64."""

    def build(ctx, b, sig, args):
        return (b.add if x.kind == "u64" else b.fadd)(*args)

    return x(x, x), build


@intrinsic
def times(typing, x, y):
    """x · y, lane by lane; integers modulo 2^64."""

    def build(ctx, b, sig, args):
        return (b.mul if x.kind == "u64" else b.fmul)(*args)

    return x(x, x), build


@intrinsic
def flipped(typing, x, signs):
    """The bits of x with the sign bits of `signs` turned over."""
    return x(x, x), lambda ctx, b, sig, args: b.xor(*args)


@intrinsic
def magnitude(typing, x):
    """The bits of x without their sign bit: ordered as integers like |x|, and NaN above infinity."""

    def build(ctx, b, sig, args):
        vector = args[0].type
        return b.and_(args[0], _splat(vector, 2 ** (vector.element.width - 1) - 1))

    return x(x), build


@intrinsic
def larger(typing, x, y):
    """The larger of two bit patterns, lane by lane, as unsigned integers."""
    return x(x, x), lambda ctx, b, sig, args: b.select(b.icmp_unsigned(">", *args), *args)


@intrinsic
def word_values(typing, x):
    """32-bit words, zero-extended to 64 bits."""
    return _KINDS["u64"](x), lambda ctx, b, sig, args: b.zext(args[0], _like(args[0].type, _INT[64]))


def _as_float(b, bits, kind):
    """The values of raw bits (a vector or a scalar), in float32 for 16-bit kinds."""
    vector = isinstance(bits.type, ir.VectorType)

    def shaped(element):
        return _like(bits.type, element) if vector else element

    if kind == "bf16":
        wide = shaped(_INT[32])
        shift = _splat(wide, 16) if vector else ir.Constant(wide, 16)
        return b.bitcast(b.shl(b.zext(bits, wide), shift), shaped(_F32))
    if kind == "f16":
        return b.fpext(b.bitcast(bits, shaped(ir.HalfType())), shaped(_F32))
    return b.bitcast(bits, shaped(_F32 if kind == "f32" else _F64))


@intrinsic
def widened(typing, x):
    """The values of a row's elements, exactly: float32 for 16-bit kinds, float64 for the others."""
    result = _KINDS["sum32" if x.kind in ("bf16", "f16") else "sum64"]

    def build(ctx, b, sig, args):
        value = _as_float(b, args[0], x.kind)
        return b.fpext(value, _like(value.type, _F64)) if x.kind == "f32" else value

    return result(x), build


@intrinsic
def in_float64(typing, x):
    """Sums or values as float64."""

    def build(ctx, b, sig, args):
        return args[0] if x.kind == "sum64" else b.fpext(args[0], _like(args[0].type, _F64))

    return _KINDS["sum64"](x), build


def _folded(b, vector, combine):
    """Reduce by halves: lane i with lane i + half, until one lane is left."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        parts = [
            b.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(_INT[32], half), [*range(lo, lo + half)])
            )
            for lo in (0, half)
        ]
        vector = combine(*parts)
    return b.extract_element(vector, ir.Constant(_INT[32], 0))


@intrinsic
def total(typing, x):
    """The sum of the 16 lanes, by halves."""
    scalar = {"u64": types.uint64, "sum32": types.float32, "sum64": types.float64}[x.kind]
    return scalar(x), lambda ctx, b, sig, args: _folded(b, args[0], b.add if x.kind == "u64" else b.fadd)


def _rounded(b, value):
    """To float32, every NaN made the canonical one (a vector or a scalar)."""
    vector = isinstance(value.type, ir.VectorType)
    target = _like(value.type, _F32) if vector else _F32
    nan = _splat(target, float("nan")) if vector else ir.Constant(target, float("nan"))
    narrow = value if value.type == target else b.fptrunc(value, target)
    return b.select(b.fcmp_unordered("uno", narrow, narrow), nan, narrow)


@intrinsic
def largest(typing, x):
    """The value of the largest of 16 magnitudes, as float32."""

    def build(ctx, b, sig, args):
        bits = _folded(b, args[0], lambda p, q: b.select(b.icmp_unsigned(">", p, q), p, q))
        return _rounded(b, _as_float(b, bits, x.kind))

    return types.float32(x), build


@intrinsic
def canonical(typing, x):
    """A scalar as float32, every NaN made the canonical one."""
    return types.float32(x), lambda ctx, b, sig, args: _rounded(b, args[0])


@intrinsic
def store_sums(typing, address, x):
    """Write 16 sums as float32."""

    def build(ctx, b, sig, args):
        value = _rounded(b, args[1])
        b.store(value, b.inttoptr(args[0], value.type.as_pointer()), align=1)
        return ctx.get_dummy_value()

    return types.void(types.intp, x), build


_inner = numba.njit(nogil=True, boundscheck=False)


@_inner
def copy_tail(address, count, scratch):
    """Put the last `count` bytes of a row into the scratch block, before zeros."""
    for i in range(0, 128, 8):
        store(scratch + i, np.uint64(0))
    for i in range(count):
        store(scratch + i, load_scalar(address + i, np.uint8(0)))


@_inner
def hash_row(address, count, keys_0, keys_1, bias_0, bias_1, scratch):
    """h_0 and h_1 of one row of `count` bytes; `keys_k` is the address of a_k0, `bias_k` of c_k + a_k0."""
    h_0, h_1 = u64_zeros(), u64_zeros()
    blocks = count // 64
    key_0, key_1 = keys_0 + 8, keys_1 + 8
    for i in range(blocks):
        words = word_values(load(address + 64 * i, word_zeros()))
        h_0 = plus(h_0, times(words, load(key_0 + 128 * i, u64_zeros())))
        h_1 = plus(h_1, times(words, load(key_1 + 128 * i, u64_zeros())))
    if count % 64:
        copy_tail(address + 64 * blocks, count % 64, scratch)
        words = word_values(load(scratch, word_zeros()))
        h_0 = plus(h_0, times(words, load(key_0 + 128 * blocks, u64_zeros())))
        h_1 = plus(h_1, times(words, load(key_1 + 128 * blocks, u64_zeros())))
    n, length = (count + 3) // 4, np.uint64(count & 0xFFFFFFFF)
    h_0 = total(h_0) + length * load_scalar(keys_0, np.uint64(0)) + load_scalar(bias_0 + 8 * n, np.uint64(0))
    h_1 = total(h_1) + length * load_scalar(keys_1, np.uint64(0)) + load_scalar(bias_1 + 8 * n, np.uint64(0))
    return h_0, h_1


@_inner
def measure_row(address, elements, size, zeros, signs, scratch, sketch):
    """Write the sketch of one row; return its L2 and absmax. `zeros` says which kind of element."""
    sums = widened(zeros)
    squares, most = sums, zeros
    blocks = elements // LANES
    step = LANES * size
    for i in range(blocks):
        x = load(address + step * i, zeros)
        sums = plus(sums, widened(flipped(x, load(signs + step * i, zeros))))
        value = widened(x)
        squares = plus(squares, times(value, value))
        most = larger(most, magnitude(x))
    if elements % LANES:
        copy_tail(address + step * blocks, elements % LANES * size, scratch)
        x = load(scratch, zeros)
        sums = plus(sums, widened(flipped(x, load(signs + step * blocks, zeros))))
        value = widened(x)
        squares = plus(squares, times(value, value))
        most = larger(most, magnitude(x))
    store_sums(sketch, sums)
    absmax = largest(most)
    norm = canonical(np.sqrt(total(squares)))
    if (absmax < LOW and absmax != 0) or HIGH < absmax < np.inf:
        wide = in_float64(widened(zeros))
        for i in range(blocks):
            value = in_float64(widened(load(address + step * i, zeros)))
            wide = plus(wide, times(value, value))
        if elements % LANES:
            value = in_float64(widened(load(scratch, zeros)))
            wide = plus(wide, times(value, value))
        norm = canonical(np.sqrt(total(wide)))
    return norm, absmax


@_inner
def field(record, index):
    return load_scalar(record + 8 * index, np.int64(0))


@_inner
def summarise_row(address, elements, size, zeros, signs, slot, task, scratch):
    """Everything about one row, written to output slot `slot`."""
    h_0, h_1 = hash_row(
        address, elements * size, field(task, KEYS_0), field(task, KEYS_1),
        field(task, BIAS_0), field(task, BIAS_1), scratch,
    )  # fmt: skip
    store(field(task, HASH) + 16 * slot, h_0)
    store(field(task, HASH) + 16 * slot + 8, h_1)
    sketch = field(task, SKETCH) + 4 * LANES * slot
    norm, absmax = measure_row(address, elements, size, zeros, signs, scratch, sketch)
    store(field(task, L2) + 4 * slot, norm)
    store(field(task, ABSMAX) + 4 * slot, absmax)


def _run_task(task):
    """Work on the task at an address until no unit is left; several threads may do so together."""
    scratch = scratch_block()
    units, per_ticket, per_job = field(task, UNITS), field(task, UNITS_PER_TICKET), field(task, UNITS_PER_JOB)
    first = fetch_add(task + 8 * NEXT_UNIT, per_ticket)
    while first < units:
        for unit in range(first, min(first + per_ticket, units)):
            job, row = field(task, JOBS) + 8 * JOB_LENGTH * (unit // per_job), unit % per_job
            if row >= field(job, ROWS):
                continue
            address = field(job, ADDRESS) + row * field(job, ROW_STRIDE)
            slot = field(job, FIRST_SLOT) + row * field(task, SLOT_STRIDE)
            dtype, elements = field(job, DTYPE), field(job, ELEMENTS)
            if dtype == BFLOAT16:
                summarise_row(address, elements, 2, bf16_zeros(), field(task, SIGNS_16), slot, task, scratch)
            elif dtype == FLOAT16:
                summarise_row(address, elements, 2, f16_zeros(), field(task, SIGNS_16), slot, task, scratch)
            elif dtype == FLOAT32:
                summarise_row(address, elements, 4, f32_zeros(), field(task, SIGNS_32), slot, task, scratch)
            else:
                summarise_row(address, elements, 8, f64_zeros(), field(task, SIGNS_64), slot, task, scratch)
        first = fetch_add(task + 8 * NEXT_UNIT, per_ticket)


@functools.cache
def compiled_task():
    """`_run_task` as a C function `void (*)(void *task)`; seconds the first time, then from numba's cache.

    Returns:
        numba's CFunc: `.address`, and `.ctypes` to call it (without the GIL).
    """
    signature = types.void(types.intp)
    try:
        return numba.cfunc(signature, cache=True)(_run_task)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.cfunc(signature)(_run_task)
