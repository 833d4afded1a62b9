"""Causes that tell why one output is longer than the other."""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding

_LENGTH = ("max_tokens",)
_STOP = ("stop", "stop_token_ids", "ignore_eos", "min_tokens")


def length_limit(e: Evidence) -> Finding | None:
    """The side that ended first had reached a limit."""
    return _ended(e, "limit")


def stop_rule(e: Evidence) -> Finding | None:
    """The side that ended first had met a stop rule that the other did not heed."""
    return _ended(e, "stop")


def length(e: Evidence) -> Finding | None:
    """One output is longer, and no trace says by which rule the other ended."""
    return _ended(e, "")


def _ended(e: Evidence, asked: str) -> Finding | None:
    if e.first_token is None or not e.ended or e.prompts_differ:
        return None
    differences = {line.partition(":")[0]: line for line in e.sampling_differences}
    limits = [line for name, line in differences.items() if name in _LENGTH]
    stops = [line for name, line in differences.items() if name in _STOP]
    side = "AB".index(e.ended)
    result = e.seen.ends[side]
    reason = "" if result is None else result.reason
    kind = {"length": "limit", "stop": "stop"}.get(reason, "limit" if limits else "stop" if stops else "")
    if kind != asked:
        return None
    evidence = [f"{e.ended} ends before position {e.first_token.position}; up to there all tokens are equal"]
    if reason:
        evidence.append(f"it ended with the reason {reason!r}{_rule(e, side)}")
        other = e.seen.ends[1 - side]
        if other is not None:
            evidence.append(f"the other side went on and ended with the reason {other.reason!r}")
    evidence += limits + stops
    missing = (
        []
        if limits or stops or reason
        else ["the stop rules read the same in both traces: finish reasons would tell"]
    )
    return Finding(evidence, "high", missing, e.replay(), direct=True, label=_label(e, side, reason))


def _label(e: Evidence, side: int, reason: str) -> str | None:
    """Which side did not keep to what both requests state."""
    name, other = ("A", "B") if side == 0 else ("B", "A")
    limits = [e.sampling_of(index).get("max_tokens") for index in (0, 1)]
    stated = [None if limit is None else limit.resolved for limit in limits]
    step = None if e.first_token is None else e.first_token.step
    limit = stated[side]
    if reason == "length" and step is not None and isinstance(limit, int) and step < limit:
        return f"{name} stopped after {step} of the {limit} tokens that are stated"
    if reason == "stop" and _rule(e, side) and stated[0] == stated[1]:
        return f"{other} went on where a stated stop rule ended {name}"
    return None


def _rule(e: Evidence, side: int) -> str:
    """Which stated stop rule the end of a side's text meets, in words."""
    sampling, result = e.sampling_of(side), e.seen.ends[side]
    strings = sampling.get("stop")
    text = "" if result is None else result.text or ""
    if strings is not None and isinstance(strings.resolved, list):
        met = [stop for stop in strings.resolved if stop and stop in text]
        met = met or [stop for stop in strings.resolved if stop and text.rstrip().endswith(stop.rstrip())]
        if met:
            return f": the stop string {met[0]!r} ends its text"
    ids, last = sampling.get("stop_token_ids"), e.seen.last[side]
    if result is not None and result.reason == "stop" and ids is not None and last in (ids.resolved or []):
        return f": its last token, {last}, is one of the stated stop_token_ids"
    limit = sampling.get("max_tokens")
    if result is not None and result.reason == "length" and limit is not None:
        return f", where max_tokens={limit.resolved} is stated"
    return ""
