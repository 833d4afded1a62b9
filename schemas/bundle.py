"""The manifest of an evidence bundle: what is in it, and the digest of each file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Document, Record

Artifact = Literal["requests", "claims", "evidence", "cost", "fingerprints", "policy"]
"""What a release review wants to see."""


class Packed(Record):
    """One file of a bundle."""

    path: str
    """From the folder of the bundle, with `/`."""
    artifact: Artifact
    bytes: Annotated[int, Field(ge=0)]
    sha256: str


class Bundle(Document):
    """The manifest of an evidence bundle."""

    KIND: ClassVar[str] = "bundle"

    tool_version: str
    created: str
    """When it was packed: the gate's decision in it is that of this moment."""
    files: list[Packed]
    """All but the manifest and the statement."""
    absent: list[Artifact] = []
    """Artifacts that the plan does not have."""
    traces: bool
    """False: the traces were left out, and so the outputs."""
