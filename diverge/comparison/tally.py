"""Adding up compared batches: totals by site, the first difference of each pair, what each level rests on.

Batches arrive in order. Memory depends on the number of sites and of pairs, not on their length.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .align import Pair
from .site_plan import SitePlan
from .sites import SiteRows
from .token_rows import TokenRows

LOGITS = -1
"""Index of the pseudo-site behind all sites: the logits, known by their hash."""
LOGITS_SITE = "lm_head"
"""Name of that pseudo-site."""

# Drift histogram: the top bits of a float32 are its exponent and 5 bits of mantissa, so 32 bins an octave.
_SHIFT = 18
_LOWEST = int(np.float32(2.0**-40).view(np.uint32)) >> _SHIFT
_BINS = (int(np.float32(2.0**4).view(np.uint32)) >> _SHIFT) - _LOWEST


@dataclass
class PairState:
    """What is known of one pair so far."""

    pair: Pair
    first_position: int | None = None
    """Position of the first differing row."""
    first_site: int = 0
    """Its site: index into the plan, or LOGITS."""
    first_drift: float | None = None
    first_norms: tuple[float, float] | None = None
    """Euclidean norms of that row in A and B; not finite where the row is not."""
    holes: int = 0
    """Rows missing on either side before the first differing one."""
    first_hole: tuple[int, int] | None = None
    """(position, site) of the first of them."""
    logprob_position: int | None = None
    """Position of the first row whose log-probabilities differ at all."""
    logprob_gap: float = 0.0
    """Largest difference there, nats."""
    logits_position: int | None = None
    """Position of the first row whose logits are known to differ (by hash, else by the top-K)."""
    flip: int | None = None
    """First position whose token was forced though the two sides' own top candidates differ."""

    def begin_at(
        self, position: int, site: int, drift: float | None, norms: tuple[float, float] | None
    ) -> None:
        """Name the pair's first differing row.

        Args:
            position: Its position.
            site: Index into the plan, or LOGITS.
            drift: Its drift; None: not known.
            norms: Its Euclidean norms in A and B.
        """
        self.first_position, self.first_site = position, site
        self.first_drift, self.first_norms = drift, norms

    def add_gaps(self, position: int, logits_differ: np.ndarray, logprob_gap: np.ndarray) -> None:
        """Add N rows from `position` on: bool[N], and float32[N], NaN where not known."""
        if self.logits_position is None and logits_differ.any():
            self.logits_position = position + int(logits_differ.argmax())
        differs = logprob_gap > 0
        if self.logprob_position is None and differs.any():
            index = int(differs.argmax())
            self.logprob_position, self.logprob_gap = position + index, float(logprob_gap[index])


