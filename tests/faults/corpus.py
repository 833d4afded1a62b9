"""Every case of the fault corpus, and the table that a run of it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from faults import (
    kinds_attention,
    kinds_cache,
    kinds_course,
    kinds_lane,
    kinds_modules,
    kinds_real,
    kinds_sampling,
    kinds_weights,
)
from faults.case import Case
from faults.lab import Seen
from faults.zoomed import op_named, proven
from rip.schemas.findings.execution import FieldChanged, TensorOfModule
from rip.schemas.findings.rows import (
    CacheBoundary,
    ConstantDifference,
    DriftGrows,
    ExpertsAtFault,
    OriginsAbsorbed,
    RoutingDiffers,
    RowRelation,
    StaleRow,
)
from rip.schemas.findings.statement import Statement
from rip.schemas.findings.tokens import (
    CandidatesFiltered,
    DrawStream,
    ProcessedLogits,
    PromptsDiffer,
    SequenceEnded,
)
from rip.schemas.verdict import Cause

NO_FAULT = "no fault"


def _evidence(kind: type[Statement], **fields: Any) -> Callable[[Cause], bool]:
    """Some evidence of a kind has these values; a function of a value must hold for it."""

    def holds(cause: Cause) -> bool:
        return any(
            isinstance(one, kind)
            and all(
                wanted(getattr(one, name)) if callable(wanted) else getattr(one, name) == wanted
                for name, wanted in fields.items()
            )
            for one in cause.evidence
        )

    return holds


def _filter(name: str) -> Callable[[Cause], bool]:
    return _evidence(CandidatesFiltered, side="B", filters=lambda found: name in [one.name for one in found])


def _not_applied(name: str) -> Callable[[Cause], bool]:
    return _evidence(ProcessedLogits, changed_by="A", not_applied=lambda found: str(found).startswith(name))


SHOWS: dict[str, Callable[[Cause], bool]] = {
    "bias dropped": _evidence(ConstantDifference),
    "whole output negated": _evidence(RowRelation, relation="negative"),
    "output scaled": _evidence(RowRelation, relation="scaled"),
    "weights of one expert": _evidence(ExpertsAtFault),
    "one expert flipped": _evidence(RoutingDiffers, experts_a=bool, experts_b=bool),
    "silent top_k": _filter("top_k"),
    "silent top_p": _filter("top_p"),
    "silent min_p": _filter("min_p"),
    "silent temperature": _evidence(
        ProcessedLogits,
        temperature_a=lambda found: found == pytest.approx(1, rel=1e-3),
        temperature_b=lambda found: found == pytest.approx(0.6, rel=1e-3),
    ),
    "RNG offset by one": _evidence(DrawStream, relation="shifted", ahead=1),
    "repetition penalty ignored": _not_applied("repetition_penalty"),
    "frequency penalty ignored": _not_applied("frequency_penalty"),
    "logit bias ignored": _not_applied("logit_bias"),
    "stop string ignored": _evidence(SequenceEnded, rule="stop"),
    "stop token ignored": _evidence(SequenceEnded, rule="stop_token_ids"),
    "one token more in the prompt": _evidence(PromptsDiffer, how="inserted", side="B", count=1),
    "template with one more space": _evidence(FieldChanged, section="template"),
    "template without its system prompt": _evidence(FieldChanged, section="template"),
    "two causes: batch and a module": _evidence(DriftGrows),
    "two causes: batch and weights": _evidence(TensorOfModule, role="grows"),
    "origin absorbed": _evidence(OriginsAbsorbed, count=1, site="layers.1.mlp.down_proj"),
    "stale output": _evidence(StaleRow),
    "prefix cache warm": _evidence(CacheBoundary, block_sizes=bool),
}
"""What the cause that is ranked first must show of some kinds, as data."""


def all_cases(real_model: bool) -> Iterator[Case]:
    """Planted faults, then pairs without one.

    Args:
        real_model: Also those on SmolLM2.
    """
    families = (
        kinds_weights,
        kinds_modules,
        kinds_attention,
        kinds_cache,
        kinds_sampling,
        kinds_lane,
        kinds_course,
    )
    for family in families:
        yield from family.cases()
    if real_model:
        yield from kinds_real.cases()
    yield from kinds_lane.no_fault()


def by_kind(real_model: bool = False) -> dict[str, list[Case]]:
    """The cases of each kind, in their order; pairs without a fault come last."""
    found: dict[str, list[Case]] = {}
    for case in all_cases(real_model):
        found.setdefault(case.kind, []).append(case)
    found[NO_FAULT] = found.pop(NO_FAULT)
    return found


def is_right(seen: Seen) -> bool:
    """What must hold in every case."""
    if seen.rewording_changes:
        return False
    if not seen.case.causes:
        return seen.quiet and not seen.changed
    zoomed = op_named(seen) is not False and proven(seen) is not False
    shows = SHOWS.get(seen.case.kind)
    said = shows is None or any(shows(cause) for cause in seen.verdict.causes[:1])
    return seen.changed and seen.site_exact is not False and seen.label_within(3) and said and zoomed


@dataclass(frozen=True)
class Judged:
    """What a run of the corpus keeps of a case.

    Attributes:
        planted: It has a fault.
        right: What must hold does.
        first: The right label is ranked first.
        three: It is among the first three.
        site_exact: As of `Seen`.
        op_named: As of `zoomed`.
        proven: As of `zoomed`.
        same_reworded: With nonsense for sentences the verdict is the same; None: not tried.
    """

    kind: str
    model: str
    planted: bool
    right: bool
    first: bool
    three: bool
    site_exact: bool | None
    op_named: bool | None
    proven: bool | None
    same_reworded: bool | None


def judged(seen: Seen) -> Judged:
    """Judge what came of a case."""
    case = seen.case
    return Judged(
        case.kind,
        case.model,
        bool(case.causes),
        is_right(seen),
        seen.label_within(1),
        seen.label_within(3),
        seen.site_exact,
        op_named(seen),
        proven(seen),
        None if seen.rewording_changes is None else not seen.rewording_changes,
    )


def table(cases: Iterable[Judged]) -> str:
    """A Markdown table of kinds: cases, exact sites, labels first and among three, and what zoom says.

    Below it: alarms without a fault, and how many cases nonsense in place of sentences leaves as they are.
    """
    names = ("kind", "cases", "models", "site exact", "label first", "label in three", "op named",
             "transplant proven")  # fmt: skip
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    kinds: dict[str, list[Judged]] = {}
    for one in cases:
        kinds.setdefault(one.kind, []).append(one)
    faults = [one for found in kinds.values() for one in found if one.planted]
    for kind, found in kinds.items():
        if kind != NO_FAULT:
            rows.append(_row(kind, found))
    rows.append(_row(f"**all {len(kinds) - (NO_FAULT in kinds)} kinds**", faults))
    pairs = kinds.get(NO_FAULT, [])
    quiet = sum(one.right for one in pairs)
    same = _share([one.same_reworded for found in kinds.values() for one in found])
    return "\n".join(
        [
            *rows,
            "",
            f"Without a fault: {len(pairs)} pairs, {len(pairs) - quiet} alarms.",
            f"With nonsense in place of every sentence: the same verdict in {same} cases.",
        ]
    )


def _row(name: str, found: list[Judged]) -> str:
    counts = [
        _share([one.site_exact for one in found]),
        _share([one.first for one in found]),
        _share([one.three for one in found]),
        _share([one.op_named for one in found]),
        _share([one.proven for one in found]),
    ]
    models = len({one.model for one in found})
    return f"| {name} | {len(found)} | {models} | {' | '.join(counts)} |"


def _share(answers: Sequence[bool | None]) -> str:
    """How many of those that say yes or no say yes."""
    told = [answer for answer in answers if answer is not None]
    return f"{sum(told)} of {len(told)}" if told else "–"
