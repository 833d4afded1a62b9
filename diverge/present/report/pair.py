"""One pair of a report: which stretches of its outputs are shown, its candidates, pictures and their data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....schemas.findings.statement import SIDES
from .. import format
from ..first_screen.causes import NEAR_TIE
from ..sampled_choice import sampled_choice
from .document import Candidates, MarginView, Outputs, PairView, SideText, Token
from .pair_sentences import (
    candidates_note,
    close_call,
    close_steps_title,
    margin_note,
    no_drift_note,
    sampler_line,
    sampling_line,
)
from .pictures.drift import draw_drift
from .pictures.step_charts import draw_margins
from .reading.rows import Candidate, recorded

if TYPE_CHECKING:
    from ....schemas.findings.statement import Side
    from .reading.result import ResultData
    from .reading.rows import FirstLogits, Pair, Recorded, TokenRow
    from .reading.traces import Source

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


def view_pair(data: ResultData, pair: Pair, sources: tuple[Source, Source], with_sites: bool) -> PairView:
    """Read and lay out one pair.

    Args:
        data: The opened result folder.
        pair: Which pair.
        sources: Both traces, for token texts and what only they hold.
        with_sites: Also draw the map of every site.
    """
    logits = data.first_logits(pair.pair)
    chosen_at = _chosen_at(pair, logits)
    sides = recorded(sources[0], pair, chosen_at), recorded(sources[1], pair, chosen_at)
    shown = _Stretches.of(pair)
    rows = data.tokens(pair.pair, min(shown.prompt, shown.folded), shown.stop)
    sampled = _sampled(data, pair, sources, sides)
    margins = _margins(data, pair, bool(sampled))
    drift = draw_drift(data, pair, with_sites)
    maps = [] if drift is None else [drift.layers, drift.sites, drift.depth]
    in_prompt = pair.first_position is not None and (_in_prompt(pair) or _unlike_lengths(sides))
    choice = _close_call(data, pair, rows)
    if choice is not None and sampled and chosen_at is not None:
        choice = _sampled_choice(sampled, sides, data.candidates(pair.pair, chosen_at))
    return PairView(
        pair=pair,
        name=format.request_name(*pair.sequence),
        recorded=sides,
        prompts_differ=in_prompt,
        first_logits=logits,
        sampling=sampling_line(pair.request_id, sources),
        outputs=_outputs(pair, shown, rows, sources),
        close_call=choice,
        candidates=None if chosen_at is None else _candidates(data, pair, rows, chosen_at, sides, sources),
        margins=margins,
        drift=drift,
        layers=data.layer_totals(pair.pair),
        no_drift_note=no_drift_note(pair, len(data.sites), logits),
        data={
            "tokens": _token_data(rows),
            "plot": None if margins is None else {"id": margins.plot.id, **margins.plot.data},
            "maps": [item.data for item in maps if item is not None],
            "sites": [site.label for site in data.sites] if drift is not None else [],
        },
    )


@dataclass(frozen=True)
class _Stretches:
    """Positions at which the stretches of a pair's tokens begin."""

    prompt: int
    start: int
    """Of the outputs: after the prompt, or 0 where the prompts differ."""
    folded: int
    middle: int
    """Of what is shown unfolded."""
    stop: int

    @classmethod
    def of(cls, pair: Pair) -> _Stretches:
        """So much around the divergence, or from the start of the answer, as the page takes."""
        at = pair.first_position
        start = pair.prompt if at is None or at >= pair.prompt else 0
        middle, stop = start, start + TOKENS_EQUAL
        if at is not None:
            middle, stop = max(start, at - TOKENS_BEFORE), at + TOKENS_AFTER
        folded = max(start, middle - FOLDED_TOKENS)
        return cls(max(0, start - PROMPT_TOKENS), start, folded, middle, min(pair.positions, stop))


def _outputs(pair: Pair, shown: _Stretches, rows: list[TokenRow], sources: tuple[Source, Source]) -> Outputs:
    at, texts = pair.first_position, sources[0].token_text
    prompt = [row for row in rows if shown.prompt <= row.position < shown.start]
    return Outputs(
        prompt=[token for row in prompt if (token := _token(row, row.token_a, texts, at))],
        prompt_left_out=shown.prompt,
        a=_side(rows, shown, at, "a", texts),
        b=_side(rows, shown, at, "b", sources[1].token_text),
        before_left_out=max(shown.folded - shown.start, 0),
        after_left_out=max(pair.positions - shown.stop, 0),
    )


def _sampled(
    data: ResultData, pair: Pair, sources: tuple[Source, Source], sides: tuple[Recorded | None, ...]
) -> list[Side]:
    """The sides that drew the tokens of a pair, as far as they say."""
    first = data.verdict.first_token
    known = (first.sampled or []) if first is not None and first.sequence == pair.sequence else []
    return [
        name
        for name, source, side in zip(SIDES, sources, sides, strict=True)
        if name in known
        or (source.header is not None and source.header.is_sampled(pair.request_id))
        or _draw(side) is not None
    ]


def _draw(side: Recorded | None) -> float | None:
    return None if side is None or side.seen is None else side.seen.get("draw")


