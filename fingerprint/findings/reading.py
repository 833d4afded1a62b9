"""What a person should hear at once about a fingerprint: damage, contradictions, what ended meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.fingerprint import Fingerprint
from ..model.weights import HEADER
from ..remote.client import WANTS_KEY


@dataclass(frozen=True)
class WeightsUnread:
    """The tensors of the weights files cannot be told apart: damaged, cut off, or pickled."""

    reason: str


@dataclass(frozen=True)
class ClaimsContradicted:
    """Files whose bytes are not those that the cache names."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class UnfinishedDownloads:
    """The model's folder holds files that were not downloaded to their end."""


@dataclass(frozen=True)
class ProcessEnded:
    """The observed process ended before everything was read."""

    reason: str


@dataclass(frozen=True)
class RequestsRefused:
    """The server refused some of the requests."""

    paths: tuple[str, ...]
    reason: str
    wants_key: bool


@dataclass(frozen=True)
class LibraryWarning:
    """A sentence that the fingerprint itself holds, about its libraries."""

    text: str


ReadingFinding = (
    WeightsUnread | ClaimsContradicted | UnfinishedDownloads | ProcessEnded | RequestsRefused | LibraryWarning
)


def check_reading(read: Fingerprint) -> list[ReadingFinding]:
    """Empty where everything that was asked for could be read and fits together."""
    found: list[ReadingFinding] = []
    layout = read.get("model", "layout_sha256")
    if layout is not None and layout.unavailable is not None and layout.source == HEADER:
        found.append(WeightsUnread(layout.unavailable))
    contradicted = read.get("model", "contradicted_claims")
    if contradicted is not None and contradicted.value:
        found.append(ClaimsContradicted(tuple(sorted(contradicted.value))))
    model = read.sections.get("model")
    if model is not None and "unfinished_downloads" in model.volatile:
        found.append(UnfinishedDownloads())
    ended = read.get("process", "read_whole")
    if ended is not None and ended.unavailable is not None:
        found.append(ProcessEnded(ended.unavailable))
    replica = read.sections.get("replica")
    refused = replica.volatile.get("refused") if replica is not None else None
    if refused is not None and isinstance(refused.value, dict) and refused.value:
        reason = str(next(iter(refused.value.values())))
        found.append(RequestsRefused(tuple(sorted(refused.value)), reason, reason == WANTS_KEY))
    libraries = read.get("libraries", "warnings")
    if libraries is not None and isinstance(libraries.value, list):
        found += [LibraryWarning(str(line)) for line in libraries.value]
    return found
