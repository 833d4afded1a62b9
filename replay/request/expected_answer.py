"""Whether a recorded answer was reproduced: by its token ids where both sides have them, else by its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ...schemas.envelope import Envelope, Expected
from ..wire import with_calls
from .batches import PlannedSequence
from .contract import is_repeatable

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_KEEPS_STOP = "include_stop_str_in_output"


@dataclass(frozen=True)
class Generated:
    """What a run generated for one sequence.

    Attributes:
        tokens: Generated ids; empty where `has_ids` is false.
        text: None where the engine returns none and nothing at hand decodes the ids.
        has_ids: The engine returns token ids, and its text is what the model wrote. Otherwise the text is an
            answer of the OpenAI API: tool calls stand in it as rip writes them, reasoning does not.
    """

    tokens: Sequence[int]
    text: str | None
    reason: str
    has_ids: bool


class Obstacle(Enum):
    """Why an answer could not be compared, as a sentence."""

    REDACTED = "the recorded answer was redacted"
    ONLY_IDS_RECORDED = "token ids were recorded and no text, and this engine returns only text"
    NOTHING_RECORDED = "the recorded answer has neither token ids nor text"
    TOOL_CALLS = "tool calls were recorded, and this engine returns them as the model wrote them"
    REASONING = "reasoning was recorded apart from the text, and this engine does not separate it"
    NO_TEXT_HERE = "only text was recorded, and this engine does not return any"
    LIMITED_HERE = "no max_tokens was recorded, and here a limit ended the answer"


@dataclass(frozen=True)
class Compared:
    """How an answer compares with the recorded one.

    Attributes:
        by: What was compared; None: nothing, because nothing was expected, or because of `obstacle`.
        mismatch: First step, or character of the recorded text, that differs; None: it was reproduced.
        obstacle: Why an answer that should be reproduced could not be compared.
    """

    by: Literal["tokens", "text"] | None = None
    mismatch: int | None = None
    obstacle: Obstacle | None = None

    @property
    def why_not(self) -> str | None:
        """Why it could not be compared, for people."""
        return None if self.obstacle is None else self.obstacle.value


def sample_of(expected: Expected | None, index: int) -> Expected | None:
    """What is expected of one of the n samples of a request; None: nothing is stated."""
    if expected is None or index == 0:
        return expected
    others = expected.samples or []
    return others[index - 1] if index <= len(others) else None


def compare(plan: PlannedSequence, envelope: Envelope, generated: Generated) -> Compared:
    """Compare what a free run generated with what was recorded.

    Only what greedy decoding or a stated seed reproduces is expected.
    """
    expected = sample_of(envelope.expected, plan.seed_offset)
    if expected is None or not is_repeatable(plan.sampling):
        return Compared()
    if generated.has_ids and expected.token_ids is not None:
        return Compared("tokens", first_difference(generated.tokens, expected.token_ids))
    obstacle = _obstacle(envelope, expected, generated)
    if obstacle is not None:
        return Compared(obstacle=obstacle)
    if not generated.has_ids:
        text, wanted = generated.text or "", with_calls(expected.text or "", expected.tool_calls or ())
    else:
        text, wanted = _as_served(generated.text or "", plan, envelope), expected.text or ""
        text, wanted = text.rstrip(_HALF_CHARACTER), wanted.rstrip(_HALF_CHARACTER)
        if wanted.startswith(" ") and not text.startswith(" "):
            text = f" {text}"  # decoded from the start of the answer, some tokenizers leave it out
    if not plan.sampling["max_tokens"].is_stated:
        if expected.finish_reason == "length":  # where the server's own limit lay is not known
            text = text[: len(wanted)]
        if generated.reason == "length" and text != wanted and wanted.startswith(text):
            return Compared(obstacle=Obstacle.LIMITED_HERE)
    return Compared("text", first_difference(text, wanted))


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """First index at which two sequences differ; a strict prefix differs at its length; None: equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _obstacle(envelope: Envelope, expected: Expected, generated: Generated) -> Obstacle | None:
    """Why the texts cannot be compared; None: they can."""
    if expected.text is None and not expected.tool_calls:
        if any(name.startswith("expected.") for name in envelope.redactions or {}):
            return Obstacle.REDACTED
        if expected.token_ids is not None:
            return Obstacle.ONLY_IDS_RECORDED
        if not expected.reasoning:
            return Obstacle.NOTHING_RECORDED
    if not generated.has_ids:
        return None
    if expected.tool_calls:
        return Obstacle.TOOL_CALLS
    if expected.reasoning:
        return Obstacle.REASONING
    return Obstacle.NO_TEXT_HERE if generated.text is None else None


def _as_served(text: str, plan: PlannedSequence, envelope: Envelope) -> str:
    """The text as the OpenAI API gives it: up to the stop string, unless the request asked to see that."""
    if (envelope.request or {}).get(_KEEPS_STOP) is True:
        return text
    found = [text.find(stop) for stop in plan.value("stop") or () if stop in text]
    return text[: min(found)] if found else text
