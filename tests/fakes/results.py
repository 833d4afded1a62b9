"""Result folders and traces made up for the tests of `rip query` and the report, without comparing anything.

The numbers are chosen, not measured: a difference starts at one module of one position, spreads upwards
and onwards, and after some steps flips a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rip.diverge import result_folder
from rip.schemas import trace
from rip.schemas.change import Change
from rip.schemas.findings.execution import ShapeDiffers
from rip.schemas.findings.reasons import Measured, Plain
from rip.schemas.findings.rows import DriftSize, FirstDifferenceAt
from rip.schemas.findings.statement import Command, Location
from rip.schemas.findings.unseen import AfterDivergence, NoEvidence
from rip.schemas.fingerprint import Fingerprint, Section, fact
from rip.schemas.verdict import Cause, Compared, FirstSite, FirstToken, LevelVerdict, TraceRef, Verdict

MODULES = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn:attn",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp",
    "",
)


def _words(text: str) -> list[str]:
    return text.split(" ")


PROMPT = _words("<|im_start|>user\nWhy does the same request give another answer?<|im_end|>\n")
COMMON = _words("The two runs add the same numbers in another order , and rounding depends on it .")
TAIL_A = _words("\n\nThat is why a tie between two words can fall either way .")
TAIL_B = _words("So one word may win where the other had won before it .")


@dataclass(frozen=True)
class Scene:
    """What the made-up comparison shows."""

    request_ids: tuple[str, ...] = ("req-1", "req-2")
    layers: int = 4
    tokens_equal: bool = False
    bitwise_equal: bool = False
    words: dict[int, str] = field(default_factory=dict)
    """Token text that replaces the usual words, by token id."""

    @property
    def origin_position(self) -> int:
        return len(PROMPT) + 5

    @property
    def origin_site(self) -> int:
        return 1 + len(MODULES) * (self.layers // 2) + MODULES.index("mlp.gate_proj")


def vocabulary(scene: Scene) -> dict[str, str]:
    """Token id (as JSON writes keys) to text, leading spaces where words follow words."""
    words = [*PROMPT, *COMMON, *TAIL_A, *TAIL_B]
    spaced = [word if index == 0 or word.startswith("\n") else f" {word}" for index, word in enumerate(words)]
    return {str(index): scene.words.get(index, word) for index, word in enumerate(spaced)}


def sequences(scene: Scene) -> tuple[list[int], list[int]]:
    """Token ids of A and B, prompt included."""
    start = len(PROMPT) + len(COMMON)
    prefix = list(range(start))
    tail_a = list(range(start, start + len(TAIL_A)))
    tail_b = list(range(start + len(TAIL_A), start + len(TAIL_A) + len(TAIL_B)))
    return prefix + tail_a, prefix + (tail_a if scene.tokens_equal or scene.bitwise_equal else tail_b)


def site_table(layers: int) -> list[trace.Site]:
    """Embedding, seven sites a layer, final norm."""
    sites = [trace.Site(name="embed_tokens", module="Embedding", dtype="bfloat16", width=576)]
    for layer in range(layers):
        for module in MODULES:
            name, _, part = module.partition(":")
            path = f"layers.{layer}.{name}".rstrip(".")
            sites.append(trace.Site(name=path, part=part, module="Linear", dtype="bfloat16", width=576))
    return [*sites, trace.Site(name="norm", module="LlamaRMSNorm", dtype="bfloat16", width=576)]


def header(scene: Scene, lane: str, threads: int) -> trace.TraceHeader:
    """A trace header with two facts in its fingerprint and token text as an extra field."""
    sections = {
        "cpu": Section(facts={"threads": fact(threads, "torch")}),
        "frameworks": Section(facts={"torch": fact("2.13.0+cpu", "importlib.metadata")}),
    }
    return trace.TraceHeader.from_object(
        {
            "schema": "rip.trace/1",
            "tool_version": "0.1.0",
            "created": "2026-07-14T09:30:00Z",
            "lane": {"name": lane, "engine": "hf", "model": "SmolLM2-135M-Instruct"},
            "mode": "free",
            "capture": "sites",
            "channel": "eager",
            "requests": [{"request_id": name, "envelope_sha256": "ab" * 32} for name in scene.request_ids],
            "fingerprint": Fingerprint.build("0.1.0", "2026-07-14T09:30:00Z", sections).to_object(),
            "sites": [site.model_dump() for site in site_table(scene.layers)],
            "row_hash": "mlh64x2-splitmix64-v1",
            "sketch": "cs16-v1",
            "observer": {"state": "equal", "compared": "logits hashes of 24 steps"},
            "token_text": vocabulary(scene),
        },
        "fake trace",
    )


def trace_table(scene: Scene, side: str, batch: int = 1) -> pa.Table:
    """The rows of a trace: every sequence of the scene, three candidates a row."""
    a, b = sequences(scene)
    ids = a if side == "a" else b
    sites = site_table(scene.layers)
    schema = trace.arrow_schema(len(sites), keeps_tensors=False)
    random = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    for sequence, request_id in enumerate(scene.request_ids):
        for position, token in enumerate(ids):
            following = ids[position + 1] if position + 1 < len(ids) else 0
            candidates = [following, (following + 5) % 40, (following + 9) % 40]
            logits = np.array([9.0, 8.5 - 0.01 * position, 3.0], np.float32)
            logsumexp = float(np.log(np.exp(logits).sum()))
            norms = random.uniform(1, 9, len(sites)).astype(np.float32)
            computed = [not (site.name == "norm" and position < len(PROMPT) - 1) for site in sites]
            rows.append(
                {
                    "sequence": sequence,
                    "request_id": request_id,
                    "sample": 0,
                    "cell": "",
                    "position": position,
                    "step": position - len(PROMPT) if position >= len(PROMPT) else None,
                    "phase": "decode" if position >= len(PROMPT) else "prompt",
                    "token_id": token,
                    "forced": False,
                    "topk_ids": candidates,
                    "topk_logits": logits,
                    "topk_logprobs": logits - np.float32(logsumexp),
                    "logsumexp": logsumexp,
                    "logits_hash": random.bytes(16),
                    "sampler": None,
                    "batch_size": batch,
                    "batch_row": 0,
                    "num_tokens": 1 if position >= len(PROMPT) else len(PROMPT),
                    "padded_tokens": 0,
                    "cached_tokens": position if position >= len(PROMPT) else 0,
                    "site_hash": [random.bytes(16) if here else None for here in computed],
                    "site_l2": np.where(computed, norms, 0),
                    "site_absmax": np.where(computed, norms / 2, 0),
                    "site_sketch": random.normal(size=len(sites) * 16).astype(np.float32),
                }
            )
    return pa.Table.from_pylist(rows, schema=schema)


def write_trace(path: Path, scene: Scene, side: str = "a") -> trace.TraceHeader:
    """Write a whole trace file."""
    said = header(scene, "single" if side == "a" else "batch-8", threads=2)
    table = trace_table(scene, side, batch=1 if side == "a" else 8)
    write_part(path, table, said)
    return said


def write_part(path: Path, table: pa.Table, said: trace.TraceHeader) -> None:
    """Write rows under a header, as the trace writer does."""
    with pq.ParquetWriter(
        path,
        table.schema.with_metadata({trace.HEADER_KEY: said.to_json().encode()}),
        **trace.parquet_options(table.schema),
    ) as writer:
        writer.write_table(table)


def write_result(folder: Path, scene: Scene | None = None) -> Verdict:
    """Write a whole result folder and return its verdict."""
    scene = scene or Scene()
    folder.mkdir(parents=True, exist_ok=True)
    rows = _rows(scene)
    for name in result_folder.TABLES:
        pq.write_table(
            pa.Table.from_pylist(rows[name], schema=result_folder.arrow_schema(name)),
            folder / f"{name}.parquet",
        )
    verdict = _verdict(scene, rows)
    (folder / result_folder.SUMMARY_FILE).write_text(verdict.to_json())
    return verdict


def _rows(scene: Scene) -> dict[str, list[dict[str, Any]]]:
    a, b = sequences(scene)
    sites = site_table(scene.layers)
    always = len(sites) - 1  # the final norm is not computed inside the prompt
    diverges_at = next((index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
    out: dict[str, list[dict[str, Any]]] = {name: [] for name in result_folder.TABLES}
    differing = [0] * len(sites)
    for pair, request_id in enumerate(scene.request_ids):
        moved = pair == 0 and not scene.bitwise_equal  # only the first sequence differs
        other = b if moved else a
        for position, (token_a, token_b) in enumerate(zip(a, other, strict=True)):
            comparable = not moved or diverges_at is None or position < diverges_at
            drifts = _drifts(scene, position, len(sites)) if moved and comparable else {}
            predicted_after_origin = moved and position > scene.origin_position
            drift = 0.004 * (1 + math.sin(position) ** 2) if predicted_after_origin else 0.0
            margin = 0.006 if position == diverges_at else 1.2 + math.cos(position)
            first = position == 0
            readable = comparable or position == diverges_at
            shown = {} if first or not readable else _distribution(margin, drift)
            computed = 0 if not comparable else always + (position >= len(PROMPT) - 1)
            out["tokens"].append(
                dict.fromkeys((column.name for column in result_folder.TABLES["tokens"]), None)
                | {
                    "pair": pair,
                    "request_id": request_id,
                    "sample": 0,
                    "position": position,
                    "step": position - len(PROMPT) if position >= len(PROMPT) else None,
                    "phase": "decode" if position >= len(PROMPT) else "prompt",
                    "token_a": token_a,
                    "token_b": token_b,
                    "token_equal": token_a == token_b,
                    "comparable": comparable,
                    "sites_compared": computed,
                    "sites_differing": len(drifts),
                    "first_site": min(drifts, default=None),
                    "batch_size_a": 1,
                    "batch_size_b": 8,
                }
                | shown
            )
            for site, value in drifts.items():
                differing[site] += 1
                row = {"pair": pair, "position": position, "site": site, "rel_drift": value}
                out["sites"].append(row | {"l2_a": 41.5, "l2_b": 41.5 + value})
            if moved and position == diverges_at:
                out["topk"] += _candidates(pair, request_id, position, token_a, token_b)
    for index, site in enumerate(sites):
        drifts = [row["rel_drift"] for row in out["sites"] if row["site"] == index]
        seen = [
            row
            for row in out["tokens"]
            if row["sites_compared"] == len(sites) or (row["comparable"] and index < always)
        ]
        first = next((row["position"] for row in out["sites"] if row["site"] == index), None)
        out["site_totals"].append(
            {
                "site": index,
                "name": site.name,
                "occurrence": site.occurrence,
                "part": site.part,
                "module": site.module,
                "dtype_a": site.dtype,
                "dtype_b": site.dtype,
                "compared": len(seen),
                "differing": differing[index],
                "by_sketch": False,
                "first_pair": 0 if first is not None else None,
                "first_position": first,
                "drift_p50": float(np.median(drifts)) if drifts else None,
                "drift_p95": float(np.quantile(drifts, 0.95)) if drifts else None,
                "drift_max": max(drifts, default=None),
            }
        )
    if not scene.bitwise_equal:
        out["changes"].append(
            {
                "section": "cpu",
                "field": "threads",
                "before": "2",
                "after": "1",
                "risk": "bitwise",
                "rule": "MKL CNR",
            }
        )
    return out


def _drifts(scene: Scene, position: int, sites: int) -> dict[int, float]:
    if position < scene.origin_position:
        return {}
    first = scene.origin_site if position == scene.origin_position else 1
    last = sites if position >= len(PROMPT) - 1 else sites - 1
    return {
        site: 2e-3 * (1 + site) / sites * (1 + math.sin(site * position) ** 2) for site in range(first, last)
    }


def _distribution(margin: float, drift: float) -> dict[str, Any]:
    return {
        "logits_equal": drift == 0,
        "logprob_a": -0.6,
        "logprob_b": -0.6 - drift,
        "margin_a": margin,
        "margin_b": abs(margin - drift),
        "max_abs_logit_diff": drift,
        "max_rel_logit_diff": drift / 20,
        "max_abs_logprob_diff": drift,
        "kl": drift**2,
        "topk_overlap": 1.0,
        "top1_equal": drift < margin,
    }


def _candidates(
    pair: int, request_id: str, position: int, token_a: int, token_b: int
) -> list[dict[str, Any]]:
    common = {
        "pair": pair,
        "request_id": request_id,
        "sample": 0,
        "position": position,
        "step": position - len(PROMPT),
    }
    rows = []
    for side, order in (("a", (token_a, token_b, 3, 5)), ("b", (token_b, token_a, 5, 3))):
        for rank, token in enumerate(order):
            row = {
                "side": side,
                "rank": rank,
                "token_id": token,
                "logit": 18.2 - 0.006 * (rank == 1) - 1.1 * (rank > 1) * rank,
            }
            rows.append(common | row | {"logprob": row["logit"] - 19.0, "chosen": rank == 0})
    return rows


def _verdict(scene: Scene, rows: dict[str, list[dict[str, Any]]]) -> Verdict:
    diverging = next((row for row in rows["tokens"] if not row["token_equal"]), None)
    origin = site_table(scene.layers)[scene.origin_site]
    where = Location(request_id=scene.request_ids[0], position=scene.origin_position, site=origin.name)
    comparable = sum(row["comparable"] for row in rows["tokens"])
    first_site = FirstSite(
        request_id=scene.request_ids[0],
        sample=0,
        position=scene.origin_position,
        site=origin.name,
        occurrence=0,
        part="",
        rel_drift=2.1e-3,
        is_origin=True,
    )
    first_token = diverging and FirstToken(
        request_id=diverging["request_id"],
        sample=0,
        **{
            name: diverging[name]
            for name in ("step", "position", "token_a", "token_b", "margin_a", "margin_b")
        },
        max_abs_logit_diff=diverging["max_abs_logit_diff"],
    )
    same = scene.bitwise_equal
    token = (
        LevelVerdict(state="fails", where=Location(request_id=scene.request_ids[0], step=diverging["step"]))
        if diverging
        else LevelVerdict(state="holds")
    )
    ref = {
        "sha256_of_header": "c0ffee" * 10 + "abcd",
        "engine": "hf",
        "mode": "free",
        "fingerprint": "5eed" * 16,
    }
    return Verdict(
        tool_version="0.1.0",
        created="2026-07-14T09:31:00Z",
        a=TraceRef(path="single.parquet", lane="single", **ref),
        b=TraceRef(path="batch.parquet", lane="batch-8", **ref),
        level="bitwise" if same else (None if diverging else "token"),
        levels={
            "bitwise": LevelVerdict(state="holds") if same else LevelVerdict(state="fails", where=where),
            "numeric": LevelVerdict(
                state="not stated",
                why=[
                    Plain(kind="no tolerance"),
                    Measured(of="logit", largest=0.0078, compared=comparable, comparable=comparable),
                ],
            ),
            "token": token,
            "semantic": LevelVerdict(state="not comparable", why=[Plain(kind="texts not recorded")]),
        },
        first_token=first_token,
        first_site=None if same else first_site,
        causes=[]
        if same
        else [
            Cause(
                id="batch-shape",
                evidence=[
                    ShapeDiffers(name="batch_size", a=1, b=8),
                    FirstDifferenceAt(role="begins", site=origin.name, position=scene.origin_position),
                    DriftSize(rel_drift=2.1e-3, ulps=0.27, dtype="bfloat16", reading="within rounding"),
                ],
                missing=[NoEvidence(kind="repeats")],
                confidence="high",
                confirm=Command(
                    purpose="rerun",
                    argv=["rip", "replay", "req.json", "--neighbours", "0", "-o", "alone.parquet"],
                ),
            )
        ],
        changes=[]
        if same
        else [
            Change(
                section="cpu",
                field="threads",
                before=fact(2, "torch"),
                after=fact(1, "torch"),
                risk="bitwise",
            )
        ],
        compared=Compared(
            sequences=len(scene.request_ids),
            sequences_diverging=1 if diverging else 0,
            positions=comparable,
            sites=len(rows["site_totals"]),
            rows=sum(row["compared"] for row in rows["site_totals"]),
            rows_differing=len(rows["sites"]),
        ),
        max_abs_logit_diff=0.0 if same else 0.0078,
        not_seen=[
            AfterDivergence(
                positions=len(rows["tokens"]) - comparable,
                of=len(rows["tokens"]),
                sequences=1,
                can_force=True,
            )
        ]
        if diverging
        else [],
    )
