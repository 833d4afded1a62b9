"""Synthetic traces for tests and benchmarks: sequences as numpy arrays, written as `rip replay` would.

Every array may be changed after `sequence(...)` made it; that is how differences are planted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rip.schemas.fingerprint import Fingerprint
from rip.schemas.lane import Lane, Setting
from rip.schemas.trace import (
    HEADER_KEY,
    PARTS_SUFFIX,
    SKETCH_SIZE,
    Request,
    SequenceResult,
    Site,
    TraceHeader,
    arrow_schema,
    parquet_options,
)

MODULES = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp")
NOT_COMPUTED = -1
"""A number of the pass of a row that no pass computed: null in the trace."""
SHAPES = ("batch_size", "batch_row", "num_tokens", "padded_tokens", "cached_tokens")


@dataclass
class Sequence:
    """One sequence of T positions, S sites and K candidates."""

    request_id: str
    tokens: np.ndarray  # int32[T]
    prompt_length: int
    hashes: np.ndarray  # uint64[T, S, 2]
    present: np.ndarray  # bool[T, S]: False becomes a null hash
    l2: np.ndarray  # float32[T, S]
    absmax: np.ndarray  # float32[T, S]
    sketch: np.ndarray  # float32[T, S, 16]
    topk_ids: np.ndarray  # int32[T, K]
    topk_logits: np.ndarray  # float32[T, K]
    topk_logprobs: np.ndarray  # float32[T, K]
    logits_hash: np.ndarray  # uint64[T, 2]
    has_logits: np.ndarray  # bool[T]: False becomes null candidates and a null logits hash
    forced: np.ndarray  # bool[T]
    shapes: dict[str, np.ndarray]  # int32[T] for each of SHAPES
    sample: int = 0
    cell: str = ""
    draws: np.ndarray | None = None  # float64[T]: the sampler's uniform draws
    next_logprob: np.ndarray | None = None  # float32[T]: of the token that came next
    tells_logits: bool = True  # False: log-probabilities only, as a server without taps
    tells_shapes: bool = True  # False: likewise
    feeds_last: bool = True  # False: the last token was chosen and never fed to the model, as in a real run

    @property
    def length(self) -> int:
        """Positions."""
        return len(self.tokens)

    def rows(self, first: int, stop: int) -> Sequence:
        """The same sequence, positions `first` to `stop` only (views, not copies)."""
        cut = {
            name: value[first:stop]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and len(value) == self.length
        }
        shapes = {name: value[first:stop] for name, value in self.shapes.items()}
        return Sequence(**{**vars(self), **cut, "shapes": shapes})


def llama_sites(layers: int, dtype: str = "bfloat16") -> list[Site]:
    """Embeddings, `MODULES` and the residual stream of every layer, and the final norm."""
    names = ["embed_tokens"]
    for layer in range(layers):
        names += [f"layers.{layer}.{module}" for module in MODULES] + [f"layers.{layer}"]
    return [Site(name=name, module="Module", dtype=dtype, width=64) for name in [*names, "norm"]]


def sequence(
    seed: int,
    n_sites: int,
    prompt: int = 4,
    decode: int = 6,
    k: int = 5,
    request_id: str = "r0",
    sample: int = 0,
) -> Sequence:
    """A random sequence; equal arguments give equal sequences.

    As in a real run the last generated token was never fed to the model: its row has neither hashes nor
    candidates.
    """
    rng = np.random.default_rng([seed, sample])
    length = prompt + decode
    tokens = rng.integers(0, 1000, length, dtype=np.int32)
    sketch = rng.standard_normal((length, n_sites, SKETCH_SIZE), dtype=np.float32)
    present = np.ones((length, n_sites), bool)
    has_logits = np.ones(length, bool)
    if decode:
        present[-1], has_logits[-1] = False, False
    logits = -np.sort(-rng.standard_normal((length, k), dtype=np.float32) * 4, axis=1)
    ids = np.argsort(rng.random((length, max(4 * k, 40)), dtype=np.float32), axis=1)[:, :k].astype(np.int32)
    ids[:-1, 0] = tokens[1:]  # greedy: the most likely candidate came next
    clash = ids[:, 1:] == ids[:, :1]
    ids[:, 1:][clash] = 2000
    prefill = np.arange(length) < prompt
    shapes = {
        "batch_size": np.ones(length, np.int32),
        "batch_row": np.zeros(length, np.int32),
        "num_tokens": np.where(prefill, prompt, 1).astype(np.int32),
        "padded_tokens": np.zeros(length, np.int32),
        "cached_tokens": np.where(prefill, 0, np.arange(length)).astype(np.int32),
    }
    return Sequence(
        request_id=request_id,
        sample=sample,
        tokens=tokens,
        prompt_length=prompt,
        hashes=rng.integers(0, 2**64, (length, n_sites, 2), dtype=np.uint64),
        present=present,
        l2=np.linalg.norm(sketch, axis=2).astype(np.float32),
        absmax=np.abs(sketch).max(axis=2),
        sketch=sketch,
        topk_ids=ids,
        topk_logits=logits,
        topk_logprobs=(logits - 6.0).astype(np.float32),
        logits_hash=rng.integers(0, 2**64, (length, 2), dtype=np.uint64),
        has_logits=has_logits,
        forced=np.zeros(length, bool),
        shapes=shapes,
    )


def disturb(target: Sequence, position: int, site: int, size: float = 1e-3) -> None:
    """Plant a difference: another hash and a sketch moved by `size` relative to the row's norm."""
    target.hashes[position, site, 0] ^= np.uint64(1)
    direction = np.zeros(SKETCH_SIZE, np.float32)
    direction[position % SKETCH_SIZE] = size * target.l2[position, site]
    target.sketch[position, site] += direction


