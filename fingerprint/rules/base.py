"""What a rule is: a pattern of fields, a condition, the level at risk, why, who says so, what to replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from . import advice

if TYPE_CHECKING:
    from ...schemas.claim import Level
    from ...schemas.fingerprint import Fact, Fingerprint


@dataclass(frozen=True)
class Source:
    """A document and its section, or an issue."""

    title: str
    url: str | None = None
    """None: what the rule says follows from what the field is; nobody needs to say it."""


BY_CONSTRUCTION = Source("by construction")


@dataclass(frozen=True)
class Compared:
    """One field of two fingerprints, with all else that they say: a rule may depend on it."""

    section: str
    field: str
    before: Fact | None
    after: Fact | None
    base: Fingerprint
    now: Fingerprint


@dataclass(frozen=True)
class Condition:
    """When a row applies: in words for the documentation, and as a test of the comparison."""

    text: str
    holds: Callable[[Compared], bool]


@dataclass(frozen=True)
class Rule:
    """One row of the tables."""

    pattern: str
    """`section.field`, with shell wildcards."""
    why: str
    replay: str
    """What to replay to know, with rip's own means."""
    source: Source | tuple[Source, ...] = BY_CONSTRUCTION
    when: Condition | None = None
    """None: always."""
    risk: Level | None = None
    """The weakest promise in doubt; None: none directly."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its documents, one or several."""
        return self.source if isinstance(self.source, tuple) else (self.source,)

    def text(self) -> str:
        """Reason and sources in one line."""
        return f"{self.why} ({'; '.join(source.title for source in self.sources)})"

    @property
    def urls(self) -> list[str]:
        """Where its documents are."""
        return [source.url for source in self.sources if source.url is not None]


bitwise = partial(Rule, risk="bitwise")
numeric = partial(Rule, risk="numeric")
token = partial(Rule, risk="token")
semantic = partial(Rule, risk="semantic")


def harmless(pattern: str, why: str, source: Source = BY_CONSTRUCTION, when: Condition | None = None) -> Rule:
    """The rule for a change that puts nothing at risk by itself and asks for no replay."""
    return Rule(pattern, why, advice.NOTHING, source, when)


def in_section(section: str, *rules: Rule) -> tuple[Rule, ...]:
    """Rules whose patterns are names of fields of one section; `a|b*` stands for a rule of each."""
    return tuple(
        replace(rule, pattern=f"{section}.{field}") for rule in rules for field in rule.pattern.split("|")
    )
