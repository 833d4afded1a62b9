"""Whether one run of a search differs from the reference, by the verdict of their comparison."""

from __future__ import annotations

from ...schemas.findings.statement import Location
from ...schemas.narrow import NarrowLevel, RunDifference
from ...schemas.verdict import Verdict


def judge(verdict: Verdict) -> tuple[dict[NarrowLevel, bool], dict[NarrowLevel, RunDifference]]:
    """Does the run diverge, by level, and where first.

    Where an engine returns less than a level needs, what it returns decides: texts without token ids,
    log-probabilities without hashes.

    Args:
        verdict: Of the reference (A) and the run (B).
    """
    compared = verdict.compared
    token = bool(compared.sequences_diverging or compared.texts_differing)
    bitwise = (
        token
        or verdict.levels["bitwise"].state == "fails"
        or verdict.first_site is not None
        or verdict.first_logprob is not None
    )
    first: dict[NarrowLevel, RunDifference] = {}
    if token:
        first["token"] = _first_token(verdict)
    if bitwise:
        first["bitwise"] = _first_bit(verdict)
    return {"token": token, "bitwise": bitwise}, first


def _first_token(verdict: Verdict) -> RunDifference:
    token, text = verdict.first_token, verdict.first_text
    if token is not None:
        at = Location(
            request_id=token.request_id, sample=token.sample, position=token.position, step=token.step
        )
        return RunDifference(of="token", at=at)
    if text is not None:
        at = Location(request_id=text.request_id, sample=text.sample, character=text.character)
        return RunDifference(of="text", at=at)
    return RunDifference(of="token")


def _first_bit(verdict: Verdict) -> RunDifference:
    site, logprob = verdict.first_site, verdict.first_logprob
    if site is not None:
        at = Location(
            request_id=site.request_id, sample=site.sample, position=site.position, site=site.label()
        )
        return RunDifference(of="site", at=at)
    if logprob is not None:
        at = Location(request_id=logprob.request_id, sample=logprob.sample, position=logprob.position)
        return RunDifference(of="logprobs", at=at)
    if verdict.first_token is None and verdict.first_text is None:
        judged = verdict.levels["bitwise"]
        return RunDifference(of="bits", at=judged.where, why=judged.why)
    return _first_token(verdict)
