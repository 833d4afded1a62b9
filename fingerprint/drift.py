"""Two fingerprints to a list of changes, the thirteen flat keys first. It reads nothing by itself."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal

from ..schemas.base import canonical_json
from ..schemas.change import NO_RULE, Change, Drift, SourceChange, TensorMatch
from ..schemas.claim import LEVELS, Level
from ..schemas.fingerprint import FLAT_KEYS, SECTIONS, Absence, Fact, Fingerprint, Observed
from .model.gguf_tensors import match_tensors
from .model.small_texts import differing_keys, differing_lines
from .rules import Compared, advice, rule_for

OBSERVED = "process.observed"
"""Which kind of fingerprint it is: no reading of the environment, so never counted as a compared field."""


def is_pasted(fingerprint: Fingerprint) -> bool:
    """Whether it was made from pasted text."""
    return any(
        reading.is_pasted for section in fingerprint.sections.values() for reading in section.facts.values()
    )


def fields_vary(base: Fingerprint, now: Fingerprint) -> bool:
    """Whether a field that only one of them has says how they were read, not that something changed.

    So it is between fingerprints of different kinds (rip's own process, another process, a server, pasted
    text) or of different releases of rip, which read different fields, and with every server: what one
    reports depends on its release and on how it was started.
    """
    kinds = {_observed(fingerprint) for fingerprint in (base, now)}
    partial = any(is_pasted(one) or is_closed(one) for one in (base, now))
    read_alike = base.tool_version == now.tool_version
    return partial or not read_alike or len(kinds) > 1 or Observed.SERVER in kinds


def is_closed(fingerprint: Fingerprint) -> bool:
    """Whether it is of a process that rip had no permission to read."""
    packages = fingerprint.get("libraries", "installed_packages")
    return packages is not None and packages.absence is Absence.FORBIDDEN


def count_forbidden(fingerprint: Fingerprint) -> int:
    """How many fields were not read for lack of permission."""
    return sum(
        item.absence is Absence.FORBIDDEN
        for section in fingerprint.sections.values()
        for item in section.facts.values()
    )


def is_unknown(reading: Fact) -> bool:
    """Whether its source cannot show it, was not asked or allowed to, or failed: it may have any value."""
    return reading.absence in (Absence.NOT_VISIBLE, Absence.FORBIDDEN, Absence.PROBE_FAILED)


def _observed(fingerprint: Fingerprint) -> str:
    kind = fingerprint.get("process", "observed")
    return str(kind.value) if kind is not None else ""


GROUPS: tuple[str, ...] = (*reversed(LEVELS), "no rule", "none")
"""What a change can be, gravest first: the level it puts at risk, unknown, or known to risk none."""


def drift(base: Fingerprint, now: Fingerprint) -> list[Change]:
    """The fields that read differently, flat keys first. Volatile readings are not compared.

    A reading that has the same value from another source is not a change (see `source_changes`). Two
    readings that are unavailable for the same reason are equal; a value against `unavailable` is a change,
    and so is a field that only one of the two has. What a source cannot show, or was not asked for (a pasted
    text, a server, a weaker strength of hashing), is not compared, be it on one side or on both (see
    `not_compared`).
    """
    hidden, pasted = set(not_compared(base, now)), is_pasted(base) or is_pasted(now)
    changes = []
    for section, field in _fields(base, now):
        if f"{section}.{field}" in hidden:
            continue
        before, after = base.get(section, field), now.get(section, field)
        if pasted:
            before, after = _common(before, after)
        if not _reads_equal(before, after):
            rule = rule_for(Compared(section, field, before, after, base, now))
            changes.append(
                Change(
                    section=section,
                    field=field,
                    before=before,
                    after=after,
                    risk=rule.risk if rule else None,
                    rule=rule.text() if rule else NO_RULE,
                    replay=rule.replay if rule and rule.replay != advice.NOTHING else None,
                    sources=(rule.urls or None) if rule else None,
                    **_contents(section, field, base, now),
                )
            )
    return changes


_TABLES = {("tokenizer", "sha256"): "files"}
"""A digest over a table of files → that table, whose texts say more."""
_WEIGHTS = (".safetensors", ".bin")


def _contents(section: str, field: str, base: Fingerprint, now: Fingerprint) -> dict[str, Any]:
    """`keys` or `diff` of a change of which both fingerprints keep the text; how tensors fit together."""
    if (section, field) == ("model", "tensors"):
        return {"tensors": _matched_tensors(base, now)}
    if (section, field) == ("template", "sha256"):
        named = [_texts(one, section).get("named") or {} for one in (base, now)]
        before, after = (templates.get("default") for templates in named)
        if not isinstance(before, str) or not isinstance(after, str):
            return {}
        return {"diff": differing_lines(before, after) or None}
    name = _TABLES.get((section, field), field)
    before, after = (_texts(one, section).get(name) for one in (base, now))
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {}
    tables = [_value(one.get(section, name)) for one in (base, now)]
    if all(isinstance(table, dict) for table in tables):
        shared = {*before} & {*after} | {*tables[0]} ^ {*tables[1]}
        before, after = (
            _readable(table, {key: text for key, text in texts.items() if key in shared})
            for table, texts in zip(tables, (before, after), strict=True)
        )
    return {"keys": differing_keys(before, after) or None}


def _matched_tensors(base: Fingerprint, now: Fingerprint) -> TensorMatch | None:
    before, after = (_value(one.get("model", "tensors")) for one in (base, now))
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None
    first, second = (_value(one.get("model", "architecture")) for one in (base, now))
    return match_tensors(before, after, (first, second))


def _texts(fingerprint: Fingerprint, section: str) -> dict[str, Any]:
    found = fingerprint.sections.get(section)
    return (found.texts if found is not None else None) or {}


def _value(reading: Fact | None) -> Any:
    return None if reading is None else reading.value


def _readable(table: dict[str, Any], texts: dict[str, Any]) -> dict[str, Any]:
    """A table of digests with the texts in their place, as far as there are some."""
    found: dict[str, Any] = {}
    for name, entry in table.items():
        text = texts.get(name)
        if isinstance(entry, dict) and isinstance(text, dict):  # an adapter: its config, and its weights
            weights = {file: digest for file, digest in entry.items() if file.endswith(_WEIGHTS)}
            found[name] = {**text, **weights}
        else:
            found[name] = entry if text is None else text
    return found


def not_compared(base: Fingerprint, now: Fingerprint) -> list[str]:
    """`section.field` of what one or both cannot show, so that nothing is known of a change."""
    vary, pasted = fields_vary(base, now), is_pasted(base) or is_pasted(now)
    failed = [failed_sections(one) for one in (base, now)]

    def is_unread(section: str, *sides: Fact | None) -> bool:
        """Whether a side lacks the field, and what reads that section has failed there."""
        return any(side is None and section in sections for side, sections in zip(sides, failed, strict=True))

    return [
        f"{section}.{field}"
        for section, field in _fields(base, now)
        if is_unread(section, before := base.get(section, field), after := now.get(section, field))
        or _is_hidden(before, after, vary, pasted)
    ]


def failed_sections(fingerprint: Fingerprint) -> set[str]:
    """The sections of which a probe failed: a field that is missing there says nothing."""
    return {
        name
        for name, section in fingerprint.sections.items()
        for field, reading in section.facts.items()
        if field.startswith("probe_") and reading.absence is Absence.PROBE_FAILED
    }


def without_field(base: Fingerprint, now: Fingerprint, ignore: Iterable[str]) -> list[str]:
    """The patterns that fit no `section.field` of either fingerprint: most likely a typing error."""
    names = [f"{section}.{field}" for section, field in _fields(base, now)]
    return [each for each in ignore if not any(fnmatchcase(name, each) for name in names)]


def source_changes(base: Fingerprint, now: Fingerprint) -> list[SourceChange]:
    """Readings of equal value whose source differs: weaker or stronger evidence, not drift.

    That another kind of fingerprint has other sources goes without saying.
    """
    if fields_vary(base, now):
        return []
    return [
        SourceChange(section=section, field=field, before=before.source, after=after.source)
        for section, field in _fields(base, now)
        if (before := base.get(section, field)) is not None
        and (after := now.get(section, field)) is not None
        and before.source != after.source
        and before.unavailable is None  # a failed reading is no evidence of anything
        and _reads_equal(before, after)
    ]


def compare(base: Fingerprint, now: Fingerprint, ignore: Iterable[str] = ()) -> Drift:
    """`drift` and `source_changes` as one document.

    Args:
        base: The earlier or trusted one.
        now: The one that may have changed.
        ignore: Patterns of `section.field` with shell wildcards; changes that fit one are listed apart.
    """
    patterns = tuple(ignore)
    changes = drift(base, now)
    ignored = [change for change in changes if any(fnmatchcase(change.name, each) for each in patterns)]
    hidden, sources = not_compared(base, now), source_changes(base, now)
    both = [
        f"{section}.{field}"
        for section, field in _fields(base, now)
        if base.get(section, field) is not None and now.get(section, field) is not None
    ]
    return Drift(
        base_root_digest=base.root_digest,
        now_root_digest=now.root_digest,
        changes=[change for change in changes if change not in ignored],
        source_changes=[str(change) for change in sources],
        other_sources=sources or None,
        ignored=ignored or None,
        claimed=_claimed(base, now) or None,
        compared=len({*both} - {*hidden, OBSERVED}),
        not_compared=hidden or None,
    )


def _claimed(base: Fingerprint, now: Fingerprint) -> list[Literal["base", "now"]]:
    found: list[Literal["base", "now"]] = []
    if base.is_claimed:
        found.append("base")
    if now.is_claimed:
        found.append("now")
    return found


def group_of(change: Change) -> str:
    """The entry of `GROUPS` that a change belongs to."""
    return "no rule" if not change.has_rule else change.risk or "none"


def by_risk(changes: Iterable[Change]) -> list[tuple[str, list[Change]]]:
    """Changes by group, gravest first, empty groups left out. Within a group their order stays."""
    listed = list(changes)
    groups = [(group, [change for change in listed if group_of(change) == group]) for group in GROUPS]
    return [(group, members) for group, members in groups if members]


def failing(changes: Iterable[Change], level: Level | None = None) -> list[Change]:
    """The changes that break a check.

    Args:
        changes: Of a drift.
        level: The check fails where the promise of this level, or of a weaker one, is in doubt: for `token`
            those that put token or semantic at risk. A change without a rule always counts, because nobody
            knows what it puts in doubt. None: every change counts but those of a cache of compiled kernels
            that puts nothing in doubt: other programs fill it too.
    """
    if level is None:
        return [change for change in changes if not _is_idle_cache(change)]
    grave = {*LEVELS[LEVELS.index(level) :], "no rule"}
    return [change for change in changes if group_of(change) in grave]


def _is_idle_cache(change: Change) -> bool:
    return change.section == "kernels" and change.field.endswith("_cache") and group_of(change) == "none"


def _fields(base: Fingerprint, now: Fingerprint) -> list[tuple[str, str]]:
    """Every (section, field) that one of the two has: flat keys, then sections in their order, then names."""
    found = {
        (section, field)
        for fingerprint in (base, now)
        for section, content in fingerprint.sections.items()
        for field in content.facts
    }
    first = {field: rank for rank, field in enumerate(FLAT_KEYS.values())}
    order = {section: rank for rank, section in enumerate(SECTIONS)}
    return sorted(
        found, key=lambda field: (first.get(field, len(first)), order.get(field[0], len(order)), *field)
    )


def _reads_equal(before: Fact | None, after: Fact | None) -> bool:
    if before is None or after is None:
        return before is after
    # Canonical JSON, because Python takes True for 1, and a stored document keeps large integers as text.
    readings = [canonical_json([reading.value, reading.unavailable]) for reading in (before, after)]
    return readings[0] == readings[1]


def _is_hidden(before: Fact | None, after: Fact | None, fields_vary: bool, pasted: bool) -> bool:
    """Whether one side or both cannot show it: then nothing is known, whatever reason they give.

    Args:
        before: Of the base.
        after: Of the present one.
        fields_vary: A missing field means nothing, nor does a different reason for having no value.
        pasted: Of tables only the entries that both have are compared; these may be none.
    """
    if any(reading is not None and is_unknown(reading) for reading in (before, after)):
        return True
    if before is None or after is None:
        return fields_vary
    if before.unavailable is not None and after.unavailable is not None:
        # Why there is no value depends on how it was read.
        return fields_vary and before.unavailable != after.unavailable
    one, other = before.value, after.value
    tables = isinstance(one, dict) and isinstance(other, dict) and bool(one or other)
    return pasted and tables and not _shared(one, other)


def _common(before: Fact | None, after: Fact | None) -> tuple[Fact | None, Fact | None]:
    """Of two tables, one of them from pasted text, the entries that both have."""
    if before is None or after is None:
        return before, after
    one, other = before.value, after.value
    if not isinstance(one, dict) or not isinstance(other, dict):
        return before, after
    return (
        before.model_copy(update={"value": _shared(one, other)}),
        after.model_copy(update={"value": _shared(other, one)}),
    )


def _shared(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The entries that another table has too, in tables within tables likewise."""
    found: dict[str, Any] = {}
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        nested = isinstance(mine, dict) and isinstance(theirs, dict)
        value = _shared(mine, theirs) if nested else mine
        if not nested or value or not (mine or theirs):
            found[name] = value
    return found


def narrowed(before: Any, after: Any) -> tuple[Any, Any]:
    """Of two tables only the entries that differ, `absent` for those that one lacks; other values as is."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _only_differing(before, after), _only_differing(after, before)
    return before, after


def _only_differing(side: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name in sorted({*side, *other}):
        mine, theirs = side.get(name, "absent"), other.get(name, "absent")
        if isinstance(mine, dict) and isinstance(theirs, dict):
            mine, theirs = _only_differing(mine, theirs), _only_differing(theirs, mine)
        if canonical_json(mine) != canonical_json(theirs):
            kept[name] = mine
    return kept