def disturb_logits(target: Sequence, position: int, size: float = 0.01) -> None:
    """Plant a difference in the distribution that the row at `position` holds."""
    target.logits_hash[position, 0] ^= np.uint64(1)
    target.topk_logits[position, 0] += np.float32(size)
    target.topk_logprobs[position, 0] += np.float32(size)


def as_a_server_tells(target: Sequence) -> Sequence:
    """The same sequence as a server without taps tells it: logprobs of generated tokens, no shapes."""
    target.tells_logits = target.tells_shapes = False
    target.has_logits[: target.prompt_length - 1] = False
    return target


def result(
    text: str | None, request_id: str = "r0", sample: int = 0, sequence: int = 0, **about: Any
) -> SequenceResult:
    """How a sequence ended."""
    said = {"reason": "stop", **about}
    return SequenceResult(sequence=sequence, request_id=request_id, sample=sample, text=text, **said)


def header(sites: list[Site], request_ids: Iterable[str] = ("r0",), **changes: Any) -> TraceHeader:
    """A header for `sites`; keyword arguments replace or add fields."""
    values: dict[str, Any] = {
        "tool_version": "0.1.0",
        "created": "2026-07-14T09:00:00Z",
        "lane": Lane(
            name="main",
            engine="hf",
            model="SmolLM2",
            settings={"dtype": Setting(resolved="bfloat16", source="lane")},
        ),
        "mode": "free",
        "capture": "sites" if sites else "tokens",
        "requests": [Request(request_id=name, envelope_sha256="0" * 64) for name in request_ids],
        "fingerprint": Fingerprint.build("0.1.0", "2026-07-14T09:00:00Z", {}),
        "sites": sites,
        "row_hash": "fake-hash/1" if sites else "",
        "sketch": "fake-sketch/1" if sites else "",
    }
    return TraceHeader(**{**values, **changes})


@dataclass
class _Group:
    """Rows waiting to be written as one row group."""

    pieces: list[tuple[int, int, Sequence]] = field(
        default_factory=list
    )  # (sequence index, first position, rows)
    rows: int = 0


def write_trace(
    path: Path, sequences: Iterable[Sequence], about: TraceHeader, rows_per_group: int = 1024, **options: Any
) -> Path:
    """Write a trace file. `options` replace those of `parquet_options`."""
    schema = _schema(about)
    with pq.ParquetWriter(path, schema, **{**parquet_options(schema), **options}) as writer:
        for group in _groups(enumerate(sequences), rows_per_group):
            writer.write_table(_table(group.pieces, schema), row_group_size=rows_per_group)
    return path


def write_parts(path: Path, parts: list[list[tuple[int, int, Sequence]]], about: TraceHeader) -> Path:
    """Write `path.parts/` as a dead run leaves it: for each part its (sequence, first position, rows)."""
    folder = path.with_name(path.name + PARTS_SUFFIX)
    folder.mkdir()
    (folder / "header.json").write_text(about.to_json())
    schema = _schema(about)
    for number, pieces in enumerate(parts):
        pq.write_table(
            _table(pieces, schema), folder / f"part-{number:05d}.parquet", **parquet_options(schema)
        )
    return folder


def _schema(about: TraceHeader) -> pa.Schema:
    plain = arrow_schema(len(about.sites), keeps_tensors=False)
    return plain.with_metadata({HEADER_KEY: about.to_json().encode()})


