"""The timeline of evidence of one pair: runs, prompt, first numbers, origin, spread, tokens, end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..words import does, drift_words, moment, number, plain, plural, quoted_token, request_name, site_label
from .model import Event

if TYPE_CHECKING:
    from ...schemas.verdict import FirstSite, FirstToken, Verdict
    from .data import ResultData
    from .rows import FirstLogits, Pair, Spread
    from .sources import Source


def timeline(data: ResultData, pair: Pair | None, sources: tuple[Source, Source]) -> list[Event]:
    """The events in the order in which they happened.

    Args:
        data: The opened result folder.
        pair: The pair that the verdict speaks of; None where nothing was compared by tokens.
        sources: The two traces.
    """
    verdict = data.verdict
    events = sorted((event for source in sources for event in _run(source)), key=lambda event: event.when)
    if pair is None:
        events += _text(verdict)
        return events
    name = request_name(pair.request_id, pair.sample)
    events.append(_prompt(pair, name))
    spread = data.spread(pair)
    inside = [
        *_origin(verdict.first_site, pair),
        *(() if spread is None else _spread(spread, pair)),
        *_numbers(verdict, pair, data.first_logits(pair.pair)),
    ]
    ends = [*_token(verdict.first_token, pair, sources), *_end(data, pair, sources)]
    return [*events, *(event for _, _, event in sorted(inside, key=lambda item: item[:2])), *ends]


def _run(source: Source) -> Iterator[Event]:
    if source.header is None:
        return
    header = source.header
    took = [
        f"{what} {seconds:.1f} s"
        for name, what in (("load", "loading"), ("replay", "replay"), ("observer", "observer check"))
        if (seconds := header.seconds.get(name)) is not None
    ]
    model = f", {plain(header.lane.model)}" if header.lane.model else ""
    detail = f"lane {plain(header.lane.name)}, engine {plain(header.lane.engine)}{model}, {header.mode}"
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


def _prompt(pair: Pair, name: str) -> Event:
    if pair.first_position is not None and pair.first_step is None:
        return Event(
            "prompt",
            f"The prompts of {name} are not the same",
            "see the first differing token",
            "table tokens",
        )
    return Event(
        "prompt", f"{name} enters both runs", f"{plural(pair.prompt, 'prompt token')}, equal", "table tokens"
    )


def _numbers(verdict: Verdict, pair: Pair, logits: FirstLogits | None) -> Iterator[tuple[int, int, Event]]:
    """Where logits and log-probabilities differ first: one event where that is at the same token."""
    first = verdict.first_logprob
    if first is not None and (first.request_id, first.sample) != (pair.request_id, pair.sample):
        first = None
    by_nats = "" if first is None else f"by {number(first.max_abs_diff)} nats"
    chose = "in the distribution that chose this token"
    if logits is not None:
        size = "their hashes differ" if logits.max_diff is None else f"by up to {number(logits.max_diff)}"
        same = first is not None and first.position == logits.position
        detail = f"{size}{'; log-probabilities ' + by_nats if same else ''}, {chose}"
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
    size = "" if site.rel_drift is None else f"relative drift {drift_words(site.rel_drift)}; "
    if site.is_origin:
        detail = f"{size}every earlier row is equal, so this module got equal inputs and gave another output"
    else:
        detail = f"{size}{plain(site.unseen or 'not every earlier row could be compared').rstrip('.')}"
    title = "origin of the difference" if site.is_origin else "first observed difference"
    step = site.position - pair.prompt
    place = _place(step if step >= 0 else None, site.position)
    yield site.position, 0, Event(place, f"{site_label(site)}: {title}", detail, "table sites", "origin")


def _spread(found: Spread, pair: Pair) -> Iterator[tuple[int, int, Event]]:
    assert pair.first_moved is not None

    def place(position: int) -> str:
        return _place(position - pair.prompt if position >= pair.prompt else None, position)

    detail = f"{found.at_origin:,} of {plural(found.of_sites, 'site')} {does(found.at_origin, 'differ')}"
    detail += " at this position"
    if found.next_position is not None:
        detail += f", {found.at_next:,} of {found.of_next:,} at position {found.next_position}"
    yield pair.first_moved, 1, Event(place(pair.first_moved), "It spreads", detail, "table sites", "numbers")
    if found.last_position is not None and found.last_position != pair.first_moved:
        title = f"It reaches {plain(found.last_label)}, the last site"
        detail = f"relative drift {drift_words(found.last_drift)}"
        event = Event(place(found.last_position), title, detail, "table sites", "numbers")
        yield found.last_position, 1, event


def _token(first: FirstToken | None, pair: Pair, sources: tuple[Source, Source]) -> Iterator[Event]:
    if pair.first_position is None:
        return
    said = [
        "nothing: it ended" if one is None else quoted_token(one, source.token_text)
        for one, source in zip((pair.token_a, pair.token_b), sources, strict=True)
    ]
    detail = f"A: {said[0]}; B: {said[1]}"
    if first is not None and (first.request_id, first.sample) == (pair.request_id, pair.sample):
        moved = first.max_abs_logit_diff
        moved = first.max_abs_logprob_diff if moved is None else moved
        # Nobody chose the tokens of a prompt.
        if first.step is not None and first.margin_a is not None and moved is not None:
            detail += (
                f"; margins {number(first.margin_a)} in A and {number(first.margin_b)} in B, drift"
                f" {number(moved)}"
            )
    yield Event(
        _place(pair.first_step, pair.first_position),
        "The first divergent token",
        detail,
        "table tokens",
        "tokens",
    )


def _end(data: ResultData, pair: Pair, sources: tuple[Source, Source]) -> Iterator[Event]:
    lengths = data.lengths(pair.pair)
    for source, tokens in zip(sources, (lengths.generated_a, lengths.generated_b), strict=True):
        detail = plural(tokens, "generated token")
        for result in [] if source.header is None else source.header.results:
            if (result.request_id, result.sample) == (pair.request_id, pair.sample):
                detail += f", stopped by: {plain(result.reason)}"
                if result.latency_s is not None:
                    detail += f", after {result.latency_s:.2f} s"
                break
        yield Event(f"step {max(tokens - 1, 0)}", f"{source.side} ends", detail, "table tokens", "end")


def _place(step: int | None, position: int) -> str:
    return f"prompt, position {position}" if step is None else f"step {step}, position {position}"
