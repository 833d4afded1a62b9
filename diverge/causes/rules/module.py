"""Causes that the rows around the first difference show: the module itself, positions, routing, single rows,
and rows and runs that do not repeat themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....schemas.findings.evidence import Conclusion, Evidence
from ....schemas.findings.rows import EqualSequences, OtherRows, RoutingDiffers, RowsShifted, StaleRow
from ....schemas.findings.statement import SIDES
from ....schemas.findings.unseen import Missing, NoEvidence
from ....schemas.verdict import Fault
from ..evidence import Basis
from ..observe.routing import Routing, is_choice
from .describe_module import (
    beyond_rounding,
    drift_size,
    elsewhere,
    fault_of,
    goes_on,
    grows,
    is_attention,
    is_rounding,
    kind_of,
    logits_differing,
    other_rows,
    others,
    place_of,
    row_difference_evidence,
    rows_by_size,
    stands_alone,
    subject,
)
from .execution import decode_path, kv_cache
from .finding import Finding
from .model import tensors_at


def not_finite(basis: Basis) -> Finding | None:
    """NaN or infinity."""
    if not basis.not_finite:
        return None
    evidence: list[Evidence] = [*basis.not_finite, *others(basis.observed.pattern)]
    return Finding(evidence, "high", confirm=basis.commands.show_norms(), direct=True)


def not_repeatable(basis: Basis) -> Finding | None:
    """Runs of one request on one side, under equal conditions, give different rows or outputs."""
    found = _of_twins(basis, in_one_batch=False)
    if found is None or any(one.passes == "equal" for one in basis.repeats) or _rows_differ(basis, False):
        return found
    return replace(found, missing=[*found.missing, NoEvidence(kind="forward passes")])


def batch_rows(basis: Basis) -> Finding | None:
    """Sequences with the same tokens in one pass give different rows on one side."""
    found = _of_twins(basis, in_one_batch=True)
    pattern = basis.observed.pattern
    if found is None or not basis.shape_differences("batch_size") or beyond_rounding(pattern):
        return found
    # A batch of another shape rounds differently from row to row too: its shape says more.
    return replace(found, confidence="medium", direct=False)


def _rows_differ(basis: Basis, in_one_batch: bool) -> list[EqualSequences]:
    """What the sequences of each side with the same tokens show, where some of their rows differ."""
    pattern = basis.observed.pattern
    twins = [] if pattern is None else [one for one in pattern.twins if one.in_one_batch == in_one_batch]
    return twins if any(one.differing for one in twins) else []


def _of_twins(basis: Basis, in_one_batch: bool) -> Finding | None:
    repeats = [one for one in basis.repeats if (one.passes == "one pass") == in_one_batch]
    twins = _rows_differ(basis, in_one_batch)
    if not repeats and not twins:
        return None
    evidence: list[Evidence] = [*repeats, *twins]
    sides = {one.side for one in repeats} | {one.side for one in twins if one.differing}
    if len(sides) == len(SIDES):
        evidence.append(Conclusion(what="within one side's own scatter"))
    return Finding(
        [*evidence, *drift_size(basis.observed.pattern)],
        "high",
        confirm=basis.commands.replay(repeat=8),
        direct=True,
    )


def routing(basis: Basis) -> Finding | None:
    """A router whose inputs are equal chose different experts."""
    site, pattern = basis.first_site, basis.observed.pattern
    if site is None or pattern is None or not site.is_origin or not is_choice(pattern.site):
        return None
    chosen = pattern.routing or Routing(site.position, pattern.site)
    differ = _routing_differs(chosen, inputs_equal=True).model_copy(
        update={"site": site.label(), "position": site.position}
    )
    if pattern.routing is None:
        differ = differ.model_copy(update={"differing": None, "compared": None})
    evidence = [differ, *others(pattern), Conclusion(what="follows from the routing")]
    return Finding(evidence, "high", confirm=basis.commands.replay(repeat=3), direct=True)


def routing_behind(basis: Basis) -> Finding | None:
    """A difference from elsewhere made a router choose different experts, which makes it large."""
    pattern = basis.observed.pattern
    if pattern is None or pattern.routing is None or routing(basis) is not None:
        return None
    evidence: list[Evidence] = [
        _routing_differs(pattern.routing, inputs_equal=False),
        basis.first_difference("earlier"),
    ]
    return Finding(evidence, "medium", confirm=basis.commands.in_mode("golden-decode"))


def _routing_differs(chosen: Routing, inputs_equal: bool) -> RoutingDiffers:
    a, b = chosen.experts or (None, None)
    return RoutingDiffers(
        site=chosen.site.label(),
        position=chosen.position,
        experts_a=a,
        experts_b=b,
        inputs_equal=inputs_equal,
        differing=chosen.differing if inputs_equal else None,
        compared=chosen.compared if inputs_equal else None,
    )


def positions(basis: Basis) -> Finding | None:
    """The table of positions gives other rows: different position ids, or a different table."""
    site, pattern = basis.first_site, basis.observed.pattern
    if site is None or pattern is None or not site.is_origin or kind_of(pattern.site) != "positions":
        return None
    pads = basis.shape("padded_tokens")
    padded = pads[1] - pads[0] if pads is not None and pads[0] != pads[1] else None
    evidence: list[Evidence] = [
        RowsShifted(site=site.label(), position=pattern.position, shift=pattern.shift, padded=padded)
    ]
    if pattern.shift is not None:
        if pattern.equal_before:
            evidence.append(OtherRows(equal_before=pattern.equal_before))
        evidence += others(pattern)
    elif pattern.position == 1:
        evidence.append(Conclusion(what="angles of the positions"))
    if padded is None:
        return Finding(evidence, "high", confirm=basis.commands.replay(repeat=3), direct=True)
    alone = basis.commands.replay(neighbours=0, batch_size=1)
    return Finding(evidence, "high", confirm=alone, direct=True, interpretation="same setting as A")


def stale_output(basis: Basis) -> Finding | None:
    """A row that repeats one of B's own earlier rows, while its inputs differ."""
    site, pattern = basis.first_site, basis.observed.pattern
    if site is None or pattern is None or pattern.repeats is None or not beyond_rounding(pattern):
        return None
    if pattern.relation is not None and pattern.relation.relation == "zeros":
        return None  # rows of zeros repeat each other
    if kind_of(pattern.site) == "positions" or is_choice(pattern.site):
        return None
    evidence = [
        StaleRow(site=site.label(), position=site.position, earlier=pattern.repeats),
        *other_rows(pattern),
        *others(pattern),
    ]
    return Finding(evidence, "high", confirm=basis.commands.replay(repeat=3), direct=True)


