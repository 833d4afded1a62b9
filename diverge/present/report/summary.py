"""The three sentences that open a report, for people who were not there, and the next step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ....schemas.findings.evidence import Conclusion
from ....schemas.findings.execution import FieldChanged
from ....schemas.findings.experiments import RunCompared
from ....schemas.findings.rows import DriftSize, FirstDifferenceAt, OtherSequences
from ..findings.experiments import decision
from ..findings.labels import label
from ..findings.sentences import how_to_read, sentence, why
from ..format import does, number, plain, plural, quoted_token, request_name, site_label
from ..verdict_sentences import difference_kind, has_moved, largest_difference, unfinished_sides
from .document import NextStep, Sentence

if TYPE_CHECKING:
    from ....schemas.findings.evidence import Evidence
    from ....schemas.verdict import Cause, FirstSite, FirstToken, Verdict
    from .document import Proof
    from .reading.traces import ReportPaths, Source

CAUSE_EVIDENCE = 2
"""Pieces of evidence that the summary repeats."""
MAX_OTHERS = 3
"""Lower-ranked causes that the summary names."""
_DIGEST = re.compile(r"([0-9a-f]{12})[0-9a-f]{8,}")


def summarise(
    verdict: Verdict, sources: tuple[Source, Source], proofs: list[Proof], prompt: int | None = None
) -> list[Sentence]:
    """What differs, where and since when, and why with which confidence and what proves it.

    Args:
        verdict: Of the comparison.
        sources: The two traces.
        proofs: What experiments showed.
        prompt: Prompt tokens of the sequence that the verdict speaks of.
    """
    return [
        Sentence("What", _what(verdict, sources)),
        Sentence("Where", _where(verdict, sources, prompt)),
        Sentence("Why", _why(verdict, proofs)),
    ]


def next_step(verdict: Verdict, paths: ReportPaths, proofs: list[Proof]) -> NextStep:
    """What a reader does now: confirm the first cause, look closer, or keep what there is."""
    differs = has_moved(verdict) or verdict.first_token is not None or verdict.first_text is not None
    if not differs:
        token = verdict.levels.get("token")
        holds = token is not None and token.state == "holds"
        return NextStep(
            "Nothing to do. Keep the two traces and this document as evidence."
            if holds
            else "Compare runs that record more; see Limits of this comparison."
        )
    if any(_is_proven(one) for one in verdict.causes):
        return NextStep(
            "Fix what the experiments under Causes prove, and replay B. Their traces are kept as evidence."
        )
    cause = next((one for one in verdict.causes if one.confirm and one.confirmation is None), None)
    if cause is not None and cause.confirm is not None:
        what = "the cause" if cause is verdict.causes[0] else f"“{plain(label(cause))}”"
        text = f"Run this command to confirm {what}."
        if cause.confirm.purpose == "show":
            text = f"Check the evidence for {what} with this command. If it is right, fix it and replay B."
        reading = how_to_read(cause)
        return NextStep(
            text, plain(paths.command(cause.confirm)), None if reading is None else plain(reading)
        )
    if verdict.compared.texts and not verdict.compared.sequences:
        return NextStep(
            "Replay both on an engine that returns token ids and supports capture of sites (docs/engines.md)"
            " to see where the numbers diverge."
        )
    if not verdict.compared.rows:
        return NextStep("Record both runs again with module outputs: rip replay --capture sites.")
    if not any(proof.proven for proof in proofs):
        return NextStep("Find the differing op: rip diverge --zoom.")
    return NextStep(
        "Report the proof to the owners of the module. The commands in the appendix reproduce it."
    )


def _what(verdict: Verdict, sources: tuple[Source, Source]) -> str:
    answer = _answers(verdict, sources)
    cut = unfinished_sides(verdict)
    if not cut:
        return answer
    runs = "Both runs are" if len(cut) == 2 else f"Run {cut[0]} is"
    return f"{answer} {runs} unfinished: only the recorded part was compared."


def _answers(verdict: Verdict, sources: tuple[Source, Source]) -> str:
    compared = verdict.compared
    runs = " and ".join(_run(source, verdict) for source in sources)
    if compared.texts and not compared.sequences:
        texts = plural(compared.texts, "answer")
        if not compared.texts_differing:
            return f"{texts} compared as text, all equal: {runs}."
        differing = compared.texts_differing or 0
        return f"{differing:,} of {texts} {does(differing, 'differ')}, compared as text: {runs}."
    first = verdict.first_token
    if first is not None and first.step is None:
        return f"The two runs got different prompts: {runs}. Different answers are expected."
    many = compared.sequences > 1
    if first is not None:
        if not many:
            return f"The answer changed between {runs}."
        changed = f"{compared.sequences_diverging:,} of {compared.sequences:,} answers"
        return f"{changed} changed between {runs}."
    token = verdict.levels.get("token")
    if token is not None and token.state == "fails":
        return (
            f"With the same tokens forced, {runs} would choose different tokens"
            f" ({plural(compared.sequences, 'sequence')})."
        )
    if token is None or token.state != "holds":
        reasons = "" if token is None else plain(why(token))
        return f"Token equality of {runs} is unknown{': ' if reasons else ''}{reasons}."
    answers = f"All {compared.sequences:,} answers have" if many else "The answer has"
    same = f"{answers} equal tokens in {runs}"
    if has_moved(verdict):
        largest = largest_difference(verdict)
        if not largest:
            return f"{same}. Numbers inside the model differ."
        return f"{same}. The numbers differ: largest {difference_kind(verdict)} difference {number(largest)}."
    return f"{same}. No difference was found in the numbers."


def _run(source: Source, verdict: Verdict) -> str:
    """`A (alone, 2026-07-14)`; the file's name stands for lanes of one name."""
    reference = verdict.a if source.side == "A" else verdict.b
    alike = verdict.a.lane == verdict.b.lane
    name = Path(reference.path).name if alike else reference.lane
    date = "" if source.header is None else f", {source.header.created[:10]}"
    return f"{source.side} ({plain(name)}{plain(date)})"


