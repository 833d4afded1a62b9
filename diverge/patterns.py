"""Patterns over all pairs: which sequences differ, since when, and with which cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ..schemas.sequences import Agreement, Damage, Dependence, DriftJump, Patterns
from ..schemas.trace import Request, Site, TraceHeader
from ..schemas.verdict import Cause
from .causes.diagnose import Compared, diagnose
from .causes.first_difference import first_differences
from .comparison.align import IndexedSequence, row_of
from .comparison.align import plan as plan_runs
from .comparison.site_plan import layer_number
from .comparison.sites import SiteComparer, SiteRows
from .comparison.tally import LOGITS, LOGITS_SITE, PairState, Tally
from .comparison.token_rows import TokenRows
from .dependences import Case, find_dependence
from .reading.columns import RowReader
from .reading.load import Trace
from .result_folder import arrow_schema
from .statistics import half_life, jump_of, leaves_range, survival, wilson

_EARLIER_POSITIONS = 64
"""Positions before a jump that its sites are compared with."""
_AT_DIVERGENCE = ("margin_a", "margin_b", "max_abs_logit_diff")
_SHAPES = ("batch_size_a", "batch_size_b")
_SHOWN_POINTS = 12
_MOST_CASES = 4096
"""Sequences in which is searched for what damage goes with."""


@dataclass(frozen=True)
class _Drifts:
    """Drift of the watched site at rows that differ, in order of pair and position."""

    pair: np.ndarray  # int32[D]
    position: np.ndarray  # int32[D]
    drift: np.ndarray  # float32[D]


class SequenceFacts:
    """Gathers, batch by batch, what a row of `sequences.parquet` needs."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._watched = watched_site(tally.plan.sites) if tally.plan.sketches else None
        self._prompt = np.full(len(tally.pairs), -1, np.int32)
        self._found: dict[str, dict[int, Any]] = {name: {} for name in (*_AT_DIVERGENCE, *_SHAPES)}
        self._series: list[_Drifts] = []

    def add(self, tokens: TokenRows, sites: SiteRows) -> None:
        """Add one batch."""
        at = 0
        for run in tokens.runs:
            pair, last = run.pair, at + run.count - 1
            if tokens.step[last] >= 0:
                self._prompt[pair.index] = int(tokens.position[last]) - int(tokens.step[last])
            divergence = pair.divergence
            if divergence is not None and run.position <= divergence < run.position + run.count:
                self._keep(_AT_DIVERGENCE, tokens, pair.index, at + divergence - run.position)
            # The row before a token chose it: the last token itself is never fed to a model.
            deciding = (pair.length - 1 if divergence is None else divergence) - 1
            if run.position <= deciding < run.position + run.count:
                self._keep(_SHAPES, tokens, pair.index, at + deciding - run.position)
            at += run.count
        if self._watched is not None and len(sites.row):
            hits = np.flatnonzero(sites.site == self._watched)
            if len(hits):
                rows = np.flatnonzero(tokens.comparable)[sites.row[hits]]
                self._series.append(_Drifts(tokens.pair[rows], tokens.position[rows], sites.rel_drift[hits]))

    def _keep(self, names: tuple[str, ...], tokens: TokenRows, pair: int, row: int) -> None:
        for name in names:
            self._found[name][pair] = tokens.columns[name][row].as_py()

    @property
    def prompt_lengths(self) -> np.ndarray:
        """int32 for each pair: tokens before the first generated one; −1 where nothing was generated."""
        return self._prompt

    def rows(self, headers: tuple[TraceHeader, TraceHeader], causes: dict[int, list[str]]) -> pa.RecordBatch:
        """The rows of `sequences.parquet`.

        Args:
            headers: Of A and B, for the replicas that the envelopes name.
            causes: Ids of the causes of each diverging sequence that was diagnosed.
        """
        replicas = [_replicas(header) for header in headers]
        rows = [self._row(state, replicas, causes) for state in self._tally.pairs]
        return pa.RecordBatch.from_pylist(rows, schema=arrow_schema("sequences"))

    def _row(
        self, state: PairState, replicas: list[dict[str, str]], causes: dict[int, list[str]]
    ) -> dict[str, Any]:
        pair = state.pair
        prompt = int(self._prompt[pair.index])
        generated = pair.length if prompt < 0 else prompt
        name = None
        if state.first_position is not None:
            site = state.first_site
            name = LOGITS_SITE if site == LOGITS else self._tally.plan.sites[site].label()
        found = causes.get(pair.index)
        return {
            "pair": pair.index,
            "request_id": pair.a.key[0],
            "sample": pair.a.key[1],
            "cell": pair.a.key[2],
            "prompt_tokens": min(generated, pair.length),
            "positions": pair.comparable,
            "steps": max(0, pair.comparable - generated),
            "diverged": pair.divergence is not None,
            "divergence_position": pair.divergence,
            "divergence_step": None
            if pair.divergence is None or pair.divergence < generated
            else pair.divergence - generated,
            **{name: values.get(pair.index) for name, values in self._found.items()},
            "first_site": name,
            "first_layer": None if name is None else layer_number(name),
            "first_site_position": state.first_position,
            "first_drift": state.first_drift,
            "cause": found[0] if found else None,
            "causes": ", ".join(found) if found is not None else None,
            "replica_a": replicas[0].get(pair.a.key[0]),
            "replica_b": replicas[1].get(pair.a.key[0]),
        }

    def patterns(self, a: Trace, b: Trace, causes: dict[int, list[str]]) -> Patterns | None:
        """What the sequences show together; None where none was compared by tokens."""
        states = self._tally.pairs
        if not states:
            return None
        times: list[tuple[int, bool]] = []
        for state in states:
            prompt, parted = int(self._prompt[state.pair.index]), state.pair.divergence
            if prompt >= 0 and (parted is None or parted >= prompt):
                times.append(((state.pair.length if parted is None else parted) - prompt, parted is not None))
        curve = survival(times)
        diverging = [state for state in states if state.pair.divergence is not None]
        joined = self._joined()
        jumps = [] if joined is None else self._jumps(joined)
        first = Counter(found[0] if found else "unknown" for found in causes.values())
        watched = "" if self._watched is None else self._tally.plan.sites[self._watched].label()
        return Patterns(
            sequences=len(states),
            diverging=wilson(len(diverging), len(states)),
            survival=_thinned(curve),
            half_at=half_life(curve),
            causes=dict(first.most_common()),
            not_diagnosed=len(diverging) - len(causes),
            watched_site=watched if joined is not None else "",
            growth=None if joined is None else _growth(joined),
            jumps=len(jumps),
            jump=None if joined is None or not jumps else self._drift_jump(max(jumps), joined, a, b, watched),
            dependence=self._dependence(b),
        )

    def _dependence(self, b: Trace) -> Dependence | None:
        """What damage goes with: parting tokens, else (where none or all part) rows that differ."""
        states = [state for state in self._tally.pairs if self._prompt[state.pair.index] > 0][:_MOST_CASES]
        parted = sum(state.pair.divergence is not None for state in states)
        damage: Damage = "tokens part" if 0 < parted < len(states) else "rows differ"
        neighbours = _neighbours(b.header)
        prompts = [int(self._prompt[state.pair.index]) for state in states]
        rows = [row_of(b, state.pair.b, prompt - 1) for state, prompt in zip(states, prompts, strict=True)]
        reader = RowReader(b, ["batch_row"])
        places = reader.read([(row, 1) for row in rows]).column("batch_row").to_pylist()
        cases = []
        for state, prompt, place in zip(states, prompts, places, strict=True):
            name, sample, _ = state.pair.a.key
            cases.append(
                Case(
                    name=name if not sample else f"{name}, sample {sample}",
                    prompt=prompt,
                    damaged=(state.pair.divergence if damage == "tokens part" else state.first_position)
                    is not None,
                    first=None if state.first_site == LOGITS else state.first_position,
                    batch_row=place,
                    neighbours=neighbours.get(name, frozenset()),
                )
            )
        return find_dependence(cases, damage)

    def _joined(self) -> _Drifts | None:
        if not self._series:
            return None
        whole = [
            np.concatenate([getattr(one, name) for one in self._series])
            for name in ("pair", "position", "drift")
        ]
        finite = np.isfinite(whole[2]) & (whole[2] > 0)
        pair, position, drift = (column[finite] for column in whole)
        return _Drifts(pair, position, drift) if len(pair) else None

    def _jumps(self, drifts: _Drifts) -> list[tuple[float, int]]:
        """(log of the leap, index into the drifts) of each sequence that has one."""
        edges = [0, *(np.flatnonzero(np.diff(drifts.pair)) + 1).tolist(), len(drifts.pair)]
        found: list[tuple[float, int]] = []
        for start, stop in pairwise(edges):
            leap = jump_of(drifts.drift[start:stop])
            if leap is not None:
                found.append((leap[0], start + leap[1]))
        return found

    def _drift_jump(
        self, leap: tuple[float, int], drifts: _Drifts, a: Trace, b: Trace, watched: str
    ) -> DriftJump:
        """Name the jump's position and the first site that jumps there."""
        at = leap[1]
        state, position = self._tally.pairs[int(drifts.pair[at])], int(drifts.position[at])
        before = (drifts.pair == state.pair.index) & (drifts.position < position)
        prompt = int(self._prompt[state.pair.index])
        site = self._first_jumping(state, position, a, b)
        return DriftJump(
            request_id=state.pair.a.key[0],
            sample=state.pair.a.key[1],
            position=position,
            step=position - prompt if 0 <= prompt <= position else None,
            site=watched if site is None else site,
            drift=float(drifts.drift[at]),
            before=float(drifts.drift[before].max()),
        )

    def _first_jumping(self, state: PairState, position: int, a: Trace, b: Trace) -> str | None:
        """The first site whose drift leaves its range at a position: the rows are compared once more."""
        plan = self._tally.plan
        comparer = SiteComparer(a, b, plan)
        values = np.zeros((_EARLIER_POSITIONS + 1, len(plan.sites)), np.float32)
        begin = max(0, position - _EARLIER_POSITIONS)
        try:
            for batch in plan_runs([state.pair], a, b, 1 << 14):
                if batch[-1].position + batch[-1].count <= begin or batch[0].position > position:
                    continue
                positions = np.concatenate(
                    [np.arange(run.position, run.position + run.comparable) for run in batch]
                )
                found = comparer.compare(batch)
                here = positions[found.row]
                near = (here >= begin) & (here <= position)
                values[here[near] - begin, found.site[near]] = found.rel_drift[near]
        finally:
            comparer.close()
        moved = leaves_range(values[: position - begin], values[position - begin])
        return plan.sites[int(moved.argmax())].label() if moved.any() else None


