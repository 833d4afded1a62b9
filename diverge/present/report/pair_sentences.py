"""Sentences about one pair: its candidates, margins, samplers and drift."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...causes.commands import reading
from ..format import number, plain, plural, quoted_token
from .environment import NOT_RECORDED, setting_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....schemas.trace import Setting, TraceHeader
    from .pictures.margins import Plot
    from .reading.recorded import Recorded
    from .reading.rows import Candidate, FirstLogits, Pair, TokenRow
    from .reading.traces import Source

_MAX_ENTRIES = 4
"""Entries of a list, such as stop strings, that are named."""
_OF_ENGINE = frozenset({"engine default", "server default"})
"""Sources of a field that no request stated."""


def close_call(
    margin: float | None, moved: float | None, by_logprob: bool = False, tie: bool = True
) -> str | None:
    """What A's margin and the difference at a divergence say together, where both were recorded.

    Args:
        margin: Between A's two top candidates.
        moved: Largest absolute difference of a candidate.
        by_logprob: Both are of log-probabilities.
        tie: Rounding explains the difference, so that a small margin is a near tie.
    """
    kind = "logprob" if by_logprob else "logit"
    if margin is None or moved is None:
        return None
    if moved == 0:
        return f"The {kind}s of the common candidates are equal: the choice differs, not the numbers."
    if not math.isfinite(moved):
        return f"Some {kind}s are not finite."
    sizes = f"margin {number(margin)} in A, largest {kind} difference {number(moved)}"
    if margin > 2 * moved:  # both candidates may move, in opposite directions
        return f"Not a near tie: {sizes}, too small to swap the top two candidates."
    if tie:
        return f"Near tie: {sizes}, enough to swap the top two candidates."
    return f"The top two candidates can swap: {sizes}."


def candidates_note(pair: Pair) -> str:
    """What the table of candidates shows."""
    which = "The top candidates and the chosen ones"
    if pair.first_position is None:
        which = (
            "No token diverges; the logits differ here for the first time. The top candidates, and the one"
            " that moved most"
        )
    return f"{which}, from the raw distribution: before temperature, penalties, bias and filters."


def margin_note(plot: Plot, close_steps: Sequence[TokenRow]) -> str:
    """At how many steps the logits moved far enough to flip the choice."""
    what = "The margin is the lead of the top candidate over the second."
    unit = "step" if plot.bin_width == 1 else f"{plot.bin_width}-step group"
    if not close_steps:
        return f"{what} The difference is not known at any step."
    if not plot.risky:
        near = min(close_steps, key=lambda row: (row.margin_a or 0.0) - 2 * (row.drift or 0.0))
        return (
            f"{what} The difference stays below half the margin at every step, too small to flip a choice."
            f" The closest is step {near.step}."
        )
    return (
        f"{what} A difference of half the margin or more can flip the choice:"
        f" {plural(plot.risky, unit)} here."
    )


def close_steps_title(shown: int, of: int) -> str:
    """Which steps the table of margins shows, in their order."""
    return "All steps with a difference" if shown == of else f"The {shown} of {of:,} steps closest to a flip"


def no_drift_note(pair: Pair, sites: int, logits: FirstLogits | None) -> str:
    """Why there is no map of the drift."""
    if not sites:
        return "No module output was captured in both traces, so the inside of the model was not observed."
    if not pair.rows_compared:
        return "No row of this sequence could be compared."
    after = "" if logits is None else "; the logits do, so the difference arises after them"
    return f"No compared row of this sequence differs{after}."


def sampler_line(
    sides: tuple[Recorded | None, Recorded | None],
    sources: tuple[Source, Source],
    candidates: Sequence[Candidate],
) -> str | None:
    """What the samplers saw at that step; None where the candidates show it already.

    Args:
        sides: Both sides of the pair.
        sources: The two traces, for token texts.
        candidates: The raw distributions at that step.
    """
    likeliest, drawn = [], []
    processed = False
    for index, (side, source) in enumerate(zip(sides, sources, strict=True)):
        seen = (side and side.seen) or {}
        token, value, draw = seen.get("top1_id"), seen.get("top1_logit"), seen.get("draw")
        if token is not None and value is not None:
            likeliest.append(
                f"{quoted_token(token, source.token_text)} with {number(value)} in {source.side}"
            )
            processed |= not _is_likeliest(token, value, candidates, index)
        if draw is not None:
            drawn.append(f"{draw:.6f} in {source.side}")
    found = []
    if likeliest and processed:
        found.append(f"top candidate after temperature, penalties and bias: {', '.join(likeliest)}")
    if drawn:
        found.append(f"random draw: {', '.join(drawn)}")
    return f"The samplers saw: {'; '.join(found)}." if found else None


def _is_likeliest(token: int, value: float, candidates: Sequence[Candidate], side: int) -> bool:
    """A token has that raw logit on a side (0: A, 1: B), and no candidate has a larger one."""
    logits = {one.token_id: one.logit_b if side else one.logit_a for one in candidates}
    known = [logit for logit in logits.values() if logit is not None]
    return logits.get(token) == value and value == max(known)


def sampling_line(request_id: str, sources: tuple[Source, Source]) -> str | None:
    """The stated sampling fields of a request, once where both sides have the same."""
    headers = [source.header for source in sources if source.header is not None]
    if not any(request.sampling for header in headers for request in header.requests):
        return None
    sides = [_stated(header, request_id) for header in headers]
    fields = []
    for name in dict.fromkeys(name for side in sides for name in side):
        values = list(dict.fromkeys(side.get(name, "its default") for side in sides))
        shown = values[0] if len(values) == 1 else f"{values[0]} in A, {values[1]} in B"
        fields.append(f"{plain(name)} {plain(shown)}")
    stated = "; ".join(fields) if fields else "none"
    return f"Sampling fields of the request: {stated}. All other fields have the engine's default."


def _stated(header: TraceHeader, request_id: str) -> dict[str, str]:
    for request in header.requests:
        if request.request_id == request_id:
            fields = {name: _value(setting) for name, setting in request.sampling.items()}
            return {name: value for name, value in fields.items() if value is not None}
    return {}


def _value(setting: Setting) -> str | None:
    """A field's value, with its source where that is not the request itself; None: nobody stated it."""
    if setting.source in _OF_ENGINE:
        return None
    value = reading(setting)
    shown = NOT_RECORDED if value is None else setting_text(value)
    if isinstance(value, list) and len(value) > _MAX_ENTRIES:
        shown = f"{setting_text(value[:_MAX_ENTRIES])} and {len(value) - _MAX_ENTRIES:,} more"
    return shown if setting.source == "envelope" else f"{shown} (from {setting.source})"