def _where(verdict: Verdict, sources: tuple[Source, Source], prompt: int | None) -> str:
    site, token, text = verdict.first_site, verdict.first_token, verdict.first_text
    if text is not None and token is None:
        return (
            f"In {request_name(*text.sequence)} the texts diverge at character"
            f" {text.character:,}. The engine returns text only, so tokens and numbers are unknown."
        )
    if token is None:
        return _numbers_only(verdict, prompt)
    name, divergence = request_name(*token.sequence), _divergence(token, sources)
    if site is None:
        if token.step is None:
            return f"In {name} {divergence}. Later positions cannot be compared."
        seen = verdict.compared.rows > 0
        inside = "No row differs before" if seen else "No site was captured in both runs"
        return f"In {name} {divergence}. {inside}."
    if site.sequence != token.sequence:
        return f"{_start(site, prompt)} In {name} {divergence}."
    ahead = token.position - site.position
    unit = "token" if prompt is None or site.position < prompt else "step"
    later = "" if ahead <= 0 else f"{plural(ahead, unit)} later "
    return f"{_start(site, prompt)} {_capital(later + divergence)}."


def _numbers_only(verdict: Verdict, prompt: int | None) -> str:
    if verdict.first_site is not None:
        return f"{_start(verdict.first_site, prompt)} {_capital(_unchanged(verdict))}."
    first = verdict.first_logprob
    if first is None:
        return _none_differs(verdict)
    at = f"position {first.position}" if first.step is None else f"step {first.step}"
    name = request_name(*first.sequence)
    return f"Log-probabilities first differ at {at} of {name}; {_unchanged(verdict)}."


def _start(site: FirstSite, prompt: int | None) -> str:
    inputs = "its inputs are bitwise equal" if site.is_origin else "not all earlier rows were compared"
    return (
        f"In {request_name(*site.sequence)} the first difference is at {site_label(site)},"
        f" {_location(site.position, prompt)}: {inputs}."
    )


def _unchanged(verdict: Verdict) -> str:
    token = verdict.levels.get("token")
    forced = token is not None and token.state != "holds"
    return "the forced tokens stay equal" if forced else "no token changes"


def _location(position: int, prompt: int | None) -> str:
    if prompt is None:
        return f"position {position}"
    if position < prompt:
        return f"position {position} of the prompt"
    return f"step {position - prompt} (position {position})"


def _divergence(token: FirstToken, sources: tuple[Source, Source]) -> str:
    if token.token_a is None or token.token_b is None:
        ended, other = ("A", "B") if token.token_a is None else ("B", "A")
        return f"{ended} ends at step {token.step}, {other} continues"
    texts = [
        quoted_token(one, source.token_text)
        for one, source in zip((token.token_a, token.token_b), sources, strict=True)
    ]
    if token.step is None:
        return f"the prompts differ from position {token.position} on: {texts[0]} in A, {texts[1]} in B"
    return f"the tokens diverge at step {token.step}: {texts[0]} in A, {texts[1]} in B"


def _none_differs(verdict: Verdict) -> str:
    compared = verdict.compared
    what = plural(compared.positions, "position")
    if compared.texts and not compared.sequences:
        what = plural(compared.texts, "text")
    elif compared.rows:
        what = f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')}, {what}"
    return f"Compared: {what}. None differs."


