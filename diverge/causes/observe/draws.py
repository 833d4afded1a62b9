"""How each side's sampler chose its tokens, taken again from what the traces hold: the recorded draw on the
recorded distribution, under several rules.

A rule is tested on every sampled step of a sequence, so that one coincidence proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ....schemas.findings.tokens import SamplingFilter
from ...comparison.align import IndexedSequence, row_of
from ...reading.columns import read_candidates, read_values
from ...reading.load import Candidates, Trace

MOST_STEPS = 256
"""Sampled steps of a sequence that are looked at."""
_WHOLE = 1e-5
"""Probability that candidates may lack, for float32 sums, where they are to be all there are."""
_CLOSE = 1e-5
"""Relative difference of logits that went through the same float32 operations."""


@dataclass(frozen=True)
class Step:
    """One sampled step. Arrays are over the recorded candidates, likeliest first."""

    token: int
    ids: np.ndarray  # int32[K]
    logits: np.ndarray  # float32[K]
    missing: float
    """Probability of all tokens that are not among the candidates, at temperature 1."""
    draw: float | None
    offset: int | None
    """Draws taken from the stream before this one."""
    top1_id: int | None
    """What the sampler saw as likeliest, after the logits processors."""
    top1_logit: float | None


_Bounds = Callable[[Step, float, set[int]], list[tuple[float, float]]]
"""Intervals of a filter's value that keep one of some numbers of candidates, at a temperature."""


@dataclass(frozen=True)
class Rule:
    """A way to choose, and how it fits one side.

    Attributes:
        tested: Steps at which the trace holds enough to judge.
        fits: Those at which it gives the token that was chosen.
    """

    tested: int
    fits: int

    @property
    def holds(self) -> bool:
        """It gives every token that could be tested."""
        return self.tested > 0 and self.fits == self.tested


@dataclass(frozen=True)
class Choices:
    """How one side's sequence was sampled."""

    steps: list[Step]
    first_offset: int | None
    """Draws taken from the stream before the sequence's first one."""

    def by_ids(self, temperature: float) -> Rule:
        """Every candidate counts, in the order of the token ids."""
        return _tested([_by_ids(step, temperature, None) for step in self.steps], self.steps)

    def by_probability(self, temperature: float) -> Rule:
        """Every candidate counts, the likeliest first."""
        return _tested([_by_probability(step, temperature) for step in self.steps], self.steps)

    def filters(self, temperature: float) -> list[SamplingFilter]:
        """The filters with which the order of ids gives every token."""
        if not self.steps or any(step.draw is None for step in self.steps):
            return []
        kept = [_sizes(step, temperature) for step in self.steps]
        found: list[SamplingFilter] = []
        top_k = set.intersection(*map(_top_k, self.steps, kept))
        # A filter that keeps everything is none, and one that keeps the likeliest alone is no sampling.
        top_k -= {len(step.ids) for step in self.steps}
        if top_k:
            found.append(SamplingFilter(name="top_k", low=float(min(top_k)), high=float(max(top_k))))
        bounds_of: tuple[tuple[Literal["top_p", "min_p"], _Bounds], ...]
        bounds_of = ("top_p", _nucleus), ("min_p", _relative)
        for name, span in bounds_of:
            bounds = [span(step, temperature, sizes) for step, sizes in zip(self.steps, kept, strict=True)]
            common = _common(bounds)
            if common is not None:
                found.append(SamplingFilter(name=name, low=common, high=common))
        return found


def choices(trace: Trace, sequence: IndexedSequence, first_step: int, positions: range) -> Choices:
    """Read how the tokens at some positions of a sequence were chosen.

    Args:
        trace: Where it stands.
        sequence: Which one.
        first_step: Position of its first generated token.
        positions: Of tokens; those that no draw chose are left out.
    """
    rows = [row_of(trace, sequence, position - 1) for position in positions]
    rows = [row for row in rows if row >= 0]
    known, sums = read_values(trace, "sampler", rows), read_values(trace, "logsumexp", rows)
    lists = read_candidates(trace, [(row, 1) for row in rows])
    steps: list[Step] = []
    for index, (position, sampler) in enumerate(zip(positions, known, strict=False)):
        step = _step(int(sequence.tokens[position]), sampler, lists, index, sums[index])
        if step is not None:
            steps.append(step)
    return Choices(steps, first_offset(trace, sequence, first_step))


def first_offset(trace: Trace, sequence: IndexedSequence, first_step: int) -> int | None:
    """Draws taken from the stream before a sequence's first one; None: not recorded."""
    sampler = read_values(trace, "sampler", [row_of(trace, sequence, first_step - 1)])[0]
    return None if sampler is None else sampler.get("rng_offset")


def _step(
    token: int, sampler: dict[str, Any] | None, lists: Candidates, index: int, logsumexp: float | None
) -> Step | None:
    row = lists.rows(index, index + 1)
    ids, logits = row.ids[0], row.logits[0]
    there = ~np.isnan(logits)
    if sampler is None:
        return None
    ids, logits = ids[there], logits[there]
    inside = float(np.exp(logits.astype(np.float64) - logsumexp).sum()) if logsumexp is not None else 0.0
    return Step(
        token=token,
        ids=ids,
        logits=logits,
        missing=max(0.0, 1.0 - inside),
        draw=sampler.get("draw"),
        offset=sampler.get("rng_offset"),
        top1_id=sampler.get("top1_id"),
        top1_logit=sampler.get("top1_logit"),
    )