def watched_site(sites: Sequence[Site]) -> int | None:
    """Whose drift is followed: the residual stream behind the last layer, else the last site."""
    whole = [
        index
        for index, site in enumerate(sites)
        if not site.part and not site.occurrence and site.name.rpartition(".")[2].isdigit()
    ]
    return whole[-1] if whole else len(sites) - 1 if sites else None


def _growth(drifts: _Drifts) -> float | None:
    """Median drift in the last quarter of each sequence's differing rows, over that in the first."""
    _, first, count = np.unique(drifts.pair, return_index=True, return_counts=True)
    within = (np.arange(len(drifts.pair)) - np.repeat(first, count)) / np.repeat(count, count)
    early, late = drifts.drift[within < 0.25], drifts.drift[within >= 0.75]
    if min(len(early), len(late)) < _LEAST_ROWS:
        return None
    ratio = float(np.median(late)) / float(np.median(early))
    return ratio if math.isfinite(ratio) else None


_LEAST_ROWS = 4
"""Rows of a quarter without which it has no median worth reporting."""


def _thinned(curve: list[Any]) -> list[Any]:
    """At most `_SHOWN_POINTS` of the points, the first and the last among them."""
    if len(curve) <= _SHOWN_POINTS:
        return curve
    return [curve[index] for index in np.linspace(0, len(curve) - 1, _SHOWN_POINTS).astype(int).tolist()]


