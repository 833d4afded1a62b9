"""Whether a recorded answer came again: by its token ids where both sides tell them, else by its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...schemas.envelope import Envelope, Expected
from ..wire.tool_calls import with_calls
from .batches import PlannedSequence
from .contract import is_repeatable

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_KEEPS_STOP = "include_stop_str_in_output"


@dataclass(frozen=True)
class Came:
    """What a run generated for one sequence.

    Attributes:
        tokens: Generated ids; empty where `has_ids` is false.
        text: None where the engine tells none and nothing at hand decodes the ids.
        has_ids: The engine tells token ids, and its text is what the model wrote. Otherwise the text is an
            answer of the OpenAI API: calls of tools stand in it as rip writes them, reasoning does not.
    """

    tokens: Sequence[int]
    text: str | None
    reason: str
    has_ids: bool


@dataclass(frozen=True)
class Compared:
    """How an answer compares with the recorded one.

    Attributes:
        by: What was compared; None: nothing, because nothing was to be expected, or because of `why_not`.
        mismatch: Step, or character of the recorded text, at which it was left; None: it came again.
        why_not: Why an answer that should come again could not be compared.
    """

    by: Literal["tokens", "text"] | None = None
    mismatch: int | None = None
    why_not: str | None = None


def sample_of(expected: Expected | None, index: int) -> Expected | None:
    """What is expected of one of the n samples of a request; None: nothing is stated."""
    if expected is None or index == 0:
        return expected
    others = expected.samples or []
    return others[index - 1] if index <= len(others) else None


def compare(plan: PlannedSequence, envelope: Envelope, came: Came) -> Compared:
    """Compare what a free run generated with what was recorded.

    Only what greedy decoding or a stated seed can bring again is expected to come again.
    """
    expected = sample_of(envelope.expected, plan.seed_offset)
    if expected is None or not is_repeatable(plan.sampling):
        return Compared()
    if came.has_ids and expected.token_ids is not None:
        return Compared("tokens", first_difference(came.tokens, expected.token_ids))
    why_not = _untold(envelope, expected, came)
    if why_not is not None:
        return Compared(why_not=why_not)
    if not came.has_ids:
        text, wanted = came.text or "", with_calls(expected.text or "", expected.tool_calls or ())
    else:
        text, wanted = _as_served(came.text or "", plan, envelope), expected.text or ""
        text, wanted = text.rstrip(_HALF_CHARACTER), wanted.rstrip(_HALF_CHARACTER)
        if wanted.startswith(" ") and not text.startswith(" "):
            text = f" {text}"  # decoded from the start of the answer, some tokenizers leave it out
    if plan.sampling["max_tokens"].source != "envelope":
        if expected.finish_reason == "length":  # where the server's own limit lay is not known
            text = text[: len(wanted)]
        if came.reason == "length" and text != wanted and wanted.startswith(text):
            return Compared(why_not="no max_tokens was recorded, and here a limit ended the answer")
    return Compared("text", first_difference(text, wanted))


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """First index at which two sequences differ; a strict prefix differs at its length; None: equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _untold(envelope: Envelope, expected: Expected, came: Came) -> str | None:
    """Why the texts cannot be compared; None: they can."""
    if expected.text is None and not expected.tool_calls:
        if any(name.startswith("expected.") for name in envelope.redactions or {}):
            return "the recorded answer was redacted"
        if expected.token_ids is not None:
            return "token ids were recorded and no text, and this engine tells only text"
        if not expected.reasoning:
            return "the recorded answer holds neither token ids nor text"
    if not came.has_ids:
        return None
    if expected.tool_calls:
        return "calls of tools were recorded, which this engine tells in the model's own words"
    if expected.reasoning:
        return "reasoning was recorded apart from the text, which this engine does not tell apart"
    if came.text is None:
        return "only text was recorded, and this engine tells none"
    return None


def _as_served(text: str, plan: PlannedSequence, envelope: Envelope) -> str:
    """The text as the OpenAI API gives it: up to the stop string, unless the request asked to see that."""
    if (envelope.request or {}).get(_KEEPS_STOP) is True:
        return text
    found = [text.find(stop) for stop in plan.value("stop") or () if stop in text]
    return text[: min(found)] if found else text
