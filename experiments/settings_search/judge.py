"""Whether one run of a search differs from the reference, by the verdict of their comparison."""

from __future__ import annotations

from ...diverge.present.findings.sentence import where, why
from ...diverge.present.format import request_name, site_label
from ...schemas.narrow import NarrowLevel
from ...schemas.verdict import Verdict


def judge(verdict: Verdict) -> tuple[dict[NarrowLevel, bool], dict[NarrowLevel, str]]:
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
    first_at: dict[NarrowLevel, str] = {}
    if token:
        first_at["token"] = _first_token(verdict)
    if bitwise:
        first_at["bitwise"] = _first_bit(verdict)
    return {"token": token, "bitwise": bitwise}, first_at


def _first_token(verdict: Verdict) -> str:
    token, text = verdict.first_token, verdict.first_text
    if token is not None:
        at = f"position {token.position}, in the prompt" if token.step is None else f"step {token.step}"
        return f"{request_name(token.request_id, token.sample)}, {at}"
    if text is not None:
        return f"{request_name(text.request_id, text.sample)}, character {text.character}"
    return "tokens differ"


def _first_bit(verdict: Verdict) -> str:
    site, logprob = verdict.first_site, verdict.first_logprob
    if site is not None:
        name = request_name(site.request_id, site.sample)
        return f"{name}, position {site.position}, {site_label(site)}"
    if logprob is not None:
        name = request_name(logprob.request_id, logprob.sample)
        return f"{name}, position {logprob.position}, log-probabilities"
    judged = verdict.levels["bitwise"]
    if verdict.first_token is None and verdict.first_text is None:
        return where(judged) or why(judged) or "bits differ"
    return _first_token(verdict)
