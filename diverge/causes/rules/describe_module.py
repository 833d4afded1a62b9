"""What a first difference is: which kind of module it is in, what is wrong with it, how large it is."""

from __future__ import annotations

import re
from typing import Literal

from ....schemas.findings.evidence import Evidence
from ....schemas.findings.rows import (
    ChannelsDiffering,
    ConstantDifference,
    DriftGrows,
    DriftSize,
    ExpertsAtFault,
    LogitsDiffering,
    MovedLogit,
    OriginsAbsorbed,
    OtherRows,
    RowLikeness,
    RowsBySize,
    TokenRow,
)
from ....schemas.findings.statement import ModuleKind
from ....schemas.trace import SKETCH_SIZE, Site
from ....schemas.verdict import Fault, Place, Subject
from ..evidence import Basis
from ..observe.changed_logits import FEWER_BITS, OTHER_VALUES, ROUNDING, in_ulps
from ..observe.course import Jump
from ..observe.row_pattern import RowPattern

_KINDS: tuple[tuple[str, ModuleKind], ...] = (
    (r":attn$", "attention"),
    (r"(^|\.)(embed_tokens|wte)$|Embedding$", "embeddings"),
    (r"[Rr]otary|(^|\.)wpe", "positions"),
    (r"Router", "router"),
    (r"Experts|(^|\.)experts$", "experts"),
    (r"[Nn]orm(\s|$)|(^|\.)ln_", "norm"),
    (r"lm_head", "output head"),
    (r"Linear|Conv1D|_proj(\s|$)", "linear layer"),
    (r"[Aa]ct", "activation"),
)
"""What a site is of, by its label and the class of its module."""
_GATE = re.compile(r"(^|\.)gate$")
_TABLE_OF_POSITIONS = re.compile(r"wpe|[Rr]otary")


def _is_table_of_positions(site: Site) -> bool:
    return any(_TABLE_OF_POSITIONS.search(name) for name in (site.label(), site.module))


def kind_of(site: Site, with_experts: bool = False) -> ModuleKind:
    """What kind of module a site is of; `module`: none that is known.

    Args:
        site: The site.
        with_experts: Experts were seen beside it: then a module called `gate` is their router.
    """
    if site.part == "attn":
        return "attention"
    if with_experts and _GATE.search(site.name):
        return "router"
    name = re.sub(r":\d+$", "", site.label())
    for pattern, kind in _KINDS:
        if re.search(pattern, name) or re.search(pattern, site.module):
            if kind == "embeddings" and _is_table_of_positions(site):
                continue
            return kind
    return "module"


def subject(pattern: RowPattern, fault: Fault) -> Subject:
    """The module of the first difference, with what is wrong with it."""
    return Subject(
        site=pattern.site.label(),
        module=kind_of(pattern.site, pattern.with_experts),
        fault=fault,
        position=pattern.position,
        token=pattern.token,
        equal_before=pattern.equal_before,
        within_rounding=is_rounding(pattern),
        other_values=has_other_values(pattern),
    )


def fault_of(pattern: RowPattern) -> Fault:
    """What is wrong with the module, as far as the rows show it."""
    if pattern.relation is not None:
        return "row relation"
    if pattern.across.constant:
        return "constant"
    if pattern.experts:
        return "experts"
    if pattern.logits.agreed and 0 < pattern.logits.differing <= len(pattern.logits.tokens):
        return "token rows"
    if pattern.lanes == 1:
        return "one channel"
    return "rounding" if is_rounding(pattern) else "unknown"


def has_other_values(pattern: RowPattern) -> bool:
    """Most of the first differing row is something else: no loss of precision."""
    return pattern.drift is not None and pattern.drift >= OTHER_VALUES


def is_attention(pattern: RowPattern | None) -> bool:
    """The first difference is the output of an attention, before its projection."""
    return pattern is not None and pattern.site.part == "attn"


def is_rounding(pattern: RowPattern) -> bool:
    """The drift is known, and a different kernel of the same module leaves as much."""
    return pattern.ulps is not None and pattern.ulps <= ROUNDING


def beyond_rounding(pattern: RowPattern | None) -> bool:
    """The first differing row is farther off than a different kernel of the same module leaves it."""
    return pattern is not None and pattern.ulps is not None and pattern.ulps > ROUNDING


def stands_alone(basis: Basis) -> bool:
    """An origin, and nothing in settings, shapes or environment differs."""
    alone = not (basis.setting_differences or basis.circumstances or basis.shape_differences())
    site = basis.first_site
    return alone and site is not None and site.is_origin and not basis.not_finite


