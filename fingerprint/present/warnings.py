"""What a person should hear of one fingerprint: damage, contradictions, mixed libraries, an ended process."""

from __future__ import annotations

from typing import Any

from ...schemas.fingerprint import Fingerprint
from ..fields.known_names import DIFFERING_CHOICES
from ..libraries.findings import CopyName, LibraryFinding
from ..model.weights import HEADER
from ..remote.client import KEY_FIX, WANTS_KEY
from ..rules import rules_of
from ..rules.promises import Contradiction, contradictions
from .drift_sentences import CLAIMED, visible

LIBRARY_SENTENCES = {
    "replaced since loaded": "{label} was replaced on disk since it was loaded: "
    "a restart will load another file or none",
    "deleted since loaded": "{label} was deleted from disk since it was loaded: "
    "a restart will load another file or none",
    "not as installed": "{label} is not the file that {package} installed",
    "several loaded": "{builds} different copies of {family} are loaded at once: {copies}",
    "loaded from elsewhere": "{family} is loaded from {loaded}, not from the installed {installed}",
    "pin not met": "torch asks for {package} {required}, but {installed} is installed",
    "processes differ": "the processes have loaded {builds} different copies of {name}",
}
"""Kind of finding → sentence. They are values of `libraries.warnings`: a new wording reads as a change."""
_SHOWN_TENSORS = 5
"""Of those that are not where the index promises them."""
_BUILD_DIGITS = 12


def describe_library(finding: LibraryFinding) -> str:
    """One sentence without a full stop."""
    return LIBRARY_SENTENCES[finding.kind].format(
        **{name: _in_sentence(value) for name, value in finding.data.items()}
    )


def _in_sentence(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(sorted(map(_in_sentence, value)))
    if isinstance(value, CopyName):
        build = f"build {value.build_id[:_BUILD_DIGITS]}" if value.build_id else "of unknown version"
        return f"{value.label} ({value.version or build})"
    return str(value)


def clock_warning(read: Fingerprint) -> str | None:
    """That a chat template reads the time; None where none does."""
    template = read.sections.get("template")
    found = template.volatile.get("reads_clock") if template is not None else None
    if found is None or not isinstance(found.value, list):
        return None
    return (
        f"the chat template ({', '.join(map(str, found.value))}) reads the clock (strftime_now): "
        "the same messages become another prompt at another time; replay by token ids"
    )


def describe_contradictions(read: Fingerprint) -> list[str]:
    """One sentence without a full stop for each setting that breaks a promise the fingerprint states."""
    return [_describe_contradiction(found) for found in contradictions(read)]


def _describe_contradiction(found: Contradiction) -> str:
    section, _, field = found.field.partition(".")
    releases = " in releases without the fix" if found.is_fixed else ""
    return (
        f"{visible(found.promise)} is contradicted{releases} by {found.field} = {visible(str(found.value))}: "
        f"{rules_of(section, field)[-1].why} ({found.source.title})"
    )


def _differing_ranks(read: Fingerprint) -> list[str]:
    """Caches in which autotuning chose differently from rank to rank."""
    kernels = read.sections.get("kernels")
    found = []
    for field, reading in (kernels.facts if kernels is not None else {}).items():
        folders = [reading.value, *reading.value.values()] if isinstance(reading.value, dict) else []
        for folder in folders:
            share = folder.get(DIFFERING_CHOICES) if isinstance(folder, dict) else None
            if isinstance(share, str) and not share.startswith("0 "):
                found.append(
                    f"kernels.{field}: {visible(share)} kernels chosen by autotuning differ from rank to rank"
                )
    return found


def list_warnings(read: Fingerprint) -> list[str]:
    """What a person should hear at once: damage, contradictions, what ended meanwhile, mixed libraries.

    None where everything that was asked for could be read and fits together.
    """
    warnings: list[str] = []
    layout = read.get("model", "layout_sha256")
    if layout is not None and layout.unavailable is not None and layout.source == HEADER:
        warnings.append(f"weights: {layout.unavailable}")
    if read.is_claimed:
        warnings.append(f"no weight was read: {CLAIMED}")
    contradicted = read.get("model", "contradicted_claims")
    if contradicted is not None and contradicted.value:
        names = ", ".join(sorted(contradicted.value))
        warnings.append(f"{names}: the bytes are not those that the cache names; overwritten or damaged")
    if clock := clock_warning(read):
        warnings.append(clock)
    misplaced = read.get("model", "contradicted_index")
    if misplaced is not None and isinstance(misplaced.value, dict):
        for tensor, place in list(misplaced.value.items())[:_SHOWN_TENSORS]:
            warnings.append(
                f"the index promises {tensor} in {place['promised']}, which lacks it; found: {place['found']}"
            )
        if len(misplaced.value) > _SHOWN_TENSORS:
            warnings.append(f"… and {len(misplaced.value) - _SHOWN_TENSORS} more tensors that are misplaced")
    warnings += describe_contradictions(read)
    warnings += _differing_ranks(read)
    model = read.sections.get("model")
    if model is not None and "unfinished_downloads" in model.volatile:
        warnings.append("the model's folder holds unfinished downloads")
    ended = read.get("process", "read_whole")
    if ended is not None and ended.unavailable is not None:
        warnings.append(ended.unavailable)
    replica = read.sections.get("replica")
    refused = replica.volatile.get("refused") if replica is not None else None
    if refused is not None and isinstance(refused.value, dict) and refused.value:
        paths, reason = sorted(refused.value), next(iter(refused.value.values()))
        fix = f": {KEY_FIX}" if reason == WANTS_KEY else ""
        warnings.append(f"the server refuses {', '.join(paths)}: {reason}{fix}")
    libraries = read.get("libraries", "warnings")
    if libraries is not None and isinstance(libraries.value, list):
        warnings += map(str, libraries.value)
    return warnings
