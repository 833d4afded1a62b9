"""The timeline of one pair: runs, prompt, first differing numbers, origin, spread, tokens, end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..findings.sentences import unseen_before
from ..format import does, drift_size, moment, number, plain, plural, quoted_token, request_name, site_label
from ..verdict_sentences import mode_description
from .document import Event

if TYPE_CHECKING:
    from ....schemas.verdict import FirstSite, FirstToken, Verdict
    from .document import PairView
    from .reading.result import ResultData
    from .reading.rows import FirstLogits, Pair, Spread
    from .reading.traces import Source


def timeline(data: ResultData, view: PairView | None, sources: tuple[Source, Source]) -> list[Event]:
    """The events in the order in which they happened.

    Args:
        data: The opened result folder.
        view: The verdict's pair; None where nothing was compared by tokens.
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
    events += [event for _, _, event in sorted(inside, key=lambda item: item[:2])]
    if not view.prompts_differ:
        events += _token(verdict.first_token, pair, sources)
    return events + _end(data, view, sources)


def _run(source: Source) -> Iterator[Event]:
    if source.header is None:
        return
    header = source.header
    durations = [
        f"{what} {seconds:.1f} s"
        for name, what in (("load", "loading"), ("replay", "replay"))
        if (seconds := header.seconds.get(name)) is not None
    ]
    model = f", {plain(header.lane.model)}" if header.lane.model else ""
    detail = f"engine {plain(header.lane.engine)}{model}, {mode_description(header.mode)}"
    yield Event(
        plain(moment(header.created)),
        f"Run {source.side} starts",
        f"{detail}{'; ' + ', '.join(durations) if durations else ''}",
        f"header of trace {source.side}",
        "run",
    )


def _text(verdict: Verdict) -> Iterator[Event]:
    first = verdict.first_text
    if first is not None:
        yield Event(
            f"character {first.character:,}",
            f"The texts of {request_name(*first.sequence)} diverge",
            f"A continues “{plain(first.a)}”, B “{plain(first.b)}”",
            "summary.json, first_text",
            "tokens",
        )


def _prompt(view: PairView, sources: tuple[Source, Source]) -> Event:
    pair = view.pair
    if not view.prompts_differ:
        title, detail = f"Prompt of {view.name}", f"{plural(pair.prompt, 'token')}, equal in both runs"
        return Event("prompt", title, detail, "table tokens")
    lengths = " and ".join(
        f"{plural(side.prompt, 'token')} in {source.side}"
        for side, source in zip(view.recorded, sources, strict=True)
        if side is not None
    )
    here = f"A: {_token_text(pair.token_a, sources[0])}; B: {_token_text(pair.token_b, sources[1])}"
    assert pair.first_position is not None
    return Event(
        _location(None, pair.first_position),
        f"The prompts of {view.name} differ",
        f"{lengths}; {here}" if lengths else here,
        "table tokens",
        "tokens",
    )


def _token_text(token: int | None, source: Source) -> str:
    return "output ended" if token is None else quoted_token(token, source.token_text)


def _numbers(verdict: Verdict, pair: Pair, logits: FirstLogits | None) -> Iterator[tuple[int, int, Event]]:
    """Where logits and log-probabilities differ first: one event where that is at the same token."""
    first = verdict.first_logprob
    if first is not None and first.sequence != pair.sequence:
        first = None
    by_nats = "" if first is None else f"by {number(first.max_abs_diff)} nats"
    chose = "in the distribution that chose this token"
    if logits is not None:
        size = "their hashes differ" if logits.max_diff is None else f"by up to {number(logits.max_diff)}"
        if logits.max_diff is not None and not math.isfinite(logits.max_diff):
            size, by_nats = "some are not finite", "likewise"
        same = first is not None and first.position == logits.position
        detail = f"{size}{'; log-probabilities ' + by_nats if same else ''}, {chose}"
        seen = verdict.first_site is not None or not pair.rows_compared
        if not seen and (pair.first_moved is None or pair.first_moved >= logits.position):
            detail += "; no earlier row differs, so it arises after them or where no site was observed"
        location = _location(logits.step, logits.position)
        event = Event(location, "First differing logits", detail, "table tokens", "numbers")
        yield logits.position, 2, event
        if same:
            return
    if first is not None:
        location = _location(first.step, first.position)
        title = "First differing log-probabilities"
        event = Event(location, title, f"{by_nats}, {chose}", "table tokens", "numbers")
        yield first.position, 2, event


