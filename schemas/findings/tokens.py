"""Evidence in prompts, choices of tokens and ends of outputs."""

from __future__ import annotations

from typing import Any, Literal

from ..base import Real, Record
from .statement import Side, Statement


class Margins(Statement):
    """The two margins and the drift at the step that chose the first divergent token."""

    kind: Literal["margins"] = "margins"
    a: Real | None = None
    b: Real | None = None
    drift: Real
    of: Literal["logits", "logprobs"]
    enough: bool
    """The drift is enough to flip the choice."""


class SequenceEnded(Statement):
    """One side's output ended first."""

    kind: Literal["sequence-ended"] = "sequence-ended"
    side: Side
    position: int
    """Of the first token that it lacks."""
    step: int | None = None
    reason: str | None = None
    """As the engine gave it; absent: not recorded."""
    rule: Literal["stop", "stop_token_ids", "max_tokens"] | None = None
    """The stated rule that the end meets."""
    rule_value: Any = None
    limit: int | None = None
    """The side's `max_tokens`, where it is stated."""
    same_limit: bool = False
    """Both sides state that."""
    other_reason: str | None = None


class SameLogits(Statement):
    """The logits that chose the first divergent token are bit-identical."""

    kind: Literal["same-logits"] = "same-logits"
    step: int | None = None
    token_a: int | None = None
    token_b: int | None = None
    draw_a: Real | None = None
    """Uniform draw in [0, 1)."""
    draw_b: Real | None = None


class DrawStream(Statement):
    """How the random numbers of the two sides belong together."""

    kind: Literal["draw-stream"] = "draw-stream"
    relation: Literal["shifted", "other stream", "different start", "shared by sequences"]
    ahead: int | None = None
    """Of `shifted`: how many numbers B is ahead of A."""
    start_a: int | None = None
    """Of `different start`: draws taken before the sequence's first."""
    start_b: int | None = None
    side: Side | None = None
    """Of `shared by sequences`: on which side."""
    starts: list[int | None] = []
    """Likewise: draws taken before each sequence's first."""


class ProcessedLogits(Statement):
    """What the logits processors left of equal raw logits."""

    kind: Literal["processed-logits"] = "processed-logits"
    token_a: int
    """The likeliest token behind them."""
    logit_a: Real
    token_b: int
    logit_b: Real
    temperature_a: Real | None = None
    """The temperature that explains all steps; absent: none does."""
    temperature_b: Real | None = None
    changed_by: Side | None = None
    """The only side that changes the logits."""
    raw: Real | None = None
    """Raw logit of that side's likeliest token."""
    not_applied: str | None = None
    """The only field that both requests state: the other side does not apply it."""


class CandidateOrder(Statement):
    """On one side the draws give the tokens from the likeliest candidate down, not by token id."""

    kind: Literal["candidate-order"] = "candidate-order"
    side: Side
    tested: int
    """Tokens that could be tested, all of them right."""
    other_by_id: bool
    """On the other side the order of the ids gives every token."""


class SamplingFilter(Record):
    """A filter with which the recorded draws give every token."""

    name: Literal["top_k", "top_p", "min_p"]
    low: Real
    high: Real
    """Every value from `low` to `high` fits; equal: that is the value (of `top_p` and `min_p`: near it)."""


class CandidatesFiltered(Statement):
    """On one side the draws give the tokens only if some candidates are left out."""

    kind: Literal["candidates-filtered"] = "candidates-filtered"
    side: Side
    filters: list[SamplingFilter]


class LogprobDrift(Statement):
    """Largest difference of the candidates' log-probabilities at the first divergent token, nats."""

    kind: Literal["logprob-drift"] = "logprob-drift"
    largest: Real


class PromptsDiffer(Statement):
    """How two prompts differ."""

    kind: Literal["prompts-differ"] = "prompts-differ"
    how: Literal[
        "tokens",
        "same text",
        "first tokens missing",
        "last tokens missing",
        "inserted",
        "BOS doubled",
        "BOS missing",
        "clock",
    ]
    """`BOS doubled`: `side` begins with it more than once. `clock`: they differ in dates and times only."""
    position: int
    """The first differing token."""
    side: Side | None = None
    """The prompt that lacks tokens, or has more."""
    count: int = 0
    """Tokens that are missing or inserted."""
    length_a: int | None = None
    length_b: int | None = None
    tokens_a: list[int] = []
    """The first tokens that differ, are missing or inserted."""
    tokens_b: list[int] = []
    clock_a: str | None = None
    """Of `clock`: the first date or time that differs."""
    clock_b: str | None = None
    inserted_text: str | None = None
    """Absent: not known."""
