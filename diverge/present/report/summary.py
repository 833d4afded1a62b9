"""The three sentences that open a postmortem, for people who were not there. Plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ....schemas.findings.evidence import Conclusion
from ....schemas.findings.execution import FieldChanged
from ....schemas.findings.rows import DriftSize, FirstDifferenceAt, OtherSequences
from ....schemas.trace import PARTS_SUFFIX
from ..findings.interpretation import how_to_read
from ..findings.labels import label
from ..findings.sentence import sentence
from ..findings.sentence import why as level_why
from ..format import does, number, plain, plural, quoted_token, request_name, site_label
from .model import NextStep, Sentence

if TYPE_CHECKING:
    from ....schemas.findings.evidence import Evidence
    from ....schemas.verdict import Cause, FirstToken, Verdict
    from .model import Proof
    from .sources import Place, Source

CAUSE_EVIDENCE = 2
"""Lines of evidence that the summary repeats; those with digests last, which tell a reader least."""
_DIGEST = re.compile(r"([0-9a-f]{12})[0-9a-f]{8,}…?")
MAX_OTHERS = 3
"""Lower-ranked causes that the summary names."""


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


def next_step(verdict: Verdict, place: Place, proofs: list[Proof]) -> NextStep:
    """What a reader does now: confirm the first cause, look closer, or keep what there is."""
    differs = _moved(verdict) or verdict.first_token is not None or verdict.first_text is not None
    if not differs:
        token = verdict.levels.get("token")
        told = token is not None and token.state == "holds"
        return NextStep(
            "Nothing: keep the two traces and this document as the evidence."
            if told
            else "Compare runs that record more; what these do not tell is listed under What was not seen."
        )
    cause = next((cause for cause in verdict.causes if cause.confirm), None)
    if cause is not None and cause.confirm is not None:
        first = "the cause" if cause is verdict.causes[0] else f"“{plain(label(cause))}”"
        text = f"Confirm or refute {first} with this command."
        if cause.confirm.purpose == "show":
            text = f"Look at what {first} rests on; where it is right, mend it and replay B."
        reading = how_to_read(cause)
        command = plain(place.command(cause.confirm))
        return NextStep(text, command, None if reading is None else plain(reading))
    if verdict.compared.texts and not verdict.compared.sequences:
        return NextStep(
            "Replay both on an engine that tells token ids and lets layers be observed (docs/engines.md):"
            " only then can it be seen where the numbers part."
        )
    if not verdict.compared.rows:
        return NextStep("Record both runs again with the layers observed (rip replay --capture sites).")
    if not any(proof.proven for proof in proofs):
        return NextStep("Look into the first difference, op by op: rip diverge --zoom.")
    return NextStep("Take the proof to those who own the module; the commands in the appendix show it again.")


def _what(verdict: Verdict, sources: tuple[Source, Source]) -> str:
    told = _compared_what(verdict, sources)
    cut = [name for name, side in (("A", verdict.a), ("B", verdict.b)) if side.path.endswith(PARTS_SUFFIX)]
    if not cut:
        return told
    runs = "Both runs were" if len(cut) == 2 else f"Run {cut[0]} was"
    return f"{runs} not finished, so only what was kept is compared. {told}"


def _compared_what(verdict: Verdict, sources: tuple[Source, Source]) -> str:
    compared = verdict.compared
    runs = " and ".join(_run(source, verdict) for source in sources)
    if compared.texts and not compared.sequences:
        texts = plural(compared.texts, "answer")
        if not compared.texts_differing:
            return f"{texts} of {runs} {does(compared.texts, 'were')} compared as text and read the same."
        differing = compared.texts_differing or 0
        if compared.texts == 1:
            return f"The answers of {runs} to the one request, compared as text, are not the same."
        return f"Of {texts} of {runs}, compared as text, {differing:,} {does(differing, 'differ')}."
    first = verdict.first_token
    if first is not None and first.step is None:
        return f"{runs} did not get the same prompt, so their answers cannot be expected to be the same."
    many = compared.sequences > 1
    if first is not None:
        if not many:
            return f"The same request, run twice as {runs}, got two different answers."
        return (
            f"Of {compared.sequences:,} requests run twice, as {runs}, {compared.sequences_diverging:,} got"
            " another answer."
        )
    token = verdict.levels.get("token")
    if token is not None and token.state == "fails":
        return (
            f"{plural(compared.sequences, 'request')} run twice with the same tokens forced, as {runs}: left"
            " to themselves, the two would not have chosen the same tokens."
        )
    if token is None or token.state != "holds":
        why = f": {plain(reasons)}" if token is not None and (reasons := level_why(token)) else ""
        return f"Whether {runs} gave the same answer cannot be told{why}."
    asked = f"All {compared.sequences:,} requests, run twice" if many else "The same request, run twice"
    same = f"{asked} as {runs}, got the same answer, token by token"
    if _moved(verdict):
        kind = "logit" if verdict.max_abs_logit_diff is not None else "logprob"
        largest = _largest(verdict)
        if not largest:
            return f"{same}, but not every number inside the model is the same."
        return (
            f"{same}, but the numbers behind them are not the same: the largest {kind} difference is"
            f" {number(largest)}."
        )
    return f"{same}, and no difference was found in the numbers."


def _run(source: Source, verdict: Verdict) -> str:
    """`A (alone, 2026-07-14)`; the file's name stands for lanes of one name."""
    reference = verdict.a if source.side == "A" else verdict.b
    alike = verdict.a.lane == verdict.b.lane
    name = Path(reference.path).name if alike else reference.lane
    date = "" if source.header is None else f", {source.header.created[:10]}"
    return f"{source.side} ({plain(name)}{plain(date)})"


