"""The release gate: a policy as a person writes it down (TOML), and what it decides on evidence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError

from .base import Document, Record, describe_validation_error
from .change import Change
from .errors import BadInput, Stated
from .matrix import ClaimState

Action = Literal["must match", "within tolerance", "unsupported"]
Effect = Literal["block", "drift report", "recorded"]
Decision = Literal["pass", "drift report", "block", "refused"]


class Rule(Record):
    """What a change of a variable leads to."""

    variable: str
    """`section.field` of a fingerprint; `*` stands for any part: `libraries.*`."""
    action: Action
    """`must match`: a change blocks. `within tolerance`: it is reported; the claims must hold, and one of
    them must have compared what serves now with the candidate. `unsupported`: it is recorded, and no earlier
    guarantee is inherited."""
    claims: list[str] | None = None
    """Ids of claims; absent: those that the policy requires."""


class Policy(Document):
    """A drift policy with its rollback target."""

    KIND: ClassVar[str] = "policy"
    SCHEMA_OPTIONAL: ClassVar[bool] = True

    rollback: Annotated[str, Field(min_length=1)]
    """What to go back to when it blocks: an image, a tag, a revision."""
    baseline: str
    """What serves now: `lane:NAME` of the plan, or a fingerprint or a trace (relative to the policy)."""
    candidate: str | None = None
    """`lane:NAME`; absent: every other lane."""
    require: list[str] | None = None
    """Ids of claims that must hold whatever has changed; absent: all of the plan."""
    default: Action = "must match"
    """Of a variable without a rule."""
    rules: list[Rule] = []
    """The first that fits decides."""
    max_age_days: Annotated[float, Field(gt=0)] | None = None
    """Of the oldest run of the evidence."""


class Changed(Record):
    """A variable that has changed, and what that leads to."""

    lane: str
    change: Change
    action: Action
    effect: Effect
    rule: str | None = None
    """The pattern that decided; absent: the default."""


class Refusal(Record):
    """Why evidence is no evidence."""

    kind: Literal[
        "invalid plan",
        "nothing required",
        "no such claim",
        "claim not covered",
        "invalid cell",
        "nothing compared",
        "lane not covered",
        "not compared with the baseline",
        "claimed hashes",
        "no fingerprint",
        "stale cell",
        "several environments",
        "different environment",
        "too old",
    ]
    lane: str | None = None
    claim: str | None = None
    cells: list[str] = []
    """Ids of cells."""
    variables: list[str] = []
    days: float | None = None
    """Age of the oldest run."""


class Held(Record):
    """A claim that the policy requires."""

    id: str
    state: ClaimState


class Gate(Document):
    """What a policy decides on evidence."""

    KIND: ClassVar[str] = "gate"

    tool_version: str
    created: str
    decision: Decision
    policy: str
    """SHA-256 of the policy."""
    evidence: str
    """SHA-256 of the ledger of the plan."""
    rollback: str
    claims: list[Held] = []
    changed: list[Changed] = []
    refusals: list[Refusal] = []

    @property
    def not_inherited(self) -> list[str]:
        """Variables whose change ends what was guaranteed before."""
        return list(dict.fromkeys(one.change.name for one in self.changed if one.effect == "recorded"))


def load_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        BadInput: Missing, no TOML, or not a policy.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        about = Stated("policy", str(path), "--policy")
        raise BadInput(f"cannot be read: {error.strerror}", "docs/release-gate.md shows one", about) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not TOML: {error}", "docs/release-gate.md shows a policy") from None
    try:
        policy = Policy.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{path}: {describe_validation_error(error)}", "see docs/release-gate.md") from None
    if unknown := policy.unknown_fields():
        raise BadInput(f"{path}: a policy has no field {unknown[0]!r}", "see docs/release-gate.md")
    return policy
