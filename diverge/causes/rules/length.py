"""Causes why one output is longer than the other."""

from __future__ import annotations

from typing import Any, Literal

from ....schemas.findings.evidence import Evidence
from ....schemas.findings.statement import SIDES
from ....schemas.findings.tokens import SequenceEnded
from ....schemas.findings.unseen import Missing, NoEvidence
from ..evidence import Basis
from ..settings import OF_LENGTH, OF_STOPPING
from .finding import Finding

Rule = Literal["stop", "stop_token_ids", "max_tokens"]


def length_limit(basis: Basis) -> Finding | None:
    """The side that ended first had reached a limit."""
    return _ended(basis, "limit")


def stop_rule(basis: Basis) -> Finding | None:
    """The side that ended first had met a stop rule that the other did not apply."""
    return _ended(basis, "stop")


def length(basis: Basis) -> Finding | None:
    """One output is longer, and no trace says by which rule the other ended."""
    return _ended(basis, "")


def _ended(basis: Basis, wanted: Literal["limit", "stop", ""]) -> Finding | None:
    token, side = basis.first_token, basis.ended
    if token is None or side is None or basis.prompts_differ:
        return None
    limits = [one for one in basis.sampling_differences if one.name in OF_LENGTH]
    stops = [one for one in basis.sampling_differences if one.name in OF_STOPPING]
    result, other = basis.observed.ends[side], basis.observed.ends[1 - side]
    reason = (result.reason if result is not None else None) or None
    by_reason = {"length": "limit", "stop": "stop"}.get(reason or "")
    kind = by_reason or ("limit" if limits else "stop" if stops else "")
    if kind != wanted:
        return None
    stated = [one.resolved if (one := sampling.get("max_tokens")) else None for sampling in basis.sampling]
    rule = _rule(basis, side)
    evidence: list[Evidence] = [
        SequenceEnded(
            side=SIDES[side],
            position=token.position,
            step=token.step,
            reason=reason,
            rule=None if rule is None else rule[0],
            rule_value=None if rule is None else rule[1],
            limit=stated[side] if isinstance(stated[side], int) else None,
            same_limit=stated[0] == stated[1],
            other_reason=other.reason if reason and other is not None else None,
        ),
        *limits,
        *stops,
    ]
    missing: list[Missing] = [] if limits or stops or reason else [NoEvidence(kind="finish reasons")]
    return Finding(evidence, "high", missing, basis.commands.replay(), direct=True)


def _rule(basis: Basis, side: int) -> tuple[Rule, Any] | None:
    """Which stated rule the end of a side's output meets, and its value."""
    sampling, result = basis.sampling[side], basis.observed.ends[side]
    if result is None:
        return None
    strings, text = sampling.get("stop"), result.text or ""
    if strings is not None and isinstance(strings.resolved, list):
        met = [stop for stop in strings.resolved if stop and stop in text]
        met = met or [stop for stop in strings.resolved if stop and text.rstrip().endswith(stop.rstrip())]
        if met:
            return "stop", met[0]
    ids, last = sampling.get("stop_token_ids"), basis.observed.last[side]
    if result.reason == "stop" and ids is not None and last in (ids.resolved or []):
        return "stop_token_ids", last
    limit = sampling.get("max_tokens")
    if result.reason == "length" and limit is not None:
        return "max_tokens", limit.resolved
    return None
