"""How a difference goes on behind its first row: where it grows at once, and which of its origins die out.

Shapes: P positions of one sequence, S compared sites.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ....schemas.trace import Site
from ...comparison.site_plan import SitePlan, layer_number
from ...comparison.tabulate import PairRowReader
from ...comparison.tally import PairState
from .changed_logits import EPSILON, ROUNDING, in_ulps
from .routing import is_choice

_GROWS = 100.0
"""Times the median of the sites before: a module that only passes rounding on multiplies it by a few."""
_OVER_LARGEST = 10.0
"""Times the largest of them: a cancellation that made one site large makes the next large too."""
_RESOLVED = 0.01
"""In ULP: smaller drifts are counted as this one, for a ratio to nothing says nothing."""
_ROWS = 8
"""Rows from the first differing one on that are looked at, beside the first decode steps and the last row."""
_KEPT = re.compile(
    r"(^|[._])(k|v|kv|qkv|k_proj|v_proj|qkv_proj|kv_proj|c_attn|query_key_value|in_proj)([:#]|$)"
)
"""Sites whose rows stay in a cache: what differs there is read again at later positions."""


@dataclass(frozen=True)
class Jump:
    """A site whose drift is beyond rounding and far above that of all sites before it."""

    site: Site
    position: int
    drift: float
    before: float
    """Median drift of the differing sites before it, those of earlier rows among them."""

    @property
    def factor(self) -> float:
        """How many times larger the drift is there."""
        return self.drift / max(self.before, _RESOLVED * EPSILON[self.site.dtype])

    @property
    def ulps(self) -> float:
        """The drift in ULP of the site's dtype."""
        return in_ulps(self.site.dtype, self.drift) or 0.0


@dataclass(frozen=True)
class Absorbed:
    """Origins whose difference did not leave their layer."""

    count: int
    site: Site | None = None
    """Of the first origin whose difference goes on; None: no origin that was looked at does."""
    position: int | None = None


def jumps(
    rows: PairRowReader, state: PairState, plan: SitePlan, prompt_length: int, chosen_from: int | None
) -> list[Jump]:
    """The jumps of the first row that has any.

    Args:
        rows: Of both sides.
        state: A pair with a differing row.
        plan: The compared sites.
        prompt_length: Of its sequence.
        chosen_from: Position from which routers chose different experts, so that differences are no rounding.
    """
    at, pair = state.first_position, state.pair
    assert at is not None
    if plan.by_sketch.any():
        return []
    deciding = [] if pair.divergence is None else [pair.divergence - 1]
    wanted = {*range(at, at + _ROWS), prompt_length, prompt_length + 1, *deciding}
    before: list[float] = []
    for position in sorted(one for one in wanted if at <= one < pair.comparable):
        if chosen_from is not None and position >= chosen_from:
            break
        found = _of_row(rows, state, plan, position, before)
        if found:
            return found
    return []


def _of_row(
    rows: PairRowReader, state: PairState, plan: SitePlan, position: int, before: list[float]
) -> list[Jump]:
    """The jumps of one row. `before`: the drifts seen so far, to which its own are added."""
    (a, there_a), (b, there_b) = rows.hashes(state.pair, position, position + 1)
    unlike = ((a != b).any(axis=2) & there_a & there_b)[0]
    sites = np.array([site for site in np.flatnonzero(unlike) if plan.sites[site].dtype in EPSILON])
    if not len(sites):
        return []
    (left, norms_a), (right, norms_b) = rows.sketches(state.pair, position, sites)
    with np.errstate(all="ignore"):  # rows may hold NaN or infinity: those are no sizes
        gaps = np.linalg.norm(left.astype(np.float64) - right, axis=1)
        drifts = gaps / np.maximum(np.maximum(norms_a, norms_b), 1e-30)
    found: list[Jump] = []
    for index, drift in zip(sites.tolist(), drifts.tolist(), strict=True):
        site = plan.sites[index]
        if not np.isfinite(drift) or is_choice(site):
            break
        if before and (in_ulps(site.dtype, drift) or 0.0) > ROUNDING:
            median, least = float(np.median(before)), _RESOLVED * EPSILON[site.dtype]
            if drift > max(_GROWS * max(median, least), _OVER_LARGEST * max(before)):
                found.append(Jump(site, position, drift, median))
                before.clear()
        before.append(drift)
    return found


def absorbed(plan: SitePlan, unlike: np.ndarray, first: int, start: int) -> Absorbed | None:
    """Which origins die out before one goes on.

    An origin is a layer with a differing row behind a residual stream that is equal; its difference dies out
    where the layer's output is equal again and nothing of it stays in a cache.

    Args:
        plan: The compared sites.
        unlike: bool[P, S], where rows differ.
        first: Which of the P rows is the first that differs.
        start: Position of the first of the P rows.

    Returns:
        None: the first origin goes on, or no output of a layer was compared.
    """
    count = 0
    for row in range(first, len(unlike)):
        for origin, output, layer in _layers(plan, unlike[row]):
            kept = any(_KEPT.search(plan.sites[site].label()) for site in layer if unlike[row, site])
            if output is None or unlike[row, output] or kept:
                if not count:
                    return None
                return Absorbed(count, plan.sites[origin], start + row)
            count += 1
    return Absorbed(count) if count else None


def _layers(plan: SitePlan, unlike: np.ndarray) -> Iterable[tuple[int, int | None, list[int]]]:
    """The layers of a row with a differing site: the first of these, the layer's output, all its sites.

    `unlike`: bool[S]. A site outside the layers is one of its own, without an output.
    """
    groups: dict[int | str, list[int]] = {}
    for index, site in enumerate(plan.sites):
        layer = layer_number(site.name)
        groups.setdefault(site.name if layer is None else layer, []).append(index)
    for sites in groups.values():
        differing = [site for site in sites if unlike[site]]
        if differing:
            outputs = [site for site in sites if _is_output(plan.sites[site])]
            yield differing[0], outputs[-1] if outputs else None, sites


def _is_output(site: Site) -> bool:
    """The residual stream behind a layer: `layers.3`."""
    return not site.part and site.name.rpartition(".")[2].isdigit()
