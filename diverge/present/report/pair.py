"""One pair of a postmortem: the stretches of text that are shown, candidates, pictures and their data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .. import format, verdict
from .drift import draw_drift
from .model import PairView, SideText, Token
from .plot import draw_margins
from .recorded import Recorded, recorded, sampler_line, sampling_line

if TYPE_CHECKING:
    from .data import ResultData
    from .rows import Candidate, FirstLogits, Pair, TokenRow
    from .sources import Source

PROMPT_TOKENS = 400
TOKENS_BEFORE = 160
"""Generated tokens shown before the divergence; earlier ones are folded."""
TOKENS_AFTER = 200
TOKENS_EQUAL = 600
"""Generated tokens shown where all are equal."""
FOLDED_TOKENS = 800
MARGIN_BINS = 400
CANDIDATES = 4
"""Likeliest candidates shown at the divergence, beside those that were chosen; the others are folded."""
CLOSE_STEPS = 4
NEAR_TIE = "near-tie"
"""Id of the cause that lets a small margin be called a near tie."""

Texts = tuple[dict[str, str], dict[str, str]]
"""Token id (as a string) → text, of A and B."""


def view_pair(data: ResultData, pair: Pair, sources: tuple[Source, Source], with_sites: bool) -> PairView:
    """Read and lay out one pair.

    Args:
        data: The opened result folder.
        pair: Which pair.
        sources: Both traces, for token texts and what only they hold.
        with_sites: Also draw the map of every site.
    """
    texts = (sources[0].token_text, sources[1].token_text)
    parts_at = pair.first_position
    start = pair.prompt if parts_at is None or parts_at >= pair.prompt else 0
    middle, stop = start, start + TOKENS_EQUAL
    if parts_at is not None:
        middle, stop = max(start, parts_at - TOKENS_BEFORE), parts_at + TOKENS_AFTER
    stop = min(pair.positions, stop)
    folded_from = max(start, middle - FOLDED_TOKENS)
    prompt_from = max(0, start - PROMPT_TOKENS)
    rows = data.tokens(pair.pair, min(prompt_from, folded_from), stop)
    prompt = [row for row in rows if prompt_from <= row.position < start]
    folded = [row for row in rows if folded_from <= row.position < middle]
    shown = [row for row in rows if middle <= row.position]
    logits = data.first_logits(pair.pair)
    chosen_at = _chosen_at(pair, logits)
    listed = [] if chosen_at is None else data.candidates(pair.pair, chosen_at)
    candidates, others = _split(listed, most_moved=parts_at is None)
    sides = recorded(sources[0], pair, chosen_at), recorded(sources[1], pair, chosen_at)
    known = {**texts[1], **texts[0]}
    logprobs = [value for item in listed for value in (item.logprob_a, item.logprob_b)]
    plot = draw_margins(f"margins-{pair.pair}", data.margins(pair.pair, MARGIN_BINS), pair.first_step)
    drift = draw_drift(data, pair, with_sites)
    maps = [] if drift is None else [drift.layers, drift.sites, drift.depth]
    at = next((row for row in rows if row.position == parts_at and row.step is not None), None)
    by_logprob = data.verdict.max_abs_logit_diff is None
    return PairView(
        pair=pair,
        name=format.request_name(pair.request_id, pair.sample),
        prompt=[token for row in prompt if (token := _token(row, row.token_a, texts[0], parts_at))],
        prompt_left_out=prompt_from,
        a=_side(folded, shown, "a", texts[0], parts_at),
        b=_side(folded, shown, "b", texts[1], parts_at),
        before_left_out=folded_from - start,
        after_left_out=pair.positions - stop,
        recorded=sides,
        prompts_differ=parts_at is not None and (_in_prompt(pair) or _unlike_lengths(sides)),
        first_logits=logits,
        candidates_at=chosen_at,
        candidates=[(item, _pieces(item.token_id, known)) for item in candidates],
        more_candidates=[(item, _pieces(item.token_id, known)) for item in others],
        sampler=sampler_line(sides, sources, listed),
        sampling=sampling_line(pair.request_id, sources),
        largest_logprob=max(
            (value for value in logprobs if value is not None and math.isfinite(value)), default=0.0
        ),
        close_call=None
        if at is None
        else verdict.close_call(at.margin_a, at.drift, by_logprob, NEAR_TIE in _causes(data, pair)),
        close_steps=data.close_steps(pair.pair, CLOSE_STEPS),
        moved_steps=data.moved_steps(pair.pair),
        layers=data.layer_totals(pair.pair),
        plot=plot,
        drift=drift,
        data={
            "tokens": _token_data(rows),
            "plot": None if plot is None else {"id": plot.id, **plot.data},
            "maps": [{"id": item.id, **item.data} for item in maps if item is not None],
            "sites": [site.label for site in data.sites] if drift is not None else [],
        },
    )


def _causes(data: ResultData, pair: Pair) -> list[str]:
    """Ids of the causes of a pair; the verdict's are those of the pair that it speaks of."""
    first = data.verdict.first_token
    if first is not None and (first.request_id, first.sample) == (pair.request_id, pair.sample):
        return [cause.id for cause in data.verdict.causes]
    return (pair.causes or "").split(", ")