def drift_size(pattern: RowPattern | None) -> list[Evidence]:
    """How large the drift of the module is, with equal inputs."""
    if pattern is None or pattern.ulps is None or pattern.drift is None:
        return []
    if pattern.relation is not None and pattern.relation.relation in ("scaled", "negative"):
        return []  # what the row is of A's says more than an estimate
    reading: Literal["below resolution", "within rounding", "fewer bits", "beyond rounding", "other values"]
    low, high = FEWER_BITS
    if not pattern.drift:
        reading = "below resolution"
    elif pattern.ulps <= ROUNDING:
        reading = "within rounding"
    elif low < pattern.drift < high and pattern.position == 0 and pattern.lanes != 1:
        reading = "fewer bits"
    elif pattern.drift < OTHER_VALUES:
        reading = "beyond rounding"
    else:
        reading = "other values"
    return [DriftSize(rel_drift=pattern.drift, ulps=pattern.ulps, dtype=pattern.site.dtype, reading=reading)]


def goes_on(pattern: RowPattern | None) -> list[Evidence]:
    """Which origins die out before one goes on."""
    found = None if pattern is None else pattern.absorbed
    if found is None:
        return []
    site = None if found.site is None else found.site.label()
    return [OriginsAbsorbed(count=found.count, site=site, position=found.position)]


def grows(jump: Jump) -> DriftGrows:
    """A jump, as evidence."""
    return DriftGrows(
        site=jump.site.label(),
        position=jump.position,
        rel_drift=jump.drift,
        ulps=jump.ulps,
        dtype=jump.site.dtype,
        before=jump.before,
        factor=jump.factor,
    )


def place_of(jump: Jump) -> Place:
    """A jump, as the place of a cause."""
    return Place(
        role="grows",
        site=jump.site.label(),
        position=jump.position,
        rel_drift=jump.drift,
        ulps=jump.ulps,
        within_rounding=False,
        factor=jump.factor,
    )


def beginning(basis: Basis) -> Place | None:
    """The first differing row, as the place of a cause."""
    site, pattern = basis.first_site, basis.observed.pattern
    if site is None:
        return None
    ulps = None if pattern is None else pattern.ulps
    return Place(
        role="begins",
        site=site.label(),
        position=site.position,
        rel_drift=site.rel_drift,
        ulps=ulps,
        within_rounding=None if ulps is None else ulps <= ROUNDING,
    )


def drift_beyond_rounding(site: Site, position: int, drift: float) -> DriftSize:
    """The drift of a site that is known to be beyond rounding."""
    ulps = in_ulps(site.dtype, drift) or 0.0
    return DriftSize(
        rel_drift=drift,
        ulps=ulps,
        dtype=site.dtype,
        reading="beyond rounding",
        site=site.label(),
        position=position,
    )


def row_difference_evidence(pattern: RowPattern) -> list[Evidence]:
    """What of the row differs."""
    found: list[Evidence] = []
    relation = None if pattern.relation is None else pattern.relation.relation
    exact = relation in ("negative", "zeros", "scaled")
    if pattern.likeness is not None and not exact and has_other_values(pattern):
        ratio, cosine = pattern.likeness
        found.append(RowLikeness(norm_ratio=ratio, cosine=cosine))
    if pattern.relation is not None:
        found.append(pattern.relation)
    if pattern.across.constant:
        found.append(ConstantDifference(positions=len(pattern.across.far)))
    lanes = pattern.lanes_differing
    if lanes is not None and len(lanes) < SKETCH_SIZE // 2:
        found.append(ChannelsDiffering(lanes=lanes, modulus=SKETCH_SIZE))
    if pattern.experts:
        found.append(ExpertsAtFault(experts=pattern.experts))
    return found


def logits_differing(basis: Basis, pattern: RowPattern) -> list[Evidence]:
    """Which logits differ, where the output head is all that does."""
    head, texts = pattern.logits, basis.headers[0].token_text
    if not head.differing:
        return []
    listed = head.tokens if head.differing <= len(head.tokens) else []
    tokens = [MovedLogit(token=token, token_text=texts.get(str(token)), a=a, b=b) for token, a, b in listed]
    return [LogitsDiffering(common=head.common, differing=head.differing, tokens=tokens)]


def other_rows(pattern: RowPattern) -> list[Evidence]:
    """Where else in its sequence the site differs or does not."""
    later = pattern.equal_after + pattern.differing_after
    if not (pattern.equal_before or pattern.equal_after):
        return []
    return [
        OtherRows(
            equal_before=pattern.equal_before,
            later_equal=pattern.equal_after if later else None,
            later_differing=pattern.differing_after if later else None,
        )
    ]


def rows_by_size(pattern: RowPattern) -> list[Evidence]:
    """Where the drift is large and where not, if both occur."""
    across = pattern.across
    return [RowsBySize(beyond=across.far, within=across.near)] if across.far and across.near else []


def others(pattern: RowPattern | None) -> list[Evidence]:
    """Where other sequences begin to differ."""
    return [] if pattern is None or pattern.others is None else [pattern.others]


def elsewhere(pattern: RowPattern) -> list[Evidence]:
    """Where else the site differs or does not, in this sequence and in others."""
    found: list[Evidence] = []
    if kind_of(pattern.site) == "embeddings":
        found.append(TokenRow(token=pattern.token, later_positions=len(pattern.later_positions)))
    return [*found, *other_rows(pattern), *rows_by_size(pattern), *others(pattern)]
