"""The timeline of evidence of one pair: runs, prompt, first numbers, origin, spread, tokens, end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..findings.sentence import unseen_before
from ..format import does, drift_words, moment, number, plain, plural, quoted_token, request_name, site_label
from ..verdict import mode_words
from .model import Event

if TYPE_CHECKING:
    from ....schemas.verdict import FirstSite, FirstToken, Verdict
    from .data import ResultData
    from .model import PairView
    from .rows import FirstLogits, Pair, Spread
    from .sources import Source


COUNTED = (
    "Positions count the tokens of prompt and answer together, from 0; steps count those of the answer. A row"
    " inside the model is named by the token that was read there, logits by the token that they chose, which"
    " is the next one."
)
"""How places are named, for the whole document."""


def timeline(data: ResultData, view: PairView | None, sources: tuple[Source, Source]) -> list[Event]:
    """The events in the order in which they happened.

    Args:
        data: The opened result folder.
        view: The pair that the verdict speaks of; None where nothing was compared by tokens.
        sources: The two traces.
    """
    verdict = data.verdict
    events = sorted((event for source in sources for event in _run(source)), key=lambda event: event.when)
    if view is None:
        events += _text(verdict)
        return events
    pair = view.pair
    events.append(_prompt(view, sources))
    spread = data.spread(pair)
    inside = [
        *_origin(verdict.first_site, pair),
        *(() if spread is None else _spread(spread, pair, verdict.first_site)),
        *_numbers(verdict, pair, view.first_logits),
    ]
    parting = [] if view.prompts_differ else _token(verdict.first_token, pair, sources)
    ends = [*parting, *_end(data, view, sources)]
    return [*events, *(event for _, _, event in sorted(inside, key=lambda item: item[:2])), *ends]


def _run(source: Source) -> Iterator[Event]:
    if source.header is None:
        return
    header = source.header
    took = [
        f"{what} {seconds:.1f} s"
        for name, what in (("load", "loading"), ("replay", "replay"))
        if (seconds := header.seconds.get(name)) is not None
    ]
    model = f", {plain(header.lane.model)}" if header.lane.model else ""
    detail = f"engine {plain(header.lane.engine)}{model}, {mode_words(header.mode)}"
    yield Event(
        plain(moment(header.created)),
        f"Run {source.side} begins",
        f"{detail}{'; ' + ', '.join(took) if took else ''}",
        f"header of trace {source.side}",
        "run",
    )


def _text(verdict: Verdict) -> Iterator[Event]:
    first = verdict.first_text
    if first is not None:
        yield Event(
            f"character {first.character:,}",
            f"The texts of {request_name(first.request_id, first.sample)} part",
            f"A goes on “{plain(first.a)}”, B “{plain(first.b)}”",
            "summary.json, first_text",
            "tokens",
        )


def _prompt(view: PairView, sources: tuple[Source, Source]) -> Event:
    pair = view.pair
    if not view.prompts_differ:
        title, detail = f"{view.name} enters both runs", f"{plural(pair.prompt, 'prompt token')}, equal"
        return Event("prompt", title, detail, "table tokens")
    lengths = " and ".join(
        f"{plural(side.prompt, 'token')} in {source.side}"
        for side, source in zip(view.recorded, sources, strict=True)
        if side is not None
    )
    assert pair.first_position is not None
    return Event(
        _place(None, pair.first_position),
        f"The prompts of {view.name} are not the same",
        f"{lengths}; A has {_said(pair.token_a, sources[0])} here, B has {_said(pair.token_b, sources[1])}"
        if lengths
        else f"A has {_said(pair.token_a, sources[0])} here, B has {_said(pair.token_b, sources[1])}",
        "table tokens",
        "tokens",
    )


def _said(token: int | None, source: Source) -> str:
    return "nothing: it ended" if token is None else quoted_token(token, source.token_text)


def _numbers(verdict: Verdict, pair: Pair, logits: FirstLogits | None) -> Iterator[tuple[int, int, Event]]:
    """Where logits and log-probabilities differ first: one event where that is at the same token."""
    first = verdict.first_logprob
    if first is not None and (first.request_id, first.sample) != (pair.request_id, pair.sample):
        first = None
    by_nats = "" if first is None else f"by {number(first.max_abs_diff)} nats"
    chose = "in the distribution that chose this token"
    if logits is not None:
        size = "their hashes differ" if logits.max_diff is None else f"by up to {number(logits.max_diff)}"
        if logits.max_diff is not None and not math.isfinite(logits.max_diff):
            size, by_nats = "not all of them are finite", "likewise"
        same = first is not None and first.position == logits.position
        detail = f"{size}{'; log-probabilities ' + by_nats if same else ''}, {chose}"
        seen = verdict.first_site is not None or not pair.rows_compared
        if not seen and (pair.first_moved is None or pair.first_moved >= logits.position):
            detail += "; no observed row differs before, so it arises behind them or in what was not observed"
        place = _place(logits.step, logits.position)
        event = Event(place, "Logits differ for the first time", detail, "table tokens", "numbers")
        yield logits.position, 2, event
        if same:
            return
    if first is not None:
        place = _place(first.step, first.position)
        title = "Log-probabilities differ for the first time"
        event = Event(place, title, f"{by_nats}, {chose}", "table tokens", "numbers")
        yield first.position, 2, event


def _origin(site: FirstSite | None, pair: Pair) -> Iterator[tuple[int, int, Event]]:
    if site is None or (site.request_id, site.sample) != (pair.request_id, pair.sample):
        return
    size = "" if site.rel_drift is None else f"{drift_words(site.rel_drift)}; "
    if site.is_origin:
        detail = (
            f"{size}all that was computed before is equal, so the module got equal inputs and gave another"
        )
        detail += " output"
    else:
        detail = (
            f"{size}{plain(unseen_before(site) or 'not every earlier row could be compared').rstrip('.')}"
        )
    title = "origin of the difference" if site.is_origin else "first observed difference"
    step = site.position - pair.prompt
    place = _place(step if step >= 0 else None, site.position)
    # What is not finite spreads to earlier positions of the same pass: the origin comes first all the same.
    first = site.position if pair.first_moved is None else min(site.position, pair.first_moved)
    yield first, 0, Event(place, f"{site_label(site)}: {title}", detail, "table sites", "origin")


def _spread(found: Spread, pair: Pair, site: FirstSite | None) -> Iterator[tuple[int, int, Event]]:
    assert pair.first_moved is not None

    def place(position: int) -> str:
        return _place(position - pair.prompt if position >= pair.prompt else None, position)

    detail = f"{found.at_origin:,} of {plural(found.of_sites, 'site')} {does(found.at_origin, 'differ')}"
    detail += " at this position"
    if found.next_position is not None:
        detail += f", {found.at_next:,} of {found.of_next:,} at position {found.next_position}"
    here = site is not None and (site.request_id, site.sample) == (pair.request_id, pair.sample)
    back = here and site is not None and pair.first_moved < site.position
    title = "It spreads through the whole pass, to earlier tokens too" if back else "It spreads"
    yield pair.first_moved, 1, Event(place(pair.first_moved), title, detail, "table sites", "numbers")
    if found.last_position is not None and found.last_position != pair.first_moved:
        title = f"It reaches {plain(found.last_label)}, the last site"
        detail = drift_words(found.last_drift)
        event = Event(place(found.last_position), title, detail, "table sites", "numbers")
        yield found.last_position, 1, event


def _token(first: FirstToken | None, pair: Pair, sources: tuple[Source, Source]) -> Iterator[Event]:
    if pair.first_position is None:
        return
    detail = f"A: {_said(pair.token_a, sources[0])}; B: {_said(pair.token_b, sources[1])}"
    if first is not None and (first.request_id, first.sample) == (pair.request_id, pair.sample):
        moved = first.max_abs_logit_diff
        moved = first.max_abs_logprob_diff if moved is None else moved
        # Nobody chose the tokens of a prompt.
        if first.step is not None and first.margin_a is not None and moved is not None:
            detail += f"; {_lead(first.margin_a, first.margin_b)}, and {_moved(moved)}"
    yield Event(
        _place(pair.first_step, pair.first_position),
        "The first divergent token",
        detail,
        "table tokens",
        "tokens",
    )


def _lead(margin_a: float, margin_b: float | None) -> str:
    in_b = "" if margin_b is None or not math.isfinite(margin_b) else f" and {number(margin_b)} in B"
    return f"the likeliest candidate led by {number(margin_a)} in A{in_b}"


def _moved(size: float) -> str:
    if not math.isfinite(size):
        return "not all of the numbers are finite"
    return f"the numbers moved by up to {number(size)}" if size else "the numbers are equal"


def _end(data: ResultData, view: PairView, sources: tuple[Source, Source]) -> list[Event]:
    """How each side ended; one event where both did alike."""
    pair, lengths = view.pair, data.lengths(view.pair.pair)
    found = []
    for source, side, compared in zip(
        sources, view.recorded, (lengths.generated_a, lengths.generated_b), strict=True
    ):
        tokens = compared if side is None else side.generated
        detail, took = plural(tokens, "generated token"), ""
        for result in [] if source.header is None else source.header.results:
            if (result.request_id, result.sample) == (pair.request_id, pair.sample):
                detail += f", stopped by: {plain(result.reason)}"
                took = "" if result.latency_s is None else f", after {result.latency_s:.2f} s"
                break
        when = f"after step {tokens - 1}" if tokens else "at once"
        found.append((when, source.side, detail, took))
    (when, _, detail, took), (when_b, _, detail_b, took_b) = found
    if (when, detail, took, took_b) == (when_b, detail_b, "", ""):
        return [Event(when, "Both end", detail, "table tokens", "end")]
    return [
        Event(when, f"{side} ends", detail + took, "table tokens", "end")
        for when, side, detail, took in found
    ]


def _place(step: int | None, position: int) -> str:
    return f"prompt, position {position}" if step is None else f"step {step}, position {position}"
