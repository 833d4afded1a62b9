"""The acceptance plan as a person writes it down (TOML): lanes, what is varied, what is claimed of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from .base import Document, Record, describe_validation_error
from .choices import CaptureLevel as CaptureLevel
from .choices import Level as Level
from .choices import Mode as Mode
from .errors import BadInput, Stated
from .lane import LaneFile

Value = str | int | float | bool
"""One value of a dimension."""

PlanName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Of a lane or a claim: it is part of file names."""


class PlanLane(LaneFile):
    """A lane: inline, or a lane file with what is stated here on top."""

    file: str | None = None
    """A lane file; relative to the plan."""


class Variation(Record):
    """One dimension, and the values that are compared with the first one."""

    dimension: str
    """As `rip matrix dimensions` names it."""
    values: list[Value] | None = None
    """The first is that of side A, each other one is a cell. Absent: the dimension's own for the engine."""
    lanes: list[str] | None = None
    """Absent: every lane."""


class Tolerance(Record):
    """What the `numeric` level allows. Every bound that is stated must be kept at every compared step."""

    max_abs: Annotated[float, Field(ge=0)] | None = None
    """Largest absolute difference of a logit; of a log-probability where an engine gives no logits."""
    max_rel: Annotated[float, Field(ge=0)] | None = None
    """Largest difference of a logit (log-probability) over the larger of the two magnitudes."""
    same_ranks: Annotated[int, Field(ge=1)] | None = None
    """The first so many candidates are the same tokens in the same order."""
    max_kl: Annotated[float, Field(ge=0)] | None = None
    """Largest mean over a sequence of the K3 estimate of KL(A‖B), nats, on tokens that both sides chose."""


class ScorerUse(Record):
    """A scorer with its parameters, for claims of the `semantic` level."""

    scorer: str
    """`exact`, `json`, `json-schema`, `regex`, `number`, `choice`, or `module:function` of one's own."""
    parameters: dict[str, Any] = {}
    repeats: Annotated[int, Field(ge=1)] = 1
    """Of a judge that samples: times it scores each output."""


class PlanClaim(Record):
    """One claim: on these lanes, what is compared stays equal at this level while these dimensions vary."""

    id: PlanName
    level: Level
    varied: list[str]
    """Names of dimensions."""
    lanes: list[str] | None = None
    """Absent: every lane that a cell of these dimensions has."""
    tolerance: Tolerance | None = None
    """Of the `numeric` level."""
    scorers: list[ScorerUse] = []
    """Of the `semantic` level."""
    control: bool = False
    """A negative control: this must fail. Where it holds, the plan could not see what it looks for."""
    note: str | None = None


class Plan(Document):
    """An acceptance plan."""

    KIND: ClassVar[str] = "plan"
    SCHEMA_OPTIONAL: ClassVar[bool] = True

    requests: str
    """Envelope, request set or trace; relative to the plan."""
    rounds: Annotated[int, Field(ge=1, le=1000)] = 2
    """Times that each side of a cell runs: A1 B1 A2 B2 …"""
    mode: Mode = "free"
    capture: Literal["tokens", "sites"] | None = None
    """Absent: sites where the engine shows them."""
    lanes: dict[PlanName, PlanLane]
    vary: list[Variation]
    claims: list[PlanClaim]


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        BadInput: Missing, no TOML, or not a plan.
    """
    try:
        text = path.read_text("utf-8")
        raw = tomllib.loads(text)
    except OSError as error:
        about = Stated("plan", str(path), "PLAN.toml")
        raise BadInput(f"cannot be read: {error.strerror}", "rip matrix init writes one", about) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not TOML: {error}", "rip matrix init writes one") from None
    try:
        plan = Plan.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{path}: {describe_validation_error(error)}", "see docs/matrix.md") from None
    if unknown := plan.unknown_fields():
        raise BadInput(f"{path}: a plan has no field {unknown[0]!r}", "see docs/matrix.md")
    return plan
