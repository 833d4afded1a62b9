"""The identity card of a claim: what is compared, what is held and varied, where, and on which evidence."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Record
from .choices import LEVELS as LEVELS
from .choices import Level as Level

EvidenceKind = Literal["documentation", "test-source", "run"]


class Claim(Record):
    """One claim about reproducibility. Evidence never outgrows the environment and variables named here."""

    level: Level | None = None
    compared: list[str] | None = None
    """For example tokens, logprobs, topk, layer-hashes, text."""
    equality: str | None = None
    held: dict[str, Any] | None = None
    varied: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    evidence: EvidenceKind | None = None
    tolerance: Annotated[float, Field(ge=0)] | None = None
    """Largest absolute logit difference that the `numeric` level allows."""
