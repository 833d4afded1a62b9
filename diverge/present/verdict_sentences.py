"""Sentences on a whole verdict: headline, where it starts, how much was compared, what the traces are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.trace import PARTS_SUFFIX
from .findings.places import course
from .findings.reference import reference_sentence
from .findings.sentences import note, sentence, unseen_before, where, why
from .format import NONE, does, moment, number, plain, plural, request_name, site_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...schemas.reference import Reference
    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import Compared, FirstText, FirstToken, LevelVerdict, OfSequence, Verdict


def headline(verdict: Verdict, causes: int = 0) -> str:
    """The verdict in one short line, without a period.

    Args:
        causes: Listed below it: named where there are several and an answer differs.
    """
    token, compared = verdict.levels.get("token"), verdict.compared
    if verdict.first_token is not None:
        return _token_divergence(verdict.first_token, compared, causes)
    if compared.texts and not compared.sequences:
        return _texts_headline(verdict)
    if token is None or token.state == "not comparable":
        reasons = "" if token is None else plain(why(token))
        return f"Token equality is unknown{': ' if reasons else ''}{reasons}".rstrip(".")
    if token.state == "fails":
        return "Under the forced tokens, A and B would choose different tokens"
    if has_moved(verdict):
        return f"{_answers(compared)} equal, the numbers are not{_largest(verdict)}"
    bitwise = verdict.levels.get("bitwise")
    if bitwise is not None and bitwise.state == "holds":
        return _what_is_equal(verdict)
    return f"{_answers(compared)} equal"


def _answers(compared: Compared) -> str:
    many = compared.sequences
    return f"All {many:,} answers are" if many > 1 else "The answer is"


def _largest(verdict: Verdict) -> str:
    largest = largest_difference(verdict)
    return f": a {difference_kind(verdict)} differs by up to {number(largest)}" if largest else ""


def _texts_headline(verdict: Verdict) -> str:
    """Where no sequence has tokens on both sides."""
    texts, first = verdict.compared.texts or 0, verdict.first_text
    if first is None:
        what = f"All {texts:,} answers are" if texts > 1 else "The answer is"
        return f"{what} equal as text; token equality is unknown"
    differing = verdict.compared.texts_differing or 0
    place = f"{_name(first)} character {first.character:,}"
    return f"{_differing(differing, texts)} as text{'; first' if differing > 1 else ''}: {place}"


def _what_is_equal(verdict: Verdict) -> str:
    """Equal in all that was compared, which is less than everything where sites were not captured."""
    compared = verdict.compared
    if not compared.rows:
        return "No difference found: tokens and logits compared, no site"
    sides = (verdict.a, verdict.b)
    if any(side.site_filter or side.sites not in (None, compared.sites) for side in sides):
        return f"No difference found: tokens, logits and {plural(compared.sites, 'site')} compared"
    return "The two runs are bitwise equal"


def _token_divergence(first: FirstToken, compared: Compared, causes: int) -> str:
    name = _name(first)
    if first.step is None:
        place = f"in the prompt of {name}, position {first.position}"
    elif first.token_a is None or first.token_b is None:
        place = f"{name} step {first.step}, where {'A' if first.token_a is None else 'B'} ends"
    else:
        place = f"{name} step {first.step}"
    many, of = compared.sequences_diverging, compared.sequences
    listed = f", {plural(causes, 'cause')}" if causes > 1 else ""
    return f"{_differing(many, of)}{listed}{'; first: ' if many > 1 else ': '}{place}"


def _differing(many: int, of: int) -> str:
    """`4 of 8 answers differ`."""
    return f"{many:,} of {plural(of, 'answer')} {does(many, 'differ')}" if of > 1 else "The answer differs"


def _name(one: OfSequence) -> str:
    """A sequence by its request, as short as it can be named."""
    return plain(one.request_id) + (f" sample {one.sample}" if one.sample else "")


def second_line(verdict: Verdict) -> str:
    """Which run is unfinished, and where the difference starts, or how much was compared."""
    unfinished = [f"{name} is an unfinished run. " for name in unfinished_sides(verdict)]
    behind = plain(course(verdict))
    return (
        "".join(unfinished)
        + _start_or_extent(verdict)
        + (f" {behind[0].upper()}{behind[1:]}." if behind else "")
    )


def unfinished_sides(verdict: Verdict) -> list[str]:
    """Which of A and B hold only what an interrupted run had flushed."""
    return [name for name, side in (("A", verdict.a), ("B", verdict.b)) if side.path.endswith(PARTS_SUFFIX)]


def _start_or_extent(verdict: Verdict) -> str:
    first = verdict.first_site
    compared = verdict.compared
    if compared.texts and not compared.sequences:
        return "Compared as text: one side does not return token ids, so tokens and numbers are unknown."
    if first is not None:
        start = f"{site_label(first)} at position {first.position}"
        if first.is_origin:
            return f"The difference starts at {start}, an origin: all its inputs are equal."
        unseen = plain(unseen_before(first) or "not all could be compared").rstrip(".")
        return f"First observed difference: {start}. Earlier rows are unknown: {unseen}."
    if compared.rows:
        return (
            f"Compared by hash: {plural(compared.rows, 'row')} at {plural(compared.sites, 'site')},"
            f" {plural(compared.positions, 'position')} of {plural(compared.sequences, 'sequence')}."
            " No row differs."
        )
    return (
        f"Compared: {plural(compared.positions, 'position')} of {plural(compared.sequences, 'sequence')}."
        " No site was compared, so the inside of the model is unknown."
    )


def logprob_line(verdict: Verdict) -> str | None:
    """Where log-probabilities first differ, unless logits or layers locate it better."""
    first = verdict.first_logprob
    if first is None or (verdict.first_site is not None and difference_kind(verdict) == "logit"):
        return None
    at = f"position {first.position}" if first.step is None else f"step {first.step}"
    return (
        f"First differing logprob: {at} of {request_name(*first.sequence)}, by"
        f" {number(first.max_abs_diff)} nats."
    )


def difference_kind(verdict: Verdict) -> str:
    """What the differences of the distributions are of."""
    by_logprob = verdict.max_abs_logit_diff is None and verdict.max_abs_logprob_diff is not None
    return "logprob" if by_logprob else "logit"


def largest_difference(verdict: Verdict) -> float:
    """Of the distributions, by logits where there are any; 0 where none is known."""
    return verdict.max_abs_logit_diff or verdict.max_abs_logprob_diff or 0.0


def has_moved(verdict: Verdict) -> bool:
    """Some number differs."""
    return verdict.first_site is not None or largest_difference(verdict) > 0


def is_cut(first: FirstText) -> bool:
    """There is text before the excerpt."""
    return first.character > len(first.before)


def level_note(level: LevelVerdict) -> str:
    """Why a level is as it is, in a few words; empty where nothing was said."""
    return plain(note(level))


def level_reason(level: LevelVerdict) -> str:
    """Where a level first fails, and why it is as it is; empty where nothing was said."""
    return "; ".join(plain(text) for text in (where(level), why(level)) if text)


def reference_lines(found: Reference) -> list[str]:
    """How far both sides are from a reference trace, and what that rests on."""
    lines = [reference_sentence(found)]
    if found.rows:
        dtypes = f"{found.dtype_a} in A, {found.dtype_b} in B, {found.dtype_reference} in the reference"
        lines.append(
            f"{plural(found.rows, 'position')} × {plural(found.sites, 'site')}"
            + (f"; {dtypes}" if found.dtype_a else "")
        )
    if found.separated and found.first is not None:
        lines.append(f"at {found.first.site} half of its rows are farther than any row of the other side")
    return [*lines, *(sentence(limit) for limit in found.notes)]


_MODES = {
    "free": "the engine chooses each token",
    "golden-decode": "teacher forcing, token by token",
    "golden-prefill": "teacher forcing, in one pass",
}


def mode_description(mode: str) -> str:
    """How the tokens of a run were chosen: `free` and the like, explained."""
    known = _MODES.get(mode)
    return f"{plain(mode)} ({known})" if known else plain(mode)


LEVEL_PROMISES = {
    "bitwise": "every recorded bit is equal",
    "numeric": "differences stay within a stated tolerance",
    "token": "same tokens",
    "semantic": "same answer",
}
"""What each level promises."""

EXPECTED_TO_DIFFER = frozenset({"trace", "created"})
"""Facts that differ between any two runs."""


def facts(verdict: Verdict, a: TraceHeader | None, b: TraceHeader | None) -> list[tuple[str, str, str]]:
    """What the two traces are: a name, A's value and B's value."""
    rows = [
        ("trace", verdict.a.path, verdict.b.path),
        ("lane", verdict.a.lane, verdict.b.lane),
        ("mode", mode_description(verdict.a.mode), mode_description(verdict.b.mode)),
    ]
    if a is None and b is None:
        rows.append(("engine", verdict.a.engine, verdict.b.engine))
    else:
        read: tuple[tuple[str, Callable[[TraceHeader], str]], ...] = (
            ("capture", _capture),
            ("output with and without capture", lambda header: header.observer.state),
            ("created", lambda header: moment(header.created)),
        )
        for name, of in read:
            left, right = ("trace not read" if header is None else of(header) for header in (a, b))
            rows.append((name, left, right))
    rows.append(("fingerprint", (verdict.a.fingerprint or NONE)[:16], (verdict.b.fingerprint or NONE)[:16]))
    return [(plain(name), plain(left), plain(right)) for name, left, right in rows]


def _capture(header: TraceHeader) -> str:
    observed = f", at {plural(len(header.sites), 'site')} ({header.channel})" if header.sites else ""
    return header.capture + observed
