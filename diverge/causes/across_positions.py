"""What one site shows along a sequence, and where the other sequences begin to differ.

Only rows count whose inputs are equal: everything before the site is equal at their position.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..comparison.site_rows import SiteRowReader
from ..comparison.tally import PairState, Tally
from ..present.format import plural
from .size import EPSILON, ROUNDING

_ALIKE = 1e-2
"""Relative: differences of sketches that lie closer than this are one vector, but for rounding."""
_FEW = 3
"""Rows below which nothing is called constant."""
_NAMED = 4
"""Sequences that a sentence names."""


@dataclass(frozen=True)
class Along:
    """The differing rows of the first differing site, in the same sequence."""

    far: list[int] = field(default_factory=list)
    """Positions at which the drift is beyond rounding."""
    near: int = 0
    """How many further rows differ, by no more than rounding."""
    constant: bool = False
    """B's rows less A's are one vector: something constant is added, or missing."""

    def told(self) -> str:
        """Where the drift is large and where not, if both occur; else nothing."""
        if not self.far or not self.near:
            return ""
        where = f"position{'s' * (len(self.far) > 1)} {_spans(self.far)}"
        return (
            f"of {plural(len(self.far) + self.near, 'row')} that differ with equal inputs, {len(self.far)} "
            f"{'is' if len(self.far) == 1 else 'are'} beyond rounding ({where}), {self.near} within it"
        )


def along(
    rows: tuple[SiteRowReader, SiteRowReader], state: PairState, positions: np.ndarray, dtype: str
) -> Along:
    """Read the site's rows.

    Args:
        rows: Of A and of B.
        state: The pair, whose first differing site is looked at.
        positions: Those at which the site differs though its inputs are equal, ascending.
        dtype: Of the site.
    """
    epsilon = EPSILON.get(dtype)
    if epsilon is None or not len(positions):
        return Along()
    (a, norms_a), (b, norms_b) = (
        reader.column(sequence, positions, state.first_site)
        for reader, sequence in zip(rows, (state.pair.a, state.pair.b), strict=True)
    )
    gaps, size = b.astype(np.float64) - a, np.maximum(np.maximum(norms_a, norms_b), 1e-30)
    with np.errstate(all="ignore"):  # rows may hold NaN or infinity: those are far, and nothing constant
        drifts = np.linalg.norm(gaps, axis=1) / size
        large = ~(drifts <= ROUNDING * epsilon)
        mean = gaps.mean(axis=0)
        scatter = np.linalg.norm(gaps - mean, axis=1)
        # Rows are rounded after the constant was added.
        allowed = _ALIKE * np.linalg.norm(mean) + ROUNDING * epsilon * size
        constant = len(positions) >= _FEW and bool(large.all()) and bool((scatter <= allowed).all())
        constant = constant and bool(np.linalg.norm(mean) > 10 * (ROUNDING * epsilon * size).max())
    return Along(positions[large].tolist(), int(np.count_nonzero(~large)), constant)


@dataclass(frozen=True)
class Others:
    """The other compared sequences."""

    same_place: list[str] = field(default_factory=list)
    """Those that begin to differ at the same site and position."""
    same_site: list[tuple[str, int]] = field(default_factory=list)
    """Those that begin at the same site, and at which position."""
    elsewhere: list[tuple[str, int]] = field(default_factory=list)
    """Those that begin at another site, and at which position."""
    untouched: list[str] = field(default_factory=list)
    """Those in which nothing differs."""

    @property
    def differing(self) -> int:
        """How many differ."""
        return len(self.same_place) + len(self.same_site) + len(self.elsewhere)

    def told(self) -> list[str]:
        """Sentences; none where there is no other sequence."""
        found = []
        if self.differing and self.differing == len(self.same_place):
            begin = "begins" if len(self.same_place) == 1 else "begin"
            found.append(f"{_names(self.same_place)} {begin} to differ at the same site and position")
        elif self.differing:
            parts = [f"{_names(self.same_place)} at the same position"] if self.same_place else []
            parts += [_at(self.same_site)] if self.same_site else []
            if parts:
                found.append(f"it begins at this site in {' and '.join(parts)} too")
            if self.elsewhere:
                found.append(f"it begins at another site in {_at(self.elsewhere)}")
        if self.untouched:
            found.append(f"nothing differs in {_names(self.untouched)}")
        return found


def others(state: PairState, tally: Tally) -> Others:
    """Where the other sequences begin to differ."""
    found = Others()
    for other in tally.pairs:
        if other is state:
            continue
        request_id, sample = other.pair.a.key[:2]
        name = f"{request_id} sample {sample}" if sample else request_id
        at = other.first_position
        if at is None:
            if other.pair.divergence is None:
                found.untouched.append(name)
        elif other.first_site != state.first_site:
            found.elsewhere.append((name, at))
        elif at == state.first_position:
            found.same_place.append(name)
        else:
            found.same_site.append((name, at))
    return found


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _at(places: list[tuple[str, int]]) -> str:
    return _names([f"{name} at position {position}" for name, position in places])


def _spans(positions: list[int]) -> str:
    """`3–9, 12`."""
    spans: list[list[int]] = []
    for position in positions:
        if spans and position == spans[-1][1] + 1:
            spans[-1][1] = position
        else:
            spans.append([position, position])
    shown = [str(a) if a == b else f"{a}–{b}" for a, b in spans[:_NAMED]]
    return ", ".join(shown) + (", …" if len(spans) > _NAMED else "")