def shifted_by(a: Choices, b: Choices) -> int | None:
    """How many draws B's stream is ahead of A's; None: it is a different stream, or too short to match."""
    one = [step.draw for step in a.steps]
    other = [step.draw for step in b.steps]
    for ahead in [n for size in range(1, len(one) - 1) for n in (size, -size)]:
        first, second = (one[ahead:], other) if ahead > 0 else (one, other[-ahead:])
        pairs = list(zip(first, second, strict=False))
        if len(pairs) > 1 and all(x is not None and x == y for x, y in pairs):
            return ahead
    return None


def scale_of(side: Choices) -> float | None:
    """The temperature that turns raw top-1 logits into what the sampler saw; None: no single one does."""
    found = [
        float(step.logits[0]) / step.top1_logit
        for step in side.steps
        if len(step.ids) and step.top1_id == step.ids[0] and step.top1_logit
    ]
    if not found or len(found) < len(side.steps):
        return None
    middle = sorted(found)[len(found) // 2]
    return middle if all(abs(value - middle) <= _CLOSE * abs(middle) for value in found) else None


def processed_alike(a: Step, b: Step) -> bool:
    """Both samplers saw the same likeliest token with the same logit."""
    if a.top1_id is None or b.top1_id is None or a.top1_logit is None or b.top1_logit is None:
        return True
    return a.top1_id == b.top1_id and math.isclose(a.top1_logit, b.top1_logit, rel_tol=_CLOSE)


def _tested(chosen: list[int | None], steps: list[Step]) -> Rule:
    known = [(token, step) for token, step in zip(chosen, steps, strict=True) if token is not None]
    return Rule(len(known), sum(token == step.token for token, step in known))


def _mass(step: Step, temperature: float) -> np.ndarray:
    """float64[K], relative to the likeliest; divided by the temperature in float32, as samplers do."""
    scaled = (step.logits / np.float32(temperature)).astype(np.float64)
    found: np.ndarray = np.exp(scaled - scaled[0])
    return found


def _by_ids(step: Step, temperature: float, keep: int | None) -> int | None:
    """The token that the draw gives in the order of ids; None: the trace does not hold enough."""
    if step.draw is None or (keep is None and step.missing > _WHOLE) or not len(step.ids):
        return None
    mass, ids = _mass(step, temperature)[:keep], step.ids[:keep]
    order = np.argsort(ids)
    total = np.cumsum(mass[order])
    place = int(np.searchsorted(total, step.draw * total[-1], side="right"))
    return int(ids[order[min(place, len(ids) - 1)]])


def _by_probability(step: Step, temperature: float) -> int | None:
    """The token that the draw gives from the likeliest down; None: it lies behind what the trace holds."""
    if step.draw is None or not len(step.ids) or (step.missing > _WHOLE and temperature != 1):
        return None
    total = np.cumsum(_mass(step, temperature))
    whole = total[-1] / (1 - step.missing) if step.missing > _WHOLE else total[-1]
    place = int(np.searchsorted(total, step.draw * whole, side="right"))
    if place == len(step.ids) and step.missing > _WHOLE:
        return None
    return int(step.ids[min(place, len(step.ids) - 1)])


def _sizes(step: Step, temperature: float) -> set[int]:
    """How many of the likeliest candidates may be kept so that the draw gives the chosen token."""
    return {keep for keep in range(1, len(step.ids) + 1) if _by_ids(step, temperature, keep) == step.token}


def _top_k(step: Step, sizes: set[int]) -> set[int]:
    """The top_k that keep one of these numbers of candidates.

    Some samplers keep exactly k, others all that tie with the k-th: coarse logits (bfloat16) tie often.
    """
    down = -step.logits
    up_to_tie = np.searchsorted(down, down, side="right")
    return sizes | {keep for keep, size in enumerate(up_to_tie.tolist(), 1) if size in sizes}


def _nucleus(step: Step, temperature: float, sizes: set[int]) -> list[tuple[float, float]]:
    """Intervals of top_p that keep one of these numbers of candidates."""
    mass = _mass(step, temperature)
    share = np.concatenate([[0.0], np.cumsum(mass) / mass.sum()])
    return [(float(share[size - 1]), float(share[size])) for size in sorted(sizes)]


def _relative(step: Step, temperature: float, sizes: set[int]) -> list[tuple[float, float]]:
    """Intervals of min_p likewise."""
    mass = np.concatenate([_mass(step, temperature), [0.0]])
    return [(float(mass[size]), float(mass[size - 1])) for size in sorted(sizes)]


def _common(bounds: list[list[tuple[float, float]]]) -> float | None:
    """A number below 1 that lies in an interval of every step; None: there is none."""
    edges = sorted({edge for spans in bounds for span in spans for edge in span})
    middles = [(low + high) / 2 for low, high in pairwise(edges) if high > low]
    for value in middles:
        if 0 < value < 1 - _WHOLE and all(any(low < value < high for low, high in spans) for spans in bounds):
            return value
    return None