def _groups(sequences: Iterable[tuple[int, Sequence]], size: int) -> Iterator[_Group]:
    group = _Group()
    for index, whole in sequences:
        start = 0
        while start < whole.length:
            stop = min(whole.length, start + size - group.rows)
            group.pieces.append((index, start, whole.rows(start, stop)))
            group.rows += stop - start
            start = stop
            if group.rows == size:
                yield group
                group = _Group()
    if group.rows:
        yield group


def _table(pieces: list[tuple[int, int, Sequence]], schema: pa.Schema) -> pa.Table:
    parts = [_piece(index, first, rows, schema) for index, first, rows in pieces]
    return pa.concat_tables(parts).combine_chunks() if len(parts) > 1 else parts[0]


def _piece(index: int, first: int, rows: Sequence, schema: pa.Schema) -> pa.Table:
    n = rows.length
    position = np.arange(first, first + n, dtype=np.int32)
    generated = position >= rows.prompt_length
    no_logits = ~rows.has_logits
    constant = {"request_id": rows.request_id, "cell": rows.cell}
    columns: dict[str, pa.Array] = {
        "sequence": pa.array(np.full(n, index, np.int32)),
        "sample": pa.array(np.full(n, rows.sample, np.int16)),
        "position": pa.array(position),
        "step": pa.array(position - rows.prompt_length, mask=~generated),
        "phase": pa.DictionaryArray.from_arrays(pa.array(generated.astype(np.int32)), ["prompt", "decode"]),
        "token_id": pa.array(rows.tokens),
        "forced": pa.array(rows.forced),
        "elapsed_s": pa.nulls(n, pa.float64()),
        "next_logprob": pa.nulls(n, pa.float32())
        if rows.next_logprob is None
        else pa.array(rows.next_logprob, mask=no_logits),
        "topk_ids": _lists(rows.topk_ids, no_logits),
        "topk_logits": _lists(rows.topk_logits, no_logits | (not rows.tells_logits)),
        "topk_logprobs": _lists(rows.topk_logprobs, no_logits),
        "logsumexp": pa.array(np.full(n, 6.0), mask=no_logits),
        "logits_hash": _binaries(rows.logits_hash, ~no_logits & rows.tells_logits),
        "sampler": pa.array(
            [None] * n
            if rows.draws is None
            else [
                {"top1_id": int(i), "top1_logit": float(x), "draw": float(d), "rng_offset": p}
                for p, (i, x, d) in enumerate(
                    zip(rows.topk_ids[:, 0], rows.topk_logits[:, 0], rows.draws, strict=True)
                )
            ],
            schema.field("sampler").type,
        ),
    } | {
        name: pa.array(values, mask=_untold_shapes(rows, n) | (values == NOT_COMPUTED))
        for name, values in rows.shapes.items()
    }
    for name, text in constant.items():
        columns[name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), [text])
    if "site_hash" in schema.names:
        width = rows.hashes.shape[1]
        columns["site_hash"] = pa.FixedSizeListArray.from_arrays(
            _binaries(rows.hashes.reshape(-1, 2), rows.present.reshape(-1)),
            type=schema.field("site_hash").type,
        )
        for name, values in (
            ("site_l2", rows.l2),
            ("site_absmax", rows.absmax),
            ("site_sketch", rows.sketch),
        ):
            shaped = np.where(
                rows.present.reshape(n, width, *([1] * (values.ndim - 2))), values, np.float32(0)
            )
            columns[name] = pa.FixedSizeListArray.from_arrays(
                pa.array(shaped.reshape(-1)), type=schema.field(name).type
            )
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def _binaries(values: np.ndarray, present: np.ndarray) -> pa.Array:
    """uint64[n, 2] as fixed-size binaries, null where `present` is False."""
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(values), [validity, data])


def _lists(values: np.ndarray, absent: np.ndarray) -> pa.Array:
    """[n, K] as lists of K, null where `absent`."""
    k = values.shape[1]
    lengths = np.where(absent, 0, k)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = pa.array(values[~absent].reshape(-1))
    element = pa.field("element", flat.type, nullable=False)
    mask = pa.array(absent) if absent.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=pa.list_(element), mask=mask)


def _untold_shapes(rows: Sequence, count: int) -> np.ndarray:
    """bool[T], where no forward pass computed the row, or none is told."""
    untold = np.full(count, not rows.tells_shapes)
    if not rows.feeds_last:
        untold[-1] = True
    return untold