def _largest(verdict: Verdict) -> float:
    return verdict.max_abs_logit_diff or verdict.max_abs_logprob_diff or 0.0


def _moved(verdict: Verdict) -> bool:
    return verdict.first_site is not None or _largest(verdict) > 0


def _where(verdict: Verdict, sources: tuple[Source, Source], prompt: int | None) -> str:
    site, token, text = verdict.first_site, verdict.first_token, verdict.first_text
    if text is not None and token is None:
        return (
            f"In {request_name(text.request_id, text.sample)} the texts part at character {text.character:,};"
            " the engine told no more than text, so nothing is known about tokens and numbers."
        )
    begins = ""
    if site is not None:
        inputs = (
            "its inputs were still equal, bit for bit"
            if site.is_origin
            else "not everything before it could be compared"
        )
        begins = (
            f"the first difference is at {site_label(site)}, {_place(site.position, prompt)}, where {inputs}"
        )
    if token is None:
        if site is not None:
            return f"In {request_name(site.request_id, site.sample)} {begins}; {_unchanged(verdict)}."
        first = verdict.first_logprob
        if first is not None:
            at = f"position {first.position}" if first.step is None else f"step {first.step}"
            name = request_name(first.request_id, first.sample)
            return f"The first difference in log-probabilities is at {at} of {name}; {_unchanged(verdict)}."
        return _none_differs(verdict)
    parts = _parting(token, sources)
    name = request_name(token.request_id, token.sample)
    if not begins:
        if token.step is None:
            return f"In {name} {parts}; what comes behind it cannot be compared."
        seen = verdict.compared.rows > 0
        inside = "no layer was seen to differ before" if seen else "no layer was observed in both runs"
        return f"In {name} {parts}; {inside}."
    assert site is not None
    if (site.request_id, site.sample) != (token.request_id, token.sample):
        begins = f"in {request_name(site.request_id, site.sample)} {begins}"
    ahead = token.position - site.position
    unit = "token" if prompt is None or site.position < prompt else "step"
    later = "" if ahead <= 0 else f"{plural(ahead, unit)} later, "
    return f"In {name} {begins}; {later}{parts}."


def _unchanged(verdict: Verdict) -> str:
    token = verdict.levels.get("token")
    forced = token is not None and token.state != "holds"
    return "the forced tokens stay the same" if forced else "it never changes a token"


def _place(position: int, prompt: int | None) -> str:
    if prompt is None:
        return f"position {position}"
    if position < prompt:
        return f"position {position} of the prompt"
    return f"step {position - prompt} (position {position})"


