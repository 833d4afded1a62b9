"""The sentences of findings: about libraries, which a fingerprint keeps, and about what was read."""

from __future__ import annotations

from typing import assert_never

from ...schemas.fingerprint import Fingerprint
from ..findings.libraries import (
    CopyName,
    FileChanged,
    LibraryFinding,
    LoadedFromElsewhere,
    NotAsInstalled,
    PinNotMet,
    ProcessesDiffer,
    SeveralLoaded,
)
from ..findings.reading import (
    ClaimsContradicted,
    LibraryWarning,
    ProcessEnded,
    ReadingFinding,
    RequestsRefused,
    UnfinishedDownloads,
    WeightsUnread,
    check_reading,
)
from ..remote.client import KEY_FIX

_BUILD_DIGITS = 12


def list_warnings(read: Fingerprint) -> list[str]:
    """A sentence for each finding of `check_reading`."""
    return [describe_reading(finding) for finding in check_reading(read)]


def describe_reading(finding: ReadingFinding) -> str:
    """One sentence without a full stop."""
    match finding:
        case WeightsUnread(reason):
            return f"weights: {reason}"
        case ClaimsContradicted(names):
            return f"{', '.join(names)}: the bytes are not those that the cache names; overwritten or damaged"
        case UnfinishedDownloads():
            return "the model's folder holds unfinished downloads"
        case ProcessEnded(reason):
            return reason
        case RequestsRefused(paths, reason, wants_key):
            return f"the server refuses {', '.join(paths)}: {reason}{f': {KEY_FIX}' if wants_key else ''}"
        case LibraryWarning(text):
            return text
    assert_never(finding)


def describe_library(finding: LibraryFinding) -> str:
    """One sentence, which is a value of `libraries.warnings`: another wording would read as a change."""
    match finding:
        case FileChanged(label, replaced):
            what = "replaced on disk" if replaced else "deleted from disk"
            return f"{label} was {what} since it was loaded: a restart will load another file or none"
        case NotAsInstalled(label, package):
            return f"{label} is not the file that {package} installed"
        case SeveralLoaded(family, builds, copies):
            names = ", ".join(sorted(map(_name, copies)))
            return f"{builds} different copies of {family} are loaded at once: {names}"
        case LoadedFromElsewhere(family, loaded, installed):
            return f"{family} is loaded from {_name(loaded)}, not from the installed {_name(installed)}"
        case PinNotMet(package, required, installed):
            return f"torch asks for {package} {required}, but {installed} is installed"
        case ProcessesDiffer(name, copies):
            return f"the processes have loaded {copies} different copies of {name}"
    assert_never(finding)


def _name(copy: CopyName) -> str:
    build = f"build {copy.build_id[:_BUILD_DIGITS]}" if copy.build_id else "of unknown version"
    return f"{copy.label} ({copy.version or build})"