def _sampled_choice(
    sampled: list[Side], sides: tuple[Recorded | None, Recorded | None], listed: list[Candidate]
) -> str:
    """What is known of the draw of the first divergent token, as a sentence."""
    gaps = [
        abs(math.exp(one.logprob_a) - math.exp(one.logprob_b))
        for one in listed
        if one.logprob_a is not None and one.logprob_b is not None
    ]
    said = sampled_choice(sampled, (_draw(sides[0]), _draw(sides[1])), max(gaps, default=None))
    return f"{said[0].upper()}{said[1:]}."


def _close_call(data: ResultData, pair: Pair, rows: list[TokenRow]) -> str | None:
    at = next((row for row in rows if row.position == pair.first_position and row.step is not None), None)
    if at is None:
        return None
    by_logprob = data.verdict.max_abs_logit_diff is None
    return close_call(at.margin_a, at.drift, by_logprob, NEAR_TIE in _causes(data, pair))


def _candidates(
    data: ResultData,
    pair: Pair,
    rows: list[TokenRow],
    position: int,
    sides: tuple[Recorded | None, Recorded | None],
    sources: tuple[Source, Source],
) -> Candidates | None:
    listed = _with_chosen(data.candidates(pair.pair, position), pair, rows)
    sampler = sampler_line(sides, sources, listed)
    if not listed and sampler is None:
        return None
    shown, folded = _split(listed, most_moved=pair.first_position is None)
    texts = {**sources[1].token_text, **sources[0].token_text}
    logprobs = [value for item in listed for value in (item.logprob_a, item.logprob_b)]
    finite = [value for value in logprobs if value is not None and math.isfinite(value)]
    return Candidates(
        step=position - pair.prompt,
        note=" ".join(filter(None, (candidates_note(pair) if listed else None, sampler))),
        shown=[(item, _pieces(item.token_id, texts)) for item in shown],
        folded=[(item, _pieces(item.token_id, texts)) for item in folded],
        largest_logprob=max(finite, default=0.0),
    )


def _with_chosen(listed: list[Candidate], pair: Pair, rows: list[TokenRow]) -> list[Candidate]:
    """Candidates, and the token of each side that diverges, where a draw took one that is not among them."""
    row = next((row for row in rows if row.position == pair.first_position), None)
    if row is None or not listed:
        return listed
    known = {one.token_id for one in listed}
    found = list(listed)
    for token in dict.fromkeys((row.token_a, row.token_b)):
        if token is not None and token not in known:
            a, b = token == row.token_a, token == row.token_b
            logprobs = row.logprob_a if a else None, row.logprob_b if b else None
            found.append(Candidate(token, None, None, *logprobs, a, b))
    return found


def _margins(data: ResultData, pair: Pair, sampled: bool) -> MarginView | None:
    plot = draw_margins(f"margins-{pair.pair}", data.margins(pair.pair, MARGIN_BINS), pair.first_step)
    if plot is None:
        return None
    close = data.close_steps(pair.pair, CLOSE_STEPS)
    title = close_steps_title(len(close), data.moved_steps(pair.pair), sampled)
    return MarginView(plot, margin_note(plot, close, sampled), close, title)


def _causes(data: ResultData, pair: Pair) -> list[str]:
    """Ids of the causes of a pair; the verdict's are those of the pair that it speaks of."""
    first = data.verdict.first_token
    if first is not None and first.sequence == pair.sequence:
        return [cause.id for cause in data.verdict.causes]
    return (pair.causes or "").split(", ")


def _in_prompt(pair: Pair) -> bool:
    """The tokens differ inside a prompt: nobody chose them."""
    if pair.token_a is None or pair.token_b is None or pair.first_position is None:
        return False
    return pair.first_step is None or pair.first_position < pair.prompt


def _unlike_lengths(sides: tuple[Recorded | None, Recorded | None]) -> bool:
    """The prompts of both sides are of different lengths, as far as their traces say."""
    a, b = sides
    return a is not None and b is not None and a.prompt != b.prompt


def _chosen_at(pair: Pair, logits: FirstLogits | None) -> int | None:
    """Position of the token whose candidates are shown: the first that both sides chose differently, else the
    first whose logits differ where no earlier row explains it. None: there is no such choice."""
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
        most_moved: Show the one that moved most too: no choice diverges.
    """
    moves = [abs((one.logit_b or 0.0) - (one.logit_a or 0.0)) for one in listed]
    top = moves.index(max(moves)) if most_moved and moves else -1
    shown = [
        rank < CANDIDATES or one.chosen_a or one.chosen_b or rank == top for rank, one in enumerate(listed)
    ]
    return (
        [one for one, here in zip(listed, shown, strict=True) if here],
        [one for one, here in zip(listed, shown, strict=True) if not here],
    )


def _side(
    rows: list[TokenRow], shown: _Stretches, parts_at: int | None, side: str, texts: dict[str, str]
) -> SideText:
    ids = [(row, row.token_a if side == "a" else row.token_b) for row in rows]
    tokens = [token for row, token_id in ids if (token := _token(row, token_id, texts, parts_at))]
    return SideText(
        folded=[token for token in tokens if shown.folded <= token.position < shown.middle],
        shown=[token for token in tokens if shown.middle <= token.position],
        ends=any(row.position == parts_at and token_id is None for row, token_id in ids),
    )


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
    """For hovering: a list per field, an entry per position from `first` on, texts as they are shown."""
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
