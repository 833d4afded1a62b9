"""One change between two fingerprints (drift is a list of them)."""

from __future__ import annotations

from typing import ClassVar

from .base import Document, Record
from .claim import Level
from .fingerprint import Fact


class Change(Record):
    """A field that reads differently in two fingerprints."""

    section: str
    field: str
    before: Fact | None = None
    """None: the field is not in the base fingerprint."""
    after: Fact | None = None
    """None: the field is not in the present fingerprint."""
    risk: Level | None = None
    """The strongest level that this change puts in doubt; None where no rule is known."""
    rule: str = "no rule, replay to know"
    """Why, with its source."""


class Drift(Document):
    """The result of `rip drift`: no changes means that both fingerprints read the same."""

    KIND: ClassVar[str] = "drift"

    base_root_digest: str
    now_root_digest: str
    changes: list[Change]
    """The thirteen flat keys first."""
    source_changes: list[str] = []
    """Readings of equal value whose source differs: other evidence, not drift."""
