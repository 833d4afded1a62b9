"""Whether a new trace is of what was asked for: A's values where they were undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...schemas.findings.experiments import Limit, NotAsAsked
from ...schemas.findings.statement import Undone

if TYPE_CHECKING:
    from ...schemas.trace import TraceHeader

_DIGESTS = {
    "weights": ("model", "tensors_root"),
    "config.json": ("model", "config_sha256"),
    "generation_config.json": ("model", "generation_config_sha256"),
    "tokenizer": ("tokenizer", "sha256"),
    "chat template": ("template", "sha256"),
}
"""What comes with a model's folder → where a fingerprint holds its digest."""


_OF_NAME = {
    "weights": ("weights",),
    "config.json": ("config.json",),
    "tokenizer": ("tokenizer", "chat template"),
}
"""What some of A's files are called → the digests that must be A's; the rest is B's."""


def not_as_asked(undoes: list[Undone], new: TraceHeader, a: TraceHeader, b: TraceHeader) -> list[NotAsAsked]:
    """What the new run did not have as it was asked for; where nothing was stated: as A had it."""
    found = []
    for one in undoes:
        wanted, got = _wanted(one, a), _of(one, new)
        if one.of == "model" and one.name in _OF_NAME:
            of_a = _digests(a)
            wanted = {**_digests(b), **{name: of_a[name] for name in _OF_NAME[one.name]}}
        if not _is_same(wanted, got):
            found.append(NotAsAsked(undone=one, found=got))
    return found


def _wanted(one: Undone, a: TraceHeader) -> Any:
    if one.of in ("model", "requests") or (one.of == "setting" and one.value is None):
        return _of(one, a)
    return one.value


def _is_same(wanted: Any, got: Any) -> bool:
    # As it is passed on: an engine may report a number for a text, or `cuda:0` for `cuda`.
    one, other = str(wanted), str(got)
    return one == other or one.lower() == other.lower() or other.startswith(f"{one}:")


def _of(one: Undone, header: TraceHeader) -> Any:
    """What a trace says of something that is undone."""
    if one.of == "mode":
        return header.mode
    if one.of == "requests":
        return sorted(request.envelope_sha256 for request in header.requests)
    if one.of == "sampling":
        values = [request.sampling.get(one.name) for request in header.requests]
        known = [None if value is None else value.resolved for value in values]
        return known[0] if known and all(value == known[0] for value in known) else None
    if one.of == "setting":
        setting = header.lane.settings.get(one.name)
        if setting is None:
            return 0 if one.name == "neighbours" else None
        return setting.resolved if setting.observed is None else setting.observed
    if one.of == "variable":
        fact = None if header.fingerprint is None else header.fingerprint.get("determinism", one.name)
        return None if fact is None or fact.absence is not None else fact.value
    return _digests(header)


def files_changed(a: TraceHeader, b: TraceHeader) -> Limit | None:
    """What differs between the models, where it is more than one thing: A's folder brings it all."""
    if a.fingerprint is None or b.fingerprint is None:
        return None
    before, now = _digests(a), _digests(b)
    names = [name for name in _DIGESTS if before[name] != now[name]]
    return Limit(what="files changed together", names=names) if len(names) > 1 else None


def _digests(header: TraceHeader) -> dict[str, Any]:
    found = header.fingerprint
    facts = {name: None if found is None else found.get(*field) for name, field in _DIGESTS.items()}
    return {name: None if fact is None else fact.value for name, fact in facts.items()}
