"""What a person should hear at once about a fingerprint: damage, contradictions, what ended meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.weights import HEADER

if TYPE_CHECKING:
    from ...schemas.fingerprint import Fingerprint


def doubts(read: Fingerprint) -> list[str]:
    """Sentences; none where all that was asked for could be read and fits together."""
    said: list[str] = []
    layout = read.get("model", "layout_sha256")
    if layout is not None and layout.unavailable is not None and layout.source == HEADER:
        said.append(f"weights: {layout.unavailable}")
    contradicted = read.get("model", "contradicted_claims")
    if contradicted is not None and contradicted.value:
        names = ", ".join(sorted(contradicted.value))
        said.append(f"{names}: not the bytes that the cache says; written over or damaged")
    model = read.sections.get("model")
    if model is not None and "unfinished_downloads" in model.volatile:
        said.append("the model's folder holds unfinished downloads")
    ended = read.get("process", "read_whole")
    if ended is not None and ended.unavailable is not None:
        said.append(ended.unavailable)
    replica = read.sections.get("replica")
    refused = replica.volatile.get("refused") if replica is not None else None
    if refused is not None and isinstance(refused.value, dict) and refused.value:
        from ..remote.client import KEY_FIX, WANTS_KEY

        paths, why = sorted(refused.value), next(iter(refused.value.values()))
        mend = f": {KEY_FIX}" if why == WANTS_KEY else ""
        said.append(f"the server refuses {', '.join(paths)}: {why}{mend}")
    libraries = read.get("libraries", "warnings")
    if libraries is not None and isinstance(libraries.value, list):
        said += [str(line) for line in libraries.value]
    return said
