"""What damage goes with over many sequences: the length of the prompt modulo a block, a batch row, a
neighbour, the last row of the prompt.

Every property is tried on all sequences; what chance would show too, as many were tried, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from ..schemas.sequences import Dependence, Property
from .statistics import wilson

if TYPE_CHECKING:
    from ..schemas.sequences import Damage

BLOCKS = (8, 16, 32, 64, 128, 256, 512)
"""Sizes of cache blocks and tiles."""
_SIGNIFICANCE = 0.01
"""Of the exact test, over all properties that were tried."""
_LEAST_DAMAGED = 3
_SHOWN = 5


@dataclass(frozen=True)
class Case:
    """One pair of sequences, as far as damage may go with it."""

    name: str
    prompt: int
    """Tokens of the prompt."""
    damaged: bool
    first: int | None
    """Position of the first row of a site that differs; None also where only logits differ."""
    batch_row: int | None
    """In B, where the prompt ends."""
    neighbours: frozenset[str]
    """Requests beside it in B, as its envelope names them."""


def find_dependence(cases: Sequence[Case], damage: Damage) -> Dependence | None:
    """The property that damaged sequences have and the others lack; None: chance explains them all."""
    damaged = sum(case.damaged for case in cases)
    if damaged < _LEAST_DAMAGED:
        return None
    tried = {
        found: holds
        for found, holds in _properties(cases)
        if sum(holds) >= _LEAST_DAMAGED and len({cases[at].prompt for at, has in enumerate(holds) if has}) > 1
    }
    tried |= dict(_beginnings(cases))
    ranked = sorted(
        (_chance(found, cases, holds), index, found) for index, (found, holds) in enumerate(tried.items())
    )
    if not ranked or ranked[0][0] * len(tried) > _SIGNIFICANCE:
        return None
    return _described(cases, ranked[0][2], tried[ranked[0][2]], damage)


def _properties(cases: Sequence[Case]) -> Iterator[tuple[Property, tuple[bool, ...]]]:
    """Properties of a sequence that are known before it runs."""
    for block in BLOCKS:
        for remainder in sorted({case.prompt % block for case in cases if case.damaged}):
            yield (
                Property(kind="prompt length modulo", modulus=block, value=str(remainder)),
                tuple(case.prompt % block == remainder for case in cases),
            )
    for row in sorted({case.batch_row for case in cases if case.damaged and case.batch_row is not None}):
        holds = tuple(case.batch_row == row for case in cases)
        yield Property(kind="batch row", value=str(row)), holds
    for name, _ in Counter(name for case in cases if case.damaged for name in case.neighbours).most_common(
        64
    ):
        yield Property(kind="neighbour", value=name), tuple(name in case.neighbours for case in cases)


def _beginnings(cases: Sequence[Case]) -> Iterator[tuple[Property, tuple[bool, ...]]]:
    """Places where damage begins in a damaged sequence."""
    known = [case for case in cases if case.damaged and case.first is not None]
    if len(known) < _LEAST_DAMAGED or len({case.first for case in known}) < _LEAST_DAMAGED:
        return
    yield (
        Property(kind="begins at the last prompt row"),
        tuple(case.damaged and case.first == case.prompt - 1 for case in cases),
    )
    for block in BLOCKS:
        for remainder in sorted({case.first % block for case in known if case.first is not None}):
            yield (
                Property(kind="begins at a position modulo", modulus=block, value=str(remainder)),
                tuple(
                    case.damaged and case.first is not None and case.first % block == remainder
                    for case in cases
                ),
            )


def _is_beginning(found: Property) -> bool:
    return found.kind.startswith("begins")


def _chance(found: Property, cases: Sequence[Case], holds: Sequence[bool]) -> float:
    """How likely chance puts at least so many damaged sequences under a property."""
    damaged = [case for case in cases if case.damaged]
    both = sum(has and case.damaged for has, case in zip(holds, cases, strict=True))
    if _is_beginning(found):  # each at one of the positions of its prompt, or of a block
        places = max(2, min(case.prompt for case in damaged))
        odds = 1 / min(found.modulus or places, places)
        many = len(damaged)
        return sum(comb(many, k) * odds**k * (1 - odds) ** (many - k) for k in range(both, many + 1))
    # Fisher's exact test, one-sided: the tail of the hypergeometric distribution.
    total, having = len(cases), sum(holds)
    ways = sum(
        comb(having, k) * comb(total - having, len(damaged) - k)
        for k in range(both, min(having, len(damaged)) + 1)
    )
    return ways / comb(total, len(damaged))


def _described(cases: Sequence[Case], found: Property, holds: Sequence[bool], damage: Damage) -> Dependence:
    having = [case for case, has in zip(cases, holds, strict=True) if has]
    others = [case for case, has in zip(cases, holds, strict=True) if not has]
    if _is_beginning(found):
        others = [case for case in others if case.damaged]
        counted = wilson(len(having), len(having) + len(others))
        return Dependence(
            property=found, damage=damage, having=counted, exceptions=[case.name for case in others[:_SHOWN]]
        )
    return Dependence(
        property=found,
        damage=damage,
        having=wilson(sum(case.damaged for case in having), len(having)),
        others=wilson(sum(case.damaged for case in others), len(others)) if others else None,
        spared=[case.name for case in having if not case.damaged][:_SHOWN],
        exceptions=[case.name for case in others if case.damaged][:_SHOWN],
    )
