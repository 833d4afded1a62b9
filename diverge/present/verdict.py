"""A verdict in sentences, for the terminal and the report alike. Plain text in, plain text out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...schemas.trace import PARTS_SUFFIX
from .findings.sentence import note, unseen_before
from .findings.sentence import why as level_why
from .format import NONE, does, moment, number, plain, plural, request_name, site_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...schemas.trace import TraceHeader
    from ...schemas.verdict import FirstText, FirstToken, LevelVerdict, Verdict


def headline(verdict: Verdict) -> str:
    """The verdict in one short sentence."""
    token = verdict.levels.get("token")
    if verdict.first_token is not None:
        return _where_tokens_part(verdict.first_token) + _how_many(verdict)
    if verdict.compared.texts and not verdict.compared.sequences:
        return _texts_headline(verdict)
    if token is None or token.state == "not comparable":
        why = f": {plain(reasons)}" if token is not None and (reasons := level_why(token)) else ""
        return f"Whether the tokens are equal cannot be told{why}."
    if token.state == "fails":
        return "The two sides' own choices differ under the forced tokens."
    bitwise = verdict.levels.get("bitwise")
    if bitwise is not None and bitwise.state == "holds":
        return _what_is_equal(verdict)
    moved = max(verdict.max_abs_logit_diff or 0, verdict.max_abs_logprob_diff or 0)
    if verdict.first_site is not None or moved > 0:
        return "The tokens are equal; the numbers behind them are not."
    return "The tokens are equal."


def _texts_headline(verdict: Verdict) -> str:
    """Where no sequence has tokens on both sides."""
    texts, first = verdict.compared.texts or 0, verdict.first_text
    if first is None:
        return f"{plural(texts, 'text')} compared: equal. Whether the tokens are equal cannot be told."
    differing = verdict.compared.texts_differing or 0
    many = f" {differing:,} of {plural(texts, 'text')} {does(differing, 'differ')}." if texts > 1 else ""
    name = request_name(first.request_id, first.sample)
    return f"The texts of {name} part at character {first.character}.{many}"


def _how_many(verdict: Verdict) -> str:
    compared = verdict.compared
    if compared.sequences < 2:
        return ""
    diverging = compared.sequences_diverging
    return f" {diverging:,} of {plural(compared.sequences, 'sequence')} {does(diverging, 'diverge')}."


def _what_is_equal(verdict: Verdict) -> str:
    """Equal in all that was compared, which is less than everything where sites were left out."""
    compared = verdict.compared
    if not compared.rows:
        return "No difference in what was compared: tokens and logits, no site."
    sides = (verdict.a, verdict.b)
    if any(side.site_filter or side.sites not in (None, compared.sites) for side in sides):
        return f"No difference in what was compared: tokens, logits and {plural(compared.sites, 'site')}."
    return "The two runs are equal, bit for bit."


def _where_tokens_part(first: FirstToken) -> str:
    name = request_name(first.request_id, first.sample)
    if first.step is None:
        return f"The prompts of {name} differ at position {first.position}."
    if first.token_a is None or first.token_b is None:
        ended, went_on = ("A", "B") if first.token_a is None else ("B", "A")
        return f"In {name}, {ended} ends at step {first.step} where {went_on} goes on."
    return f"Tokens diverge at step {first.step} of {name}."


def second_line(verdict: Verdict) -> str:
    """Which run was not finished, and where it starts, or how much was compared."""
    unfinished = [
        name for name, trace in (("A", verdict.a), ("B", verdict.b)) if trace.path.endswith(PARTS_SUFFIX)
    ]
    return "".join(f"{name} is of an unfinished run. " for name in unfinished) + _start_or_extent(verdict)


def _start_or_extent(verdict: Verdict) -> str:
    first = verdict.first_site
    compared = verdict.compared
    if compared.texts and not compared.sequences:
        return "Compared as text: a side tells no token ids, so nothing is known about tokens and numbers."
    if first is not None:
        place = f"The first differing row is {site_label(first)} at position {first.position}"
        if first.is_origin:
            return f"{place}, an origin: every row before it is equal, so this module's inputs were equal."
        unseen = plain(unseen_before(first) or "not every earlier row could be compared").rstrip(".")
        return f"{place}, a first observed difference: {unseen}."
    if compared.rows:
        return (
            f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')}, over"
            f" {plural(compared.positions, 'position')} of {plural(compared.sequences, 'sequence')},"
            f" {does(compared.rows, 'were')} compared by hash; none differs."
        )
    return (
        f"{plural(compared.positions, 'position')} of {plural(compared.sequences, 'sequence')}"
        f" {does(compared.positions, 'were')} compared;"
        " no site was, so nothing is known about what happened inside the model."
    )


def logprob_line(verdict: Verdict) -> str | None:
    """Where log-probabilities begin to differ, if neither logits nor layers tell it better."""
    first = verdict.first_logprob
    if first is None or (verdict.first_site is not None and difference_kind(verdict) == "logit"):
        return None
    at = f"position {first.position}" if first.step is None else f"step {first.step}"
    return (
        f"The first logprob that differs is at {at} of {request_name(first.request_id, first.sample)}, by "
        f"{number(first.max_abs_diff)}."
    )


def difference_kind(verdict: Verdict) -> str:
    """What the differences of the distributions are of."""
    by_logprob = verdict.max_abs_logit_diff is None and verdict.max_abs_logprob_diff is not None
    return "logprob" if by_logprob else "logit"


def close_call(
    margin: float | None, moved: float | None, by_logprob: bool = False, tie: bool = True
) -> str | None:
    """What A's margin and the drift at a divergence say together, where both were recorded.

    Args:
        margin: Between A's two likeliest candidates.
        moved: By how much the candidates moved, at most.
        by_logprob: Both are of log-probabilities.
        tie: Rounding explains the drift, so that a small margin may be called a near tie.
    """
    kind = "logprobs" if by_logprob else "logits"
    if margin is None or moved is None:
        return None
    if moved == 0:
        return f"The {kind} of the common candidates are equal: the choice differs, not the numbers."
    if not math.isfinite(moved):
        return f"The {kind} moved without bound: some are not finite."
    lead = f"A's margin (its likeliest candidate's lead) is {number(margin)}"
    moves = f"the {kind} moved by up to {number(moved)}"
    if margin <= 2 * moved:  # both candidates may move, in opposite directions
        if tie:
            return f"A near tie: {lead} and {moves}, enough to swap the two candidates."
        return f"{moves[0].upper()}{moves[1:]}, enough to swap the two likeliest candidates: {lead}."
    return f"Not a near tie: {lead} and {moves}, too little to swap the two likeliest candidates."


def is_cut(first: FirstText) -> bool:
    """Text stands before the excerpt."""
    return first.character > len(first.before)


def level_note(level: LevelVerdict) -> str:
    """Why a level is as it is, in a few words; empty where nothing was said."""
    return plain(note(level))


_MODES = {
    "free": "each token chosen by the engine",
    "golden-decode": "recorded tokens forced, one by one",
    "golden-prefill": "recorded tokens scored in one pass",
}


def mode_words(mode: str) -> str:
    """How the tokens of a run came about: `free` and the like, explained."""
    told = _MODES.get(mode)
    return f"{plain(mode)} ({told})" if told else plain(mode)


LEVEL_WORDS = {
    "bitwise": "every recorded bit is equal",
    "numeric": "the numbers differ by less than a stated tolerance",
    "token": "the same tokens",
    "semantic": "the same answer",
}
"""What each level promises."""

EXPECTED_TO_DIFFER = frozenset({"trace", "created"})
"""Facts that say nothing when they differ."""


def facts(verdict: Verdict, a: TraceHeader | None, b: TraceHeader | None) -> list[tuple[str, str, str]]:
    """What the two traces are: a name, A's value and B's value."""
    rows = [
        ("trace", verdict.a.path, verdict.b.path),
        ("lane (name of the way to run)", verdict.a.lane, verdict.b.lane),
        ("mode", mode_words(verdict.a.mode), mode_words(verdict.b.mode)),
    ]
    if a is None and b is None:
        rows.append(("engine", verdict.a.engine, verdict.b.engine))
    else:
        read: tuple[tuple[str, Callable[[TraceHeader], str]], ...] = (
            ("capture", _capture),
            ("answer with and without recording", lambda header: header.observer.state),
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