@dataclass
class Tally:
    """Everything that the verdict rests on."""

    plan: SitePlan
    pairs: list[PairState]
    positions: int = 0
    rows: int = 0
    rows_differing: int = 0
    logits_compared: int = 0
    logits_differing: int = 0
    steps_with_logits: int = 0
    """Comparable rows for which a logit (or logprob) difference is known."""
    steps_by_logit: int = 0
    """Those of them for which logits are in both traces."""
    steps_by_logprob: int = 0
    """Those for which only log-probabilities are, and no logits hash is equal."""
    steps_identical: int = 0
    """Those of them whose candidates and all their numbers are the same, bit for bit."""
    largest: float = 0.0
    """Largest such difference: of logits, where these are known, else of log-probabilities."""
    largest_at: tuple[int, int] | None = None
    """(pair, position of the row)."""
    largest_logit: float | None = None
    """None: no logit is in both traces."""
    largest_logprob: float | None = None
    """Likewise; nats."""
    forced: int = 0
    """Generated tokens that were forced on either side, at compared positions."""
    forced_unknown: int = 0
    """Those for which the own choice of a side is not recorded."""
    generated: int = 0
    over: tuple[int, int] | None = None
    """(pair, position of the row) of the first difference above the tolerance."""
    tolerance: float | None = None
    compared_by_site: np.ndarray = field(init=False)
    differing_by_site: np.ndarray = field(init=False)
    first_by_site: np.ndarray = field(init=False)
    """int32[S, 2]: pair and position of the first differing row; −1: none."""
    max_by_site: np.ndarray = field(init=False)
    histogram: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        s = len(self.plan.sites)
        self.compared_by_site, self.differing_by_site = np.zeros(s, np.int64), np.zeros(s, np.int64)
        self.first_by_site = np.full((s, 2), -1, np.int32)
        self.max_by_site = np.full(s, np.nan, np.float32)
        self.histogram = np.zeros((s, _BINS), np.int64)

    def add(self, tokens: TokenRows, sites: SiteRows) -> None:
        """Add one batch."""
        comparable = tokens.comparable
        differing = tokens.logits_known & ~tokens.logits_equal
        self.positions += int(np.count_nonzero(comparable))
        self.logits_compared += int(np.count_nonzero(tokens.logits_known))
        self.logits_differing += int(np.count_nonzero(differing))
        gap, logprob_gap = self._add_gaps(tokens)
        self._add_forced(tokens)
        if len(self.plan.sites):
            self._add_sites(tokens, sites)
        at = row = 0
        for run in tokens.runs:
            state, here = self.pairs[run.pair.index], slice(at, at + run.comparable)
            if state.first_position is None:
                self._first_of_pair(
                    state, run.position, differing[here], sites, slice(row, row + run.comparable)
                )
            state.add_gaps(run.position, differing[here] | (gap[here] > 0), logprob_gap[here])
            at += run.count
            row += run.comparable

    def only(self, state: PairState) -> Tally:
        """The same as if this were the only pair, as far as causes use it: totals are those of all pairs."""
        alone = copy.copy(self)
        alone.pairs = [state]
        if state.logits_position is None and state.logprob_position is None:
            alone.largest = 0.0
        return alone

    @property
    def kind(self) -> Literal["logit", "logprob", "logit or logprob"]:
        """What the differences are differences of."""
        if not self.steps_by_logprob:
            return "logit"
        return "logit or logprob" if self.steps_by_logit else "logprob"

    def quantiles(self, share: float) -> list[float | None]:
        """A quantile of the drifts of every site, within 3 %; None for a site that has none."""
        counts = np.cumsum(self.histogram, axis=1)
        wanted = share * (counts[:, -1] - 1) + 1
        index = np.count_nonzero(counts < wanted[:, None], axis=1)
        edges = (np.stack([index, index + 1]).astype(np.uint32) + np.uint32(_LOWEST)) << np.uint32(_SHIFT)
        low, high = edges.view(np.float32).astype(np.float64)
        middle = np.where(index == 0, 0, np.minimum(np.sqrt(low * high), self.max_by_site))
        return [
            None if math.isnan(top) else float(value)
            for value, top in zip(middle, self.max_by_site, strict=True)
        ]

    def _first_of_pair(
        self, state: PairState, position: int, logits: np.ndarray, sites: SiteRows, rows: slice
    ) -> None:
        """Search one of a pair's runs for its first differing row, and count what is missing before it."""
        first_site = sites.first_site[rows] if len(self.plan.sites) else np.full(len(logits), -1, np.int16)
        moved = (first_site >= 0) | logits
        found = int(moved.argmax()) if moved.any() else None
        if len(self.plan.sites):
            before = slice(rows.start, rows.stop if found is None else rows.start + found)
            holes = sites.holes[before]
            missing = int(holes.sum())
            if missing and state.first_hole is None:
                index = int((holes > 0).argmax())
                state.first_hole = position + index, int(sites.first_hole[rows.start + index])
            state.holes += missing
        if found is None:
            return
        site, row = int(first_site[found]), rows.start + found
        if len(self.plan.sites):
            hole = int(sites.first_hole[row])
            if sites.holes[row] and (site < 0 or hole < site):
                state.holes += 1
                state.first_hole = state.first_hole or (position + found, hole)
        if site < 0:
            state.begin_at(position + found, LOGITS, None, None)
            return
        at = int(np.searchsorted(sites.row, row))
        drift = float(sites.rel_drift[at]) if self.plan.sketches else None
        state.begin_at(position + found, site, drift, (float(sites.l2_a[at]), float(sites.l2_b[at])))

    def _add_gaps(self, tokens: TokenRows) -> tuple[np.ndarray, np.ndarray]:
        """Differences of the rows of a batch: of logits, else of log-probabilities; and of these alone.

        Both float32[N]; NaN where unknown.
        """
        by_hash = tokens.logits_known & tokens.logits_equal
        logit = np.where(by_hash, np.float32(0), tokens.gap.max_abs_logit)
        # Equal logits have equal log-probabilities, whatever a server's rounding makes of them.
        logprob = np.where(by_hash & ~np.isnan(tokens.gap.max_abs_logprob), 0, tokens.gap.max_abs_logprob)
        gap = np.where(np.isnan(logit), logprob, logit)
        gap[~tokens.comparable] = np.nan
        known = ~np.isnan(gap)
        self.largest_logit = _larger(self.largest_logit, logit[tokens.comparable])
        self.largest_logprob = _larger(self.largest_logprob, logprob[tokens.comparable])
        if known.any():
            self.steps_with_logits += int(np.count_nonzero(known))
            by_logit = known & ~np.isnan(tokens.gap.max_abs_logit)
            self.steps_by_logit += int(np.count_nonzero(by_logit))
            self.steps_by_logprob += int(np.count_nonzero(known & ~by_logit & ~by_hash))
            self.steps_identical += int(np.count_nonzero(known & (tokens.gap.identical | by_hash)))
            top = int(np.nanargmax(gap))
            if gap[top] > self.largest:
                self.largest = float(gap[top])
                self.largest_at = int(tokens.pair[top]), int(tokens.position[top])
            if self.tolerance is not None and self.over is None:
                over = known & (gap > self.tolerance)
                if over.any():
                    index = int(over.argmax())
                    self.over = int(tokens.pair[index]), int(tokens.position[index])
        return gap, logprob

    def _add_forced(self, tokens: TokenRows) -> None:
        generated = tokens.step >= 0
        self.generated += int(np.count_nonzero(generated))
        forced = tokens.forced & generated & tokens.comparable
        if not forced.any():
            return
        self.forced += int(np.count_nonzero(forced))
        both, equal = tokens.choice_known, tokens.choice_equal
        self.forced_unknown += int(np.count_nonzero(forced & ~both))
        for index in np.flatnonzero(forced & both & ~equal).tolist():
            state = self.pairs[tokens.pair[index]]
            if state.flip is None:
                state.flip = int(tokens.position[index])

    def _add_sites(self, tokens: TokenRows, sites: SiteRows) -> None:
        s = len(self.plan.sites)
        self.rows += int(sites.compared.sum())
        self.rows_differing += int(sites.differing.sum())
        self.compared_by_site += sites.compared_by_site
        if not len(sites.row):
            return
        site, drift = sites.site, sites.rel_drift
        unseen = (self.first_by_site[:, 0] < 0) & ~self.plan.by_sketch
        if unseen.any():
            first = np.full(s, -1)
            first[site[::-1]] = np.arange(len(site))[::-1]
            new = np.flatnonzero(unseen & (first >= 0))
            index = np.flatnonzero(tokens.comparable)[sites.row[first[new]]]
            self.first_by_site[new, 0], self.first_by_site[new, 1] = (
                tokens.pair[index],
                tokens.position[index],
            )
        counts = np.bincount(site, minlength=s)
        counts[self.plan.by_sketch] = 0
        self.differing_by_site += counts
        np.fmax.at(self.max_by_site, site, drift)
        bins = (drift.view(np.uint32) >> np.uint32(_SHIFT)).astype(np.int64) - _LOWEST
        known = ~np.isnan(drift)
        if not known.all():
            site, bins = site[known], bins[known]
        keys = site.astype(np.int64) * _BINS + np.clip(bins, 0, _BINS - 1)
        np.add.at(self.histogram.reshape(-1), keys, 1)


def _larger(known: float | None, values: np.ndarray) -> float | None:
    """The larger of what was known and the values that are not NaN."""
    values = values[~np.isnan(values)]
    if not len(values):
        return known
    return max(float(values.max()), known or 0.0)