def _neighbours(header: TraceHeader) -> dict[str, frozenset[str]]:
    """The requests beside each request, as the envelopes name them."""
    found: dict[str, frozenset[str]] = {}
    for request in header.requests:
        context = (request.envelope or {}).get("context")
        named = context.get("neighbours") if isinstance(context, dict) else None
        if isinstance(named, list):
            found[request.request_id] = frozenset(str(one) for one in named)
    return found


def _replicas(header: TraceHeader) -> dict[str, str]:
    """The replica that answered, as the envelopes name it, by request."""
    found: dict[str, str] = {}
    for request in header.requests:
        context = (request.envelope or {}).get("context")
        replica = context.get("replica_id") if isinstance(context, dict) else None
        if isinstance(replica, str):
            found[request.request_id] = replica
    return found


MOST_DIAGNOSED = 1000
"""Diverging sequences that are diagnosed."""


def causes_by_sequence(
    compared: Compared, first: list[Cause], telling: PairState | None
) -> dict[int, list[str]]:
    """Ids of the causes, by rank, of each of the first `MOST_DIAGNOSED` diverging pairs.

    Args:
        compared: Two traces, compared.
        first: The causes of the whole comparison.
        telling: The diverging pair that these are of.
    """
    tally, a, b = compared.tally, compared.a, compared.b
    diverged = [state for state in tally.pairs if state.pair.divergence is not None][:MOST_DIAGNOSED]
    requests = _by_request(a), _by_request(b)
    samples = [_samples(side.sequences) for side in compared.sides]
    found: dict[int, list[str]] = {}
    for state in diverged:
        if state is telling and state.first_position is not None:
            found[state.pair.index] = [cause.id for cause in first]
            continue
        request_id = state.pair.a.key[0]
        one, other = (_only(trace, state, known) for trace, known in zip((a, b), requests, strict=True))
        alone = replace(
            compared,
            tally=tally.only(state),
            a=one,
            b=other,
            sequences=(samples[0].get(request_id, []), samples[1].get(request_id, [])),
            agreement=_of_request(compared.agreement, request_id),
        )
        ranked = diagnose(alone, first_differences(alone.tally, one, other))
        found[state.pair.index] = [cause.id for cause in ranked]
    return found


def _by_request(trace: Trace) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in trace.header.requests:
        found.setdefault(request.request_id, []).append(request)
    return found


def _samples(sequences: Sequence[IndexedSequence]) -> dict[str, list[IndexedSequence]]:
    found: dict[str, list[IndexedSequence]] = {}
    for sequence in sequences:
        found.setdefault(sequence.key[0], []).append(sequence)
    return found


def _of_request(found: Agreement | None, request_id: str) -> Agreement | None:
    """How the outputs of one request agree."""
    if found is None:
        return None
    return found.model_copy(
        update={"requests": [one for one in found.requests if one.request_id == request_id]}
    )


def _only(trace: Trace, state: PairState, known: dict[str, list[Request]]) -> Trace:
    """The trace as if this request were its only one: causes go through all that the header lists."""
    requests = known.get(state.pair.a.key[0], [])
    return replace(trace, header=trace.header.model_copy(update={"requests": requests}))