def one_row(basis: Basis) -> Finding | None:
    """A module without memory gave wrong rows at some positions only."""
    pattern = basis.observed.pattern
    if not stands_alone(basis) or pattern is None or not pattern.equal_before:
        return None
    if not beyond_rounding(pattern) or is_attention(pattern) or kind_of(pattern.site) in _LOOKED_UP:
        return None
    if any(rule(basis) for rule in (decode_path, positions, batch_rows, not_repeatable, stale_output)):
        return None
    evidence = [
        *other_rows(pattern),
        *drift_size(pattern),
        *row_difference_evidence(pattern),
        *rows_by_size(pattern),
        *others(pattern),
    ]
    fault: Fault = (
        "single row" if not pattern.differing_after else "some rows" if pattern.equal_after else "rows onward"
    )
    return Finding(
        evidence,
        "medium",
        confirm=basis.commands.replay(repeat=3),
        subject=subject(pattern, fault),
    )


def drift_grows(basis: Basis) -> Finding | None:
    """The drift begins as rounding and jumps beyond it at one module, which no other cause explains."""
    pattern = basis.observed.pattern
    if pattern is None or not pattern.jumps or not is_rounding(pattern) or basis.not_finite:
        return None
    if kv_cache(basis) is not None or not_repeatable(basis) is not None:
        return None
    owned = tensors_at(basis)
    # Where nothing surrounds it, a module whose later rows are farther off is the same finding: `module`.
    own = {pattern.site.label()} if stands_alone(basis) else set()
    found = [jump for jump in pattern.jumps if jump.site.label() not in {*owned, *own}]
    if not found:
        return None
    shapes = basis.shape_differences()
    alone = any(one.name == "batch_size" for one in shapes)
    evidence: list[Evidence] = [
        *(grows(jump) for jump in found),
        basis.first_difference("earlier"),
        *shapes,
        Conclusion(what="not of rounding"),
        *others(pattern),
    ]
    return Finding(
        evidence,
        "high",
        confirm=basis.commands.replay(neighbours=0, batch_size=1)
        if alone
        else basis.commands.replay(repeat=3),
        place=place_of(found[0]),
        interpretation="module computes it otherwise" if alone else None,
    )


_LOOKED_UP = ("embeddings", "experts", "positions", "output head")
"""What uses other weights for other tokens."""
_MORE_EXACT: tuple[Callable[[Basis], Finding | None], ...] = (
    not_repeatable,
    batch_rows,
    routing,
    positions,
    kv_cache,
    decode_path,
    stale_output,
    one_row,
)
"""Causes that say more than `module`."""


def module(basis: Basis) -> Finding | None:
    """An origin with equal inputs, shapes and settings, of which nothing says more."""
    site, pattern = basis.first_site, basis.observed.pattern
    if site is None or not site.is_origin or not stands_alone(basis):
        return None
    if any(rule(basis) is not None for rule in _MORE_EXACT):
        return None
    evidence: list[Evidence] = [basis.first_difference("origin")]
    if pattern is not None:
        evidence += [
            *drift_size(pattern),
            *goes_on(pattern),
            *row_difference_evidence(pattern),
            *logits_differing(basis, pattern),
            *elsewhere(pattern),
        ]
    evidence.append(Conclusion(what="module or not repeatable"))
    missing: list[Missing] = [] if basis.has_fingerprints else [NoEvidence(kind="fingerprint", of="weights")]
    return Finding(
        evidence,
        "medium",
        missing,
        basis.commands.replay(repeat=3),
        subject=None if pattern is None else subject(pattern, fault_of(pattern)),
    )
