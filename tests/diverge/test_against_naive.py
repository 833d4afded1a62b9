"""`diverge` against a plain loop in Python, on random traces with random differences."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from fakes.traces import Sequence, disturb, disturb_logits, header, llama_sites, sequence, write_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from rip.diverge.compare import diverge

SITES = llama_sites(1)
S = len(SITES)


@dataclass
class Naive:
    """What a plain loop over positions and sites finds."""

    divergence: list[int | None]
    differing: set[tuple[int, int, int]]
    compared: int
    first: list[tuple[int, int] | None]
    complete: list[bool]


def naive(pairs: list[tuple[Sequence, Sequence]]) -> Naive:
    found = Naive([], set(), 0, [], [])
    for index, (a, b) in enumerate(pairs):
        divergence = None
        for position in range(max(a.length, b.length)):
            inside = position < a.length and position < b.length
            if not inside or a.tokens[position] != b.tokens[position]:
                divergence = position
                break
        found.divergence.append(divergence)
        first, complete = None, True
        for position in range(a.length if divergence is None else divergence):
            both = [bool(a.present[position, s] and b.present[position, s]) for s in range(S)]
            last = max((s for s in range(S) if both[s]), default=S - 1)
            for s in range(S):
                if not both[s]:
                    if first is None and (s < last or not any(both)):
                        complete = False
                    continue
                found.compared += 1
                if tuple(a.hashes[position, s]) != tuple(b.hashes[position, s]):
                    found.differing.add((index, position, s))
                    first = first or (position, s)
            logits = bool(a.has_logits[position] and b.has_logits[position])
            if first is None and logits and tuple(a.logits_hash[position]) != tuple(b.logits_hash[position]):
                first = position, S
        found.first.append(first)
        found.complete.append(complete)
    return found


@st.composite
def trace_pairs(draw: st.DrawFn) -> tuple[list[tuple[Sequence, Sequence]], list[int], int, int]:
    pairs: list[tuple[Sequence, Sequence]] = []
    for index in range(draw(st.integers(1, 3))):
        prompt, decode = draw(st.integers(1, 4)), draw(st.integers(0, 6))
        a, b = (sequence(index, S, prompt, decode, request_id=f"r{index}") for _ in "ab")
        at = st.integers(0, prompt + decode - 1)
        for _ in range(draw(st.integers(0, 4))):
            disturb(b, draw(at), draw(st.integers(0, S - 1)))
        for _ in range(draw(st.integers(0, 2))):
            disturb_logits(b, draw(at))
        for side in (a, b):
            for _ in range(draw(st.integers(0, 2))):
                side.present[draw(at), draw(st.integers(0, S - 1))] = False
            if draw(st.booleans()):
                side.present[: draw(st.integers(0, 2))] = False
        if draw(st.booleans()):
            b.tokens[draw(at)] += 1
        pairs.append((a, b.rows(0, draw(st.integers(1, prompt + decode)))))
    order = draw(st.permutations(range(len(pairs))))
    return pairs, list(order), draw(st.integers(1, 9)), draw(st.integers(1, 9))


@settings(max_examples=60)
@given(trace_pairs())
def test_finds_what_a_plain_loop_finds(
    case: tuple[list[tuple[Sequence, Sequence]], list[int], int, int],
) -> None:
    pairs, order, rows_a, rows_b = case
    expected = naive(pairs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        about = header(SITES, [a.request_id for a, _ in pairs])
        a = write_trace(path / "a.parquet", [a for a, _ in pairs], about, rows_a)
        b = write_trace(path / "b.parquet", [pairs[i][1] for i in order], about, rows_b)
        verdict = diverge(a, b, path / "out")
        sites = pq.read_table(path / "out" / "sites.parquet").to_pylist()
        tokens = pq.read_table(path / "out" / "tokens.parquet").to_pylist()
    assert {(row["pair"], row["position"], row["site"]) for row in sites} == expected.differing
    assert verdict.compared.rows_differing == len(sites) == len(expected.differing)
    assert verdict.compared.rows == expected.compared
    assert sum(row["sites_compared"] for row in tokens) == expected.compared
    parted = [(index, at) for index, at in enumerate(expected.divergence) if at is not None]
    if parted:
        assert verdict.first_token is not None
        assert (verdict.first_token.request_id, verdict.first_token.position) == (
            f"r{parted[0][0]}",
            parted[0][1],
        )
    else:
        assert verdict.first_token is None
    moved = [index for index, first in enumerate(expected.first) if first is not None]
    chosen = parted[0][0] if parted and parted[0][0] in moved else moved[0] if moved else None
    if chosen is None:
        assert verdict.first_site is None
    else:
        position, site = expected.first[chosen] or (0, 0)
        found = verdict.first_site
        assert found is not None
        name = "lm_head" if site == S else SITES[site].name
        assert (found.request_id, found.position, found.site) == (f"r{chosen}", position, name)
        assert found.is_origin == expected.complete[chosen]
    assert len({(row["pair"], row["position"]) for row in tokens}) == sum(
        max(a.length, b.length) for a, b in pairs
    )
    assert all(np.isfinite(row["rel_drift"]) for row in sites)
