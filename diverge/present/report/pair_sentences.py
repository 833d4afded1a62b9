"""Sentences about one pair: its candidates, margins, samplers and drift."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ...causes.commands import reading
from ..format import does, number, plain, plural, quoted_token
from ..verdict_sentences import difference_kind, largest_difference
from .environment import NOT_RECORDED, setting_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ....schemas.lane import Setting
    from ....schemas.trace import TraceHeader
    from ....schemas.verdict import Verdict
    from .pictures.step_charts import Plot
    from .reading.rows import Candidate, FirstLogits, Pair, Recorded, SiteTotal, TokenRow
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


def margin_note(plot: Plot, close_steps: Sequence[TokenRow], sampled: bool = False) -> str:
    """At how many steps the logits moved far enough to flip the choice; sampled tokens do not show it."""
    what = "The margin is the lead of the top candidate over the second."
    if sampled:
        return (
            f"{what} It decides no step here: the tokens are sampled, and a draw can pick a different token"
            " at any difference."
        )
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


def close_steps_title(shown: int, of: int, sampled: bool = False) -> str:
    """Which steps the table of margins shows, in their order."""
    if shown == of:
        return "All steps with a difference"
    closest = "with the least margin for their difference" if sampled else "closest to a flip"
    return f"The {shown} of {of:,} steps {closest}"


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


HOW_POSITIONS_COUNT = (
    "Positions count prompt and answer tokens together, from 0; steps count answer tokens. A row is named by"
    " the token that the model read, logits by the token that they chose: the next one."
)
"""For the whole document."""

ABOUT_AGREEMENT = (
    "How often outputs are equal where requests ran several times; in brackets the 95 % interval (Wilson)."
    " TARr@N: the share of requests whose N samples are all equal. No hypothesis is tested."
)
"""What the table of agreement shows."""


def causes_ranked(verdict: Verdict) -> str:
    """Above several causes."""
    if any(cause.confirmation is not None for cause in verdict.causes):
        return "Ranked by the evidence in the two traces; beside each what an experiment decided, if one ran."
    return "Ranked by the evidence in the two traces. Run the command to confirm a cause."


_TERMS: tuple[tuple[str, str, str], ...] = (
    ("origin", r"\borigin\b", "the first module output that differs although all its inputs are equal"),
    ("site", r"\bsites?\b", "a module output (or another named tensor) that rip records"),
    ("row", r"\brows?\b", "the vector at one site for one token"),
    ("drift", r"\bdrift\b", "numeric difference, relative to the size of the row"),
    ("name:0", r"\w:\d\b", "the first of several outputs of a module"),
    ("name#1", r"\w#\d\b", "the second call of a module in one forward pass"),
    ("prefill", r"\bprefill\b", "the pass over the prompt; decode then adds one token at a time"),
    ("envelope", r"\benvelopes?\b", "the recorded request with all its settings"),
    ("sampling contract", r"\bsampling contract\b", "all fields that decide how a token is chosen"),
    ("lane", r"\blanes?\b", "one way to run: engine, model, settings, machine"),
    ("golden path", r"\bgolden\b", "teacher forcing: recorded tokens are forced, so every step compares"),
    ("transplant", r"\b[Tt]ransplant", "activation patching: A's rows are put into B's run"),
    (
        "reference",
        r"--reference\b",
        "the request in a higher precision, to distinguish rounding from a bug",
    ),
    ("hash", r"\bhash(es)?\b", "a digest of a row or of logits, equal only where every bit is"),
    (
        "sketch",
        r"\bsketch(es)?\b",
        "a short summary of a row that shows how large a difference is",
    ),
    ("nats", r"\bnats\b", "the unit of log-probabilities"),
)
"""Term, how it is found, and what it means; in the order in which a reader needs them."""


def glossary(texts: Iterable[str]) -> list[tuple[str, str]]:
    """The terms that occur in some texts, with their meanings."""
    whole = "\n".join(texts)
    return [(term, meaning) for term, pattern, meaning in _TERMS if re.search(pattern, whole)]


def how_much_compared(verdict: Verdict, sites: Sequence[SiteTotal], pairs: Sequence[Pair]) -> str:
    """Sequences, positions, rows and the largest difference of the logits.

    Args:
        verdict: Of the comparison.
        sites: The compared sites.
        pairs: The listed pairs.
    """
    compared = verdict.compared
    parts = [f"{plural(compared.sequences, 'sequence')} compared, {compared.sequences_diverging:,} diverging"]
    if compared.positions:
        parts.append(f"{plural(compared.positions, 'position')} with equal tokens before")
    if compared.rows:
        parts.append(
            f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')} (module outputs) compared"
            f" bit for bit, {compared.rows_differing:,} {does(compared.rows_differing, 'differ')}"
        )
    sketched = sum(site.by_sketch for site in sites)
    if sketched:
        parts.append(
            f"{plural(sketched, 'site')} with a different dtype or row hash compared by sketch (a short"
            f" summary of each row): {plural(sum(pair.rows_differing for pair in pairs), 'row')} differ"
        )
    if largest := largest_difference(verdict):
        parts.append(f"largest {difference_kind(verdict)} difference {number(largest)}")
    if compared.texts:
        differing = compared.texts_differing or 0
        parts.append(
            f"{plural(compared.texts, 'text')} compared as text, {differing:,} {does(differing, 'differ')}"
        )
    return f"{'; '.join(parts)}."