def _in_prompt(pair: Pair) -> bool:
    """The tokens part inside a prompt: nobody chose them."""
    if pair.token_a is None or pair.token_b is None or pair.first_position is None:
        return False
    return pair.first_step is None or pair.first_position < pair.prompt


def _unlike_lengths(sides: tuple[Recorded | None, Recorded | None]) -> bool:
    """The prompts of both sides are of different lengths, as far as their traces say."""
    a, b = sides
    return a is not None and b is not None and a.prompt != b.prompt


def _chosen_at(pair: Pair, logits: FirstLogits | None) -> int | None:
    """Position of the token whose candidates are shown: the first that both chose and chose unlike, else
    the first whose logits differ where no row before tells why. None: there is no such choice."""
    if pair.first_position is not None:
        ended = pair.token_a is None or pair.token_b is None  # one side chose nothing there
        return None if ended or _in_prompt(pair) else pair.first_position
    if logits is None or (pair.first_moved is not None and pair.first_moved < logits.position):
        return None  # where the difference arises is seen inside the model
    return logits.position


def _split(listed: list[Candidate], most_moved: bool) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that are shown, and those that are folded away.

    Args:
        listed: The likeliest first.
        most_moved: The one that moved most is shown too: no choice tells what happened.
    """
    moves = [abs((one.logit_b or 0.0) - (one.logit_a or 0.0)) for one in listed]
    top = moves.index(max(moves)) if most_moved and moves else -1
    shown = [
        place < CANDIDATES or one.chosen_a or one.chosen_b or place == top for place, one in enumerate(listed)
    ]
    return (
        [one for one, here in zip(listed, shown, strict=True) if here],
        [one for one, here in zip(listed, shown, strict=True) if not here],
    )


def _side(
    folded: list[TokenRow], shown: list[TokenRow], side: str, texts: dict[str, str], parts_at: int | None
) -> SideText:
    def tokens(rows: list[TokenRow]) -> list[Token]:
        ids = ((row, row.token_a if side == "a" else row.token_b) for row in rows)
        return [token for row, token_id in ids if (token := _token(row, token_id, texts, parts_at))]

    at = next((row for row in shown if row.position == parts_at), None)
    missing = at is not None and (at.token_a if side == "a" else at.token_b) is None
    return SideText(tokens(folded), tokens(shown), missing)


def _token(row: TokenRow, token_id: int | None, texts: dict[str, str], parts_at: int | None) -> Token | None:
    if token_id is None:
        return None
    first = row.position == parts_at
    kind = "first" if first else "" if row.equal else "other"
    return Token(row.position, _pieces(token_id, texts, spaces=first), kind)


def _pieces(token_id: int, texts: dict[str, str], spaces: bool = True) -> list[tuple[bool, str]]:
    text = texts.get(str(token_id))
    if text is None or format.BROKEN in text:
        return [(True, f"⟨{token_id}⟩")]
    return format.pieces(text, spaces) or [(True, "∅")]


def _token_data(rows: list[TokenRow]) -> dict[str, Any]:
    """For hovering: a list per field, a place per position from `first` on, texts as they are shown."""
    return {
        "first": rows[0].position if rows else 0,
        "step": [row.step for row in rows],
        "ida": [row.token_a for row in rows],
        "idb": [row.token_b for row in rows],
        "pa": [None if row.logprob_a is None else format.percent(row.logprob_a) for row in rows],
        "pb": [None if row.logprob_b is None else format.percent(row.logprob_b) for row in rows],
        "ma": [None if row.margin_a is None else format.number(row.margin_a) for row in rows],
        "mb": [None if row.margin_b is None else format.number(row.margin_b) for row in rows],
        "d": [None if row.drift is None else format.number(row.drift) for row in rows],
    }
