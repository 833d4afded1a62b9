"""Why a level of a comparison holds, fails, or is not comparable, as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..base import Real, Record
from .statement import Location, Sentence, Side, Statement


class Plain(Statement):
    """A reason without numbers."""

    kind: Literal[
        "no hashes",
        "sketches differ",
        "tokens differ",
        "different row hashes",
        "bitwise holds",
        "no common candidate",
        "no tolerance",
        "prompts differ",
        "texts forced",
        "texts not scored",
        "texts not recorded",
        "texts equal, tokens not",
        "tokens equal",
    ]


class HashesCompared(Statement):
    """How many hashes were compared, and how many of them differ."""

    kind: Literal["hashes compared"] = "hashes compared"
    rows: int
    rows_differing: int = 0
    logits: int
    logits_differing: int = 0
    sites_by_sketch: int = 0
    """Sites that could be compared by sketch only."""
    by_hash: bool = True
    """Some site could be compared by hash."""


class DtypesDiffer(Statement):
    """Sites whose dtypes differ, so that none of their bits can be equal."""

    kind: Literal["dtypes differ"] = "dtypes differ"
    sites: int


class Measured(Statement):
    """The largest difference of the distributions."""

    kind: Literal["measured"] = "measured"
    of: Literal["logit", "logprob", "logit or logprob"]
    largest: Real
    at: Location | None = None
    compared: int
    """Positions at which it is known, …"""
    comparable: int
    """… of so many with equal tokens before them."""
    identical: bool = False
    """The log-probabilities are equal bit for bit."""


class Tolerance(Statement):
    """The largest difference that the claim allows."""

    kind: Literal["tolerance"] = "tolerance"
    value: Real


class Incomplete(Statement):
    """A run that was not finished."""

    kind: Literal["incomplete"] = "incomplete"
    side: Side
    positions: int
    """Missing ones."""


class EngineOf(Record):
    """A side's engine."""

    side: Side
    engine: str


class Unseeded(Statement):
    """Engines that take no seed, so that no run can be held to tokens."""

    kind: Literal["unseeded"] = "unseeded"
    engines: list[EngineOf]


class TextsCompared(Statement):
    """Sequences that were compared as text."""

    kind: Literal["texts compared"] = "texts compared"
    texts: int
    differing: int = 0
    same_prompt: bool | None = None
    """Whether the prompts of those that differ are the same; absent: not known."""
    about: Literal["numbers", "tokens", "texts"]
    """`numbers`, `tokens`: these sequences could be compared as text only, which proves nothing of them."""


class TokensForced(Statement):
    """Tokens that were forced, so that only the sides' own first choices can be compared."""

    kind: Literal["tokens forced"] = "tokens forced"
    forced: int
    generated: int
    unknown: int = 0
    """Forced tokens at which a side's own choice is not recorded."""
    choices_differ: bool = False


Reason = Annotated[
    Sentence
    | Plain
    | HashesCompared
    | DtypesDiffer
    | Measured
    | Tolerance
    | Incomplete
    | Unseeded
    | TextsCompared
    | TokensForced,
    Field(discriminator="kind"),
]
"""Why a level is as it is."""