def _origin(site: FirstSite | None, pair: Pair) -> Iterator[tuple[int, int, Event]]:
    if site is None or site.sequence != pair.sequence:
        return
    size = "" if site.rel_drift is None else f"{drift_size(site.rel_drift)}; "
    if site.is_origin:
        detail = f"{size}all earlier rows are equal: equal inputs, different output"
    else:
        detail = f"{size}{plain(unseen_before(site) or 'not all earlier rows were compared').rstrip('.')}"
    title = "origin of the difference" if site.is_origin else "first observed difference"
    step = site.position - pair.prompt
    location = _location(step if step >= 0 else None, site.position)
    # A value that is not finite spreads to earlier positions of the same pass: the origin still comes first.
    first = site.position if pair.first_moved is None else min(site.position, pair.first_moved)
    yield first, 0, Event(location, f"{site_label(site)}: {title}", detail, "table sites", "origin")


def _spread(found: Spread, pair: Pair, site: FirstSite | None) -> Iterator[tuple[int, int, Event]]:
    assert pair.first_moved is not None

    def where(position: int) -> str:
        return _location(position - pair.prompt if position >= pair.prompt else None, position)

    detail = f"{found.at_origin:,} of {plural(found.of_sites, 'site')} {does(found.at_origin, 'differ')}"
    detail += " at this position"
    if found.next_position is not None:
        detail += f", {found.at_next:,} of {found.of_next:,} at position {found.next_position}"
    here = site is not None and site.sequence == pair.sequence
    back = here and site is not None and pair.first_moved < site.position
    title = "Spreads through the whole pass, to earlier tokens too" if back else "Spreads"
    yield pair.first_moved, 1, Event(where(pair.first_moved), title, detail, "table sites", "numbers")
    if found.last_position is not None and found.last_position != pair.first_moved:
        title = f"Reaches {plain(found.last_label)}, the last site"
        detail = drift_size(found.last_drift)
        event = Event(where(found.last_position), title, detail, "table sites", "numbers")
        yield found.last_position, 1, event


def _token(first: FirstToken | None, pair: Pair, sources: tuple[Source, Source]) -> Iterator[Event]:
    if pair.first_position is None:
        return
    detail = f"A: {_token_text(pair.token_a, sources[0])}; B: {_token_text(pair.token_b, sources[1])}"
    if first is not None and first.sequence == pair.sequence:
        moved = first.max_abs_logit_diff
        moved = first.max_abs_logprob_diff if moved is None else moved
        # No engine chose the tokens of a prompt.
        if first.step is not None and first.margin_a is not None and moved is not None:
            detail += f"; {_margins(first.margin_a, first.margin_b)}; {_difference(moved)}"
    yield Event(
        _location(pair.first_step, pair.first_position),
        "First divergent token",
        detail,
        "table tokens",
        "tokens",
    )


def _margins(margin_a: float, margin_b: float | None) -> str:
    in_b = "" if margin_b is None or not math.isfinite(margin_b) else f", {number(margin_b)} in B"
    return f"margin {number(margin_a)} in A{in_b}"


def _difference(size: float) -> str:
    if not math.isfinite(size):
        return "some numbers are not finite"
    return f"largest difference {number(size)}" if size else "the numbers are equal"


def _end(data: ResultData, view: PairView, sources: tuple[Source, Source]) -> list[Event]:
    """How each side ended; one event where both ended alike."""
    pair, lengths = view.pair, data.lengths(view.pair.pair)
    found = []
    for source, side, compared in zip(
        sources, view.recorded, (lengths.generated_a, lengths.generated_b), strict=True
    ):
        tokens = compared if side is None else side.generated
        detail, took = plural(tokens, "generated token"), ""
        for result in [] if source.header is None else source.header.results:
            if (result.request_id, result.sample) == pair.sequence:
                detail += f", finish reason: {plain(result.reason)}"
                took = "" if result.latency_s is None else f", after {result.latency_s:.2f} s"
                break
        when = f"after step {tokens - 1}" if tokens else "no step"
        found.append((when, source.side, detail, took))
    (when, _, detail, took), (when_b, _, detail_b, took_b) = found
    if (when, detail, took, took_b) == (when_b, detail_b, "", ""):
        return [Event(when, "Both end", detail, "table tokens", "end")]
    return [
        Event(when, f"{side} ends", detail + took, "table tokens", "end")
        for when, side, detail, took in found
    ]


def _location(step: int | None, position: int) -> str:
    return f"prompt, position {position}" if step is None else f"step {step}, position {position}"
