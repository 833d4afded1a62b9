"""`diverge` against a plain loop in Python, on random traces with random differences."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes.traces import Sequence, disturb, disturb_logits, header, llama_sites, sequence, write_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from rip.diverge.compare import diverge
from rip.diverge.comparison import sites
from rip.diverge.reading import site_columns

SITES = llama_sites(1)
S = len(SITES)


@dataclass
class Naive:
    """What a plain loop over positions and sites finds."""

    divergence: list[int | None]
    differing: dict[tuple[int, int, int], float]
    """(pair, position, site): relative drift."""
    compared: int
    first: list[tuple[int, int] | None]
    complete: list[bool]


def naive(pairs: list[tuple[Sequence, Sequence]]) -> Naive:
    found = Naive([], {}, 0, [], [])
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
                    gap = float(np.linalg.norm(a.sketch[position, s] - b.sketch[position, s]))
                    found.differing[index, position, s] = gap / max(a.l2[position, s], b.l2[position, s])
                    first = first or (position, s)
            logits = bool(a.has_logits[position] and b.has_logits[position])
            if first is None and logits and tuple(a.logits_hash[position]) != tuple(b.logits_hash[position]):
                first = position, S
        found.first.append(first)
        found.complete.append(complete)
    return found


@dataclass
class Case:
    """Two traces: their sequences, how B's stand in its file, and rows in a row group."""

    pairs: list[tuple[Sequence, Sequence]]
    order: list[int]
    sites: list[int]
    rows_a: int
    rows_b: int
    gap: int
    sketches: int
    """What is read at a time, made small so that there are many pieces."""


def reordered(one: Sequence, sites: list[int]) -> Sequence:
    """The same sequence with its sites in a different order."""
    by_site = {name: getattr(one, name)[:, sites] for name in ("hashes", "present", "l2", "absmax", "sketch")}
    return Sequence(**{**vars(one), **by_site})


@st.composite
def trace_pairs(draw: st.DrawFn) -> Case:
    pairs: list[tuple[Sequence, Sequence]] = []
    for index in range(draw(st.integers(1, 3))):
        prompt, decode = draw(st.integers(1, 4)), draw(st.integers(0, 6))
        a, b = (sequence(index, S, prompt, decode, request_id=f"r{index}") for _ in "ab")
        at = st.integers(0, prompt + decode - 1)
        for _ in range(draw(st.integers(0, 4))):
            disturb(b, draw(at), draw(st.integers(0, S - 1)))
        if draw(st.booleans()):
            for position, site in np.ndindex(prompt + decode, S):
                disturb(b, position, site)
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
    order_b = draw(st.just(range(S)) | st.permutations(range(S)))
    rows = st.integers(1, 9)
    gap, sketches = draw(st.integers(0, 20)), draw(st.integers(1, 30))
    return Case(pairs, list(order), list(order_b), draw(rows), draw(rows), gap, sketches)


def _step(one: Sequence, position: int) -> int:
    return position - one.prompt_length


@settings(max_examples=100)
@given(trace_pairs())
def test_finds_what_a_plain_loop_finds(case: Case) -> None:
    pairs = case.pairs
    expected = naive(pairs)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_columns, "GAP", case.gap)
        patch.setattr(sites, "_SKETCHES", case.sketches)
        path = Path(folder)
        names = [a.request_id for a, _ in pairs]
        a = write_trace(path / "a.parquet", [a for a, _ in pairs], header(SITES, names), case.rows_a)
        about_b = header([SITES[s] for s in case.sites], names)
        in_b = [reordered(pairs[i][1], case.sites) for i in case.order]
        b = write_trace(path / "b.parquet", in_b, about_b, case.rows_b)
        verdict = diverge(a, b, path / "out")
        rows = pq.read_table(path / "out" / "sites.parquet").to_pylist()
        tokens = pq.read_table(path / "out" / "tokens.parquet").to_pylist()
    found = {(row["pair"], row["position"], row["site"]): row["rel_drift"] for row in rows}
    assert found == pytest.approx(expected.differing, rel=1e-4)
    assert verdict.compared.rows_differing == len(rows) == len(expected.differing)
    assert verdict.compared.rows == expected.compared
    assert sum(row["sites_compared"] for row in tokens) == expected.compared
    parted = [(index, at) for index, at in enumerate(expected.divergence) if at is not None]
    parted.sort(key=lambda one: (one[1] >= pairs[one[0]][1].length, max(_step(pairs[one[0]][0], one[1]), -1)))
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
        first = verdict.first_site
        assert first is not None
        name = "lm_head" if site == S else SITES[site].name
        assert (first.request_id, first.position, first.site) == (f"r{chosen}", position, name)
        assert first.is_origin == expected.complete[chosen]
    assert len({(row["pair"], row["position"]) for row in tokens}) == sum(
        max(a.length, b.length) for a, b in pairs
    )
