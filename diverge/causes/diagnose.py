"""From what was compared to the ranked causes: it collects what the rules read, and ranks what they find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...schemas.change import Change
from ...schemas.findings.rows import NotFinite
from ...schemas.findings.statement import SIDES
from ...schemas.reference import Reference
from ...schemas.sequences import Agreement
from ...schemas.verdict import Cause
from ..comparison.align import IndexedSequence, row_of
from ..comparison.tally import PairState, Tally
from ..reading.columns import RowReader, read_values
from ..reading.load import Trace
from .commands import Commands
from .evidence import SHAPES, Basis, RowFacts, Shape
from .first_difference import FirstDifferences
from .observe.observation import observe
from .observe.twins import OneTrace, repeats_differ
from .rank import rank


@dataclass(frozen=True)
class Compared:
    """Two traces, compared."""

    tally: Tally
    a: Trace
    b: Trace
    paths: tuple[Path, Path, Path]
    """Of A, B and the result, as commands name them."""
    changes: list[Change]
    """Fingerprint drift from A to B."""
    reference: Reference | None = None
    """How both sides lie to a reference trace, where there is one."""
    sequences: tuple[Sequence[IndexedSequence], Sequence[IndexedSequence]] | None = None
    """All sequences of A and B; None: those of the pairs."""
    agreement: Agreement | None = None
    """How often outputs agree; None: no request ran several times."""

    @property
    def sides(self) -> tuple[OneTrace, OneTrace]:
        """The sequences of each trace, to be compared among themselves."""
        pairs = [state.pair for state in self.tally.pairs]
        known = self.sequences or ([pair.a for pair in pairs], [pair.b for pair in pairs])
        return OneTrace("A", self.a, known[0]), OneTrace("B", self.b, known[1])


def diagnose(compared: Compared, first: FirstDifferences) -> list[Cause]:
    """The ranked causes of the first differences."""
    differs = first.differing is not None or compared.tally.largest > 0 or first.text is not None
    if first.token is None and first.site is None and not differs:
        return []
    a, b, token, parted = compared.a, compared.b, first.token, first.diverging
    deciding = None if parted is None or token is None else (parted, token.position - 1)
    moved = None if first.differing is None or first.site is None else (first.differing, first.site.position)
    path_a, path_b, result = map(str, compared.paths)
    sides = compared.sides
    return rank(
        Basis(
            commands=Commands(path_a, path_b, result, a.header, b.header),
            changes=compared.changes,
            sites=compared.tally.plan.sites,
            dtypes_b=compared.tally.plan.dtypes_b,
            first_token=token,
            first_site=first.site,
            first_text=first.text,
            differs=differs,
            logits_equal=None if deciding is None else _logits_equal(*deciding, a, b),
            deciding=None if deciding is None or deciding[1] < 0 else _facts(*deciding, a, b),
            differing=None if moved is None else _facts(*moved, a, b),
            not_finite=_not_finite(first),
            observed=observe(compared.tally, (a, b), parted, None if moved is None else moved[0], sides),
            repeats=[one for side in sides for one in repeats_differ(side, compared.agreement)],
            reference=compared.reference,
        )
    )


def _not_finite(first: FirstDifferences) -> list[NotFinite]:
    """NaN and infinity at the first differing row and in the deciding logits."""
    found: list[NotFinite] = []
    state, site, token = first.differing, first.site, first.token
    if state is not None and site is not None:
        for side, norm in zip(SIDES, state.first_norms or (), strict=False):
            if not math.isfinite(norm):
                found.append(NotFinite(site=site.label(), position=site.position, side=side, norm=norm))
    gap = None if token is None else token.max_abs_logit_diff
    if token is not None and gap is not None and not math.isfinite(gap):
        found.append(NotFinite(position=token.position))
    return found


def _logits_equal(state: PairState, position: int, a: Trace, b: Trace) -> bool | None:
    rows = row_of(a, state.pair.a, position), row_of(b, state.pair.b, position)
    if min(rows) < 0:
        return None
    hashes = [read_values(trace, "logits_hash", [row])[0] for trace, row in zip((a, b), rows, strict=True)]
    return None if None in hashes else hashes[0] == hashes[1]


def _from_cache(trace: Trace, sequence: IndexedSequence, position: int) -> int | None:
    """Tokens that were cached before the first row that a pass of this run computed."""
    for start in range(0, position + 1, _SEARCHED):
        rows = [row_of(trace, sequence, at) for at in range(start, min(start + _SEARCHED, position + 1))]
        cached = [value for value in read_values(trace, "cached_tokens", rows) if value is not None]
        if cached:
            return int(cached[0])
    return None


_SEARCHED = 256
"""Rows that are read at once."""


def _facts(state: PairState, position: int, a: Trace, b: Trace) -> tuple[RowFacts, RowFacts]:
    found: list[RowFacts] = []
    for trace, sequence in ((a, state.pair.a), (b, state.pair.b)):
        reader = RowReader(trace, [*SHAPES, "sampler"])
        row, start = (reader.read([(row_of(trace, sequence, at), 1)]).to_pylist()[0] for at in (position, 0))
        shape: dict[Shape, int | None] = {name: row[name] for name in SHAPES}
        # Padding of the prompt stays in the KV cache, so a decode step still computes beside it.
        padded = [one["padded_tokens"] for one in (row, start) if one["padded_tokens"] is not None]
        shape["padded_tokens"] = max(padded, default=None)
        found.append(RowFacts(shape, row["sampler"], _from_cache(trace, sequence, position)))
    return found[0], found[1]
