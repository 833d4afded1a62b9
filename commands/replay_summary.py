"""What `rip replay` says when it is done: a short account for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..replay.record_run import Outcome
    from ..replay.run import Result

SHOWN_FINDINGS = 8
"""Findings that are printed; the trace's header holds all."""


def summarise(console: Console, result: Result, chosen: bool) -> None:
    """A short account for people, on stderr."""
    from .console import counted, tell

    header, outcomes = result.header, result.outcomes
    texts = header.abilities is not None and not header.abilities.token_ids
    made = f"{sum(len(outcome.tokens) for outcome in outcomes)} tokens"
    if texts:
        made = f"{sum(len(outcome.text or '') for outcome in outcomes)} characters"
    verb = "generated" if header.mode == "free" else "forced"
    if header.capture == "tokens":
        seen = "texts only" if texts else "tokens only"
    else:
        seen = f"{len(header.sites)} sites" + ("" if chosen else " (the default)")
        if header.site_filter:
            seen = f"{len(header.sites)} sites (those that match --sites)"
        seen += ", rows kept" if header.capture == "tensors" else ""
    tell(console, f"{counted(len(outcomes), 'sequence')}, {made} {verb} ({header.mode}), captured: {seen}")
    if header.observer.state != "not run":
        tell(console, f"observer check: {header.observer.state} ({header.observer.compared})")
    if header.observer.why and header.capture != "tokens":
        tell(console, f"warning: {header.observer.why}", style="yellow")
    for finding in header.findings[:SHOWN_FINDINGS]:
        tell(console, f"note: {finding}")
    if len(header.findings) > SHOWN_FINDINGS:
        tell(console, f"note: {len(header.findings) - SHOWN_FINDINGS} more in the header of the trace")
    for sentence in header.not_seen:
        tell(console, f"not seen: {sentence}")
    _tell_expected(console, outcomes)
    tell(console, f"Wrote {result.path}")


def _tell_expected(console: Console, outcomes: list[Outcome]) -> None:
    """Which recorded answers came again, by what was compared, and which could not be compared."""
    from collections import Counter

    from .console import tell

    missed = [outcome for outcome in outcomes if outcome.expected.mismatch is not None]
    for outcome in missed[:SHOWN_FINDINGS]:
        place, compared = f"{outcome.request_id}, sample {outcome.sample}", outcome.expected
        unit = "step" if compared.by == "tokens" else "character"
        tell(console, f"{place}: expected {compared.by} left at {unit} {compared.mismatch}", style="red")
    for by in ("tokens", "text"):
        compared_so = [outcome for outcome in outcomes if outcome.expected.by == by]
        again = sum(outcome.expected.mismatch is None for outcome in compared_so)
        if compared_so:
            tell(console, f"expected {by} came again in {again} of {len(compared_so)}")
    unmet = Counter(outcome.expected.why_not for outcome in outcomes if outcome.expected.why_not)
    for why, count in unmet.items():
        tell(console, f"{count} could not be compared: {why}", style="yellow")