def _why(verdict: Verdict, proofs: list[Proof]) -> str:
    proven = next((proof for proof in proofs if proof.proven), None)
    if not verdict.causes:
        if proven is not None:
            return f"No cause found. An experiment shows where it starts: {_shown(verdict, proven)}."
        if has_moved(verdict) or verdict.first_token is not None or verdict.first_text is not None:
            return "No cause found in what the two runs recorded; see Limits of this comparison."
        return "Nothing to explain."
    leading, *behind = _by_experiment(verdict.causes)
    also = [plain(label(cause)) for cause in behind if _is_proven(cause)]
    open_ones = [cause for cause in behind if not _is_proven(cause)]
    first, *others = (_named(cause) for cause in (leading, *open_ones[:MAX_OTHERS]))
    evidence = "; ".join(plain(sentence(one)).rstrip(".") for one in _decisive(leading))
    parts = [first, _capital(evidence)] if evidence else [first]
    if also:
        parts.append(f"Also proven by experiment: {'; '.join(also)}")
    if others:
        parts.append(f"Also possible, or a consequence: {'; '.join(others)}")
    return f"{'. '.join([*parts, _capital(_proof(verdict, leading, proven))])}."


def _by_experiment(causes: list[Cause]) -> list[Cause]:
    """Those that an experiment proved first; those that it refuted only where there is no other."""
    states = [None if cause.confirmation is None else cause.confirmation.state for cause in causes]
    order = {"confirmed": 0, "refuted": 2}
    ranked = sorted(range(len(causes)), key=lambda index: order.get(states[index] or "", 1))
    kept = [index for index in ranked if states[index] != "refuted"]
    return [causes[index] for index in kept or ranked]


def _is_proven(cause: Cause) -> bool:
    return cause.confirmation is not None and cause.confirmation.state == "confirmed"


def _named(cause: Cause) -> str:
    decided = "" if cause.confirmation is None else f", {decision(cause.confirmation)}"
    return f"{plain(label(cause))} ({cause.confidence} confidence{decided})"


def _capital(text: str) -> str:
    """As a sentence begins; a name (`batch_size: …`, `layers.0`) stays as it is."""
    return text[0].upper() + text[1:] if re.match(r"[a-z]+[ ,]", text) else text


def _decisive(cause: Cause) -> list[Evidence]:
    """The evidence that a reader needs first: how large the difference is; digests last.

    Not where it begins: that stands in the sentence before.
    """
    found = [one for one in cause.evidence if not _locates(one)]
    found.sort(key=_has_digest)
    shown = found[:CAUSE_EVIDENCE]
    size = next((one for one in found if isinstance(one, DriftSize)), None)
    if size is not None and size not in shown:
        shown[-1:] = [size]
    return [_shortened(one) for one in shown]


def _locates(one: Evidence) -> bool:
    """It is about where the difference begins, in this sequence or in others."""
    if isinstance(one, Conclusion):
        return one.what == "module or not repeatable"
    if isinstance(one, FirstDifferenceAt):
        return one.role in ("here", "begins", "origin")
    return isinstance(one, OtherSequences)


def _has_digest(one: Evidence) -> bool:
    return isinstance(one, FieldChanged) and _DIGEST.search(one.before + one.after) is not None


def _shortened(one: Evidence) -> Evidence:
    """With the first characters of its digests."""
    if not isinstance(one, FieldChanged):
        return one
    values = {"before": _DIGEST.sub(r"\1…", one.before), "after": _DIGEST.sub(r"\1…", one.after)}
    return one.model_copy(update=values)


def _proof(verdict: Verdict, cause: Cause, proven: Proof | None) -> str:
    if proven is not None:
        return f"proven by experiment: {_shown(verdict, proven)}"
    if cause.confirmation is not None:
        last = [one for one in cause.confirmation.evidence if isinstance(one, RunCompared)][-1:]
        return "; ".join([decision(cause.confirmation), *(plain(sentence(one)) for one in last)])
    confirm = cause.confirm
    if confirm and confirm.purpose == "show":
        return "inferred from the recordings; the command below shows the evidence"
    if confirm:
        return "inferred from the recordings; the command below confirms or refutes it"
    return "inferred from the recordings; no experiment has confirmed it"


def _shown(verdict: Verdict, proven: Proof) -> str:
    """What a transplant showed, in short; all of it stands under Causes."""
    done = None if verdict.zoom is None else verdict.zoom.transplant
    if done is None or not done.origins:
        return _inner(proven.conclusion)
    where = plain(done.origins[0].site) if len(done.origins) == 1 else f"{len(done.origins):,} sites"
    return f"with A's rows put in at {where}, B follows A to position {done.last}"


def _inner(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")