def _parting(token: FirstToken, sources: tuple[Source, Source]) -> str:
    if token.token_a is None or token.token_b is None:
        ended, went_on = ("A", "B") if token.token_a is None else ("B", "A")
        return f"{ended}'s answer ends at step {token.step} where {went_on}'s goes on"
    said = [
        quoted_token(one, source.token_text)
        for one, source in zip((token.token_a, token.token_b), sources, strict=True)
    ]
    if token.step is None:
        return f"the prompts part at position {token.position}: A has {said[0]}, B has {said[1]}"
    return f"the answers part at step {token.step}: A goes on with {said[0]}, B with {said[1]}"


def _none_differs(verdict: Verdict) -> str:
    compared = verdict.compared
    if compared.texts and not compared.sequences:
        count, what = compared.texts, plural(compared.texts, "text")
    elif compared.rows:
        count = compared.rows
        what = (
            f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')} over"
            f" {plural(compared.positions, 'position')}"
        )
    else:
        count, what = compared.positions, plural(compared.positions, "position")
    return f"{what} {does(count, 'were')} compared, and none differs."


def _why(verdict: Verdict, proofs: list[Proof]) -> str:
    proven = next((proof for proof in proofs if proof.proven), None)
    if not verdict.causes:
        if proven is not None:
            return f"No cause is named; an experiment shows where it comes from: {_shown(verdict, proven)}."
        if _moved(verdict) or verdict.first_token is not None or verdict.first_text is not None:
            return "No cause could be named from what the two runs recorded; see what was not seen."
        return "There is nothing to explain."
    cause = verdict.causes[0]
    said = f"{plain(label(cause))} ({cause.confidence} confidence)."
    if evidence := "; ".join(_decisive(cause)):
        said += f" {_begun(evidence)}."
    if others := verdict.causes[1 : MAX_OTHERS + 1]:
        named = "; ".join(f"{plain(label(other))} ({other.confidence} confidence)" for other in others)
        said += f" Also possible or following from it: {named}."
    proof = _proof(verdict, proven)
    return f"{said} {_begun(proof)}."


def _begun(words: str) -> str:
    """As a sentence begins; a name (`batch_size: …`, `layers.0`) stays as it is."""
    return words[0].upper() + words[1:] if re.match(r"[a-z]+[ ,]", words) else words


def _decisive(cause: Cause) -> list[str]:
    """The evidence a reader needs first: what the label does not say, and how large the difference is."""
    found = [one for one in cause.evidence if not _is_about_place(one)]
    found.sort(key=_names_a_digest)
    shown = found[:CAUSE_EVIDENCE]
    size = next((one for one in found if isinstance(one, DriftSize)), None)
    if size is not None and size not in shown:
        shown[-1:] = [size]
    return [_DIGEST.sub(r"\1…", plain(sentence(one))) for one in shown]


def _is_about_place(one: Evidence) -> bool:
    """It says where the difference begins, as the sentence before does, or where it does in others."""
    if isinstance(one, Conclusion):
        return one.what == "module or not repeatable"
    return isinstance(one, OtherSequences) or (isinstance(one, FirstDifferenceAt) and one.role == "origin")


def _names_a_digest(one: Evidence) -> bool:
    return isinstance(one, FieldChanged) and _DIGEST.search(one.before + one.after) is not None


def _proof(verdict: Verdict, proven: Proof | None) -> str:
    if proven is not None:
        return f"where it starts is shown by experiment: {_shown(verdict, proven)}"
    confirm = verdict.causes[0].confirm
    if confirm and confirm.purpose == "show":
        return "this is inferred from the recordings, and the command below shows what it rests on"
    if confirm:
        return "this is inferred from the recordings, and the command below confirms or refutes it"
    return "this is inferred from the recordings, and no experiment has confirmed it yet"


def _shown(verdict: Verdict, proven: Proof) -> str:
    """What a transplant showed, in short; all of it stands under Causes."""
    done = None if verdict.zoom is None else verdict.zoom.transplant
    if done is None or not done.origins:
        return _inner(proven.conclusion)
    places = plain(done.origins[0].site) if len(done.origins) == 1 else f"{len(done.origins):,} sites"
    return f"with A's rows put in at {places}, B follows A to position {done.last}"


def _inner(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")
