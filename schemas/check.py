"""The result of a ready-made check: what ran, what had to be exactly equal, and where it first was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from .base import Document, JsonObject, Real, Record, Upgrade
from .choices import Mode
from .claim import Claim

Together = Literal["as one batch", "sent together"]
Compared = Literal["token ids", "logprobs", "top token ids", "top-token logprobs"]


class FirstDifference(Record):
    """The first step, in the order of the sequences, at which two runs differ."""

    request_id: str
    step: int
    rank: int | None = None
    """Among the most likely tokens; None for the token itself."""
    alone: int | Real | None
    """A token id, or nats; None: nothing was returned."""
    batched: int | Real | None


class CheckLine(Record):
    """One kind of result that had to be exactly equal, bit for bit."""

    what: Compared
    state: Literal["equal", "differs", "not returned"]
    """`not returned`: the engine returned none of it, so nothing was compared."""
    required: bool = True
    """Whether the check needs it."""
    compared: int
    """Steps compared: those before which the tokens are equal in both runs."""
    differing: int
    not_returned: int = 0
    """Steps of which neither run returned it: these were not compared."""
    first: FirstDifference | None = None
    largest: Real | None = None
    """Largest absolute difference of a token's log-probability, in nats."""


def _from_version_1(old: JsonObject) -> JsonObject:
    """Version 1 had other names for some fields, and its sizes in the claim alone."""
    held = old["claim"].get("held") or {}
    new = {name: value for name, value in old.items() if name != "verdict"}
    new["sentence"] = old["verdict"]
    new["sequences"], new["tokens"] = held["sequences"], held["tokens"]
    new["prompt_lengths"] = held["prompt_lengths"]
    new["lines"] = [_line_from_version_1(line) for line in old["lines"]]
    return new


def _line_from_version_1(old: JsonObject) -> JsonObject:
    new = {"not_returned" if name == "untold" else name: value for name, value in old.items()}
    return {**new, "state": "not returned"} if old["state"] == "not told" else new


class Check(Document):
    """The result of `rip check batch-invariance`."""

    KIND: ClassVar[str] = "check"
    VERSION: ClassVar[int] = 2
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _from_version_1}

    tool_version: str
    created: str
    check: Literal["batch-invariance"]
    engine: str
    model: str
    mode: Mode
    sampled: bool
    """At temperature 1 with a seed for each sequence: only the tokens must be equal."""
    sequences: int
    """How many ran."""
    tokens: int
    """Generated tokens of each."""
    prompt_lengths: list[int]
    """The shortest and the longest prompt, in tokens."""
    batch: int
    """Sequences that ran together."""
    together: Together
    """`sent together`: the engine's scheduler decided which of them shared a forward pass."""
    claim: Claim
    """What was claimed and where: the check says nothing beyond it."""
    holds: bool
    sentence: str = ""
    """The result in words, for readers; made from the rest."""
    lines: list[CheckLine]
    alone: str
    """File name of the trace of the sequences one by one."""
    batched: str
