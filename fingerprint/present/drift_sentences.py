"""A drift as its readers see it: every sentence of it, in one model for terminal, Markdown and HTML.

A drift may come from a stranger's document: control characters are made visible here, values are shortened,
and what a format reads as markup is escaped where it is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...schemas.change import Change
from ...schemas.fingerprint import FLAT_KEYS, NO_TIME, NOT_SET, Absence, Fact, Fingerprint
from ..drift import by_risk, count_forbidden, narrowed

if TYPE_CHECKING:
    from ...schemas.change import Drift, TensorMatch


RISKS = {
    "semantic": ("Semantic in doubt", "The answers themselves may change. Expect no stronger level to hold."),
    "token": ("Tokens in doubt", "The same logits may give different tokens."),
    "numeric": ("Numbers in doubt", "The logits may leave any tolerance that was measured before."),
    "bitwise": (
        "Bitwise equality in doubt",
        "Results may no longer be bit-identical. A replay shows whether tokens change.",
    ),
    "no rule": ("No rule", "No rule states what these put at risk."),
    "none": ("None directly at risk", "A rule says that these alone change no result."),
}
"""Group of changes → heading, and what it means."""
CLAIMED = "its digests are what the cache claims; `--strength sampled` or `verified` reads the weights"
CLOSING = "A rule names the level in doubt. Whether it was lost is known only after a replay."
_READ_ALL = "run rip as the user who owns the process, or as root, and read it again"
_SHOWN_FIELDS = 4


@dataclass(frozen=True)
class Row:
    """One change as it is shown."""

    name: str
    before: str
    after: str
    why: str
    urls: list[str]
    diff: list[str]
    """Of a text: its lines that differ; empty otherwise."""
    followers: list[str]
    """Fields that changed with it and say no more."""


@dataclass(frozen=True)
class Group:
    """The changes of one risk, and what to replay: advice and the fields it is for."""

    risk: str
    heading: str
    meaning: str
    rows: list[Row]
    replays: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Key:
    """One of the thirteen flat keys on both sides."""

    name: str
    before: str
    after: str
    state: str
    """`changed`, `unknown` (to one side or both) or `equal`."""


@dataclass(frozen=True)
class DriftReport:
    """Everything that a report of a drift shows."""

    headline: str
    sides: list[tuple[str, str, str]]
    keys: list[Key]
    groups: list[Group]
    closing: str | None
    notes: list[str]


def describe_drift(found: Drift, base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> DriftReport:
    """The model of a report.

    Args:
        found: Of `base` and `now`.
        base: The earlier one.
        now: The present one.
        names: What to call them, for example their file names.
    """
    return DriftReport(
        headline(found),
        _sides(base, now, names),
        _keys(found, base, now),
        group_changes(found.changes),
        CLOSING if found.changes else None,
        list_notes(found),
    )


def headline(found: Drift) -> str:
    """What the drift amounts to, in one sentence without a full stop."""
    unread = " (no weight was read)" if found.claimed else ""
    if not found.changes:
        return ("no change that counts" if found.ignored else "no change") + unread
    parts = [f"{group} {len(members)}" for group, members in by_risk(found.changes)]
    return f"{_count(len(found.changes), 'change')} ({', '.join(parts)}){unread}"


def group_changes(changes: list[Change]) -> list[Group]:
    """Changes by risk, gravest first."""
    groups = []
    for group, members in by_risk(changes):
        followers = _followers(members)
        folded = {name for names in followers.values() for name in names}
        rows = [_row(one, followers.get(one.name, [])) for one in members if one.name not in folded]
        groups.append(Group(group, *RISKS[group], rows, list_replays(members)))
    return groups


_FOLLOWERS = {
    "template.sha256": ("template.named", "template.rendered", "template.rendered_sha256"),
    "tokenizer.sha256": ("tokenizer.files",),
}
"""Field → those that say the same of the same text in other digests."""


def _followers(members: list[Change]) -> dict[str, list[str]]:
    """Changes that are told by the text of another one of the same group."""
    by_name = {change.name: change for change in members}
    found = {}
    for name, others in _FOLLOWERS.items():
        change = by_name.get(name)
        if change is not None and (change.diff or change.keys):
            found[name] = [other for other in others if other in by_name and _is_told(by_name[other])]
    return found


def _is_told(change: Change) -> bool:
    """Whether a change is of the default template, or of no single one."""
    return change.field != "named" or [one.key for one in change.keys or ()] in ([], ["default"])


def _row(change: Change, followers: list[str]) -> Row:
    before, after = before_and_after(change)
    name = f"{change.name} › {change.keys[0].key}" if change.keys and len(change.keys) == 1 else change.name
    diff = [visible(line) for line in change.diff or ()]
    return Row(visible(name), before, after, visible(change.rule), _web_addresses(change), diff, followers)


def list_replays(changes: list[Change]) -> list[tuple[str, list[str]]]:
    """What to replay, each advice once, with the fields that need it."""
    advised: dict[str, list[str]] = {}
    for change in changes:
        if change.replay:
            advised.setdefault(visible(change.replay), []).append(visible(change.name))
    return list(advised.items())


def list_notes(found: Drift) -> list[str]:
    """What else the reader must know: ignored changes, what could not be compared, other sources."""
    notes = [f"ignored: {visible(change.name)}" for change in found.ignored or ()]
    if found.claimed:
        sides = "either side" if len(found.claimed) > 1 else found.claimed[0].upper()
        notes.append(f"no weight was read of {sides}: {CLAIMED}")
    if failed := [visible(name) for name in found.not_compared or () if ".probe_" in name]:
        notes.append(
            f"a probe failed on one side or both, so what it reads was not compared: {', '.join(failed)}"
        )
    if found.not_compared:
        keys = [key for key, field in FLAT_KEYS.items() if ".".join(field) in found.not_compared]
        count = len(found.not_compared)
        notes.append(
            f"{_count(count, 'field')} could not be compared: one or both sides do not report "
            f"{'it' if count == 1 else 'them'} ({found.compared} compared)"
            + (f"; among them {', '.join(keys)}" if keys else "")
        )
    sources = [str(change) for change in found.other_sources or ()] or found.source_changes
    return notes + [f"same value, different source: {visible(line)}" for line in sources]


def permission_note(base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> str | None:
    """What lack of permission has hidden, and how to fix it; None where it hid nothing."""
    hidden = [
        f"{count} of {name}"
        for name, one in zip(names, (base, now), strict=True)
        if (count := count_forbidden(one))
    ]
    if not hidden:
        return None
    return f"fields not compared, because rip may not read them: {', '.join(hidden)}; {_READ_ALL}"


def paste_note(read: Fingerprint, name: str) -> str | None:
    """What a pasted text was read as, and how much of it was not; None of any other fingerprint."""
    process = read.sections.get("process")
    kinds = process.volatile.get("pasted_kinds") if process is not None else None
    unread = process.volatile.get("lines_not_understood") if process is not None else None
    if kinds is None or unread is None or not isinstance(kinds.value, list):
        return None
    stated = sum(
        item.value is not None for section in read.sections.values() for item in section.facts.values()
    )
    left = _count(int(unread.value), "line") + (" states" if unread.value == 1 else " state")
    kind = visible(", ".join(map(str, kinds.value)))
    return f"{visible(name)} was read as {kind}: {_count(stated, 'fact')}; {left} nothing that rip reads"


def list_fields(names: list[str]) -> str:
    """Field names in one line, the first few of many."""
    rest = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
    return ", ".join(names[:_SHOWN_FIELDS]) + rest


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _sides(base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> list[tuple[str, str, str]]:
    return [
        ("name", visible(names[0]), visible(names[1])),
        ("read", _when(base), _when(now)),
        ("by rip", visible(base.tool_version), visible(now.tool_version)),
        ("root digest", base.root_digest[:16], now.root_digest[:16]),
    ]


def _when(fingerprint: Fingerprint) -> str:
    return "not stated" if fingerprint.created == NO_TIME else visible(fingerprint.created)


def _keys(found: Drift, base: Fingerprint, now: Fingerprint) -> list[Key]:
    changed = {change.name for change in (*found.changes, *(found.ignored or ()))}
    before, after = base.flat(), now.flat()
    keys = []
    for key, field in FLAT_KEYS.items():
        name = ".".join(field)
        unknown = name in (found.not_compared or ()) or not (base.get(*field) or now.get(*field))
        state = "changed" if name in changed else "unknown" if unknown else "equal"
        keys.append(Key(key, visible(str(before[key])), visible(str(after[key])), state))
    return keys


def _web_addresses(change: Change) -> list[str]:
    """Only plain web addresses become links: the document may come from anywhere."""
    return [
        url for url in change.sources or () if url.startswith("https://") and not set(url) & set("<>\"'` \\")
    ]


_SHOWN_DIGITS = 12
"""Of a digest, for people; the document keeps all of it."""
_SHOWN_ENTRIES = 6
"""Of a table or list; the document keeps all of them."""
_SHOWN_CHARACTERS = 200
"""Of one text."""
_MISSING = "not in this fingerprint"
_MISSING_ENTRY = "absent"


def before_and_after(change: Change) -> tuple[str, str]:
    """Both sides: of two tables, lists or texts only what differs, and digests shortened."""
    if change.keys:
        entries = [(entry.key, entry.before, entry.after) for entry in change.keys]
        return _side([(key, before) for key, before, _ in entries]), _side(
            [(key, after) for key, _, after in entries]
        )
    if change.tensors:
        return _matched_tensors(change.tensors)
    if change.diff:
        return _marked(change.diff, "-"), _marked(change.diff, "+")
    if change.before is not None and change.after is not None:
        before, after = change.before.value, change.after.value
        if isinstance(before, dict) and isinstance(after, dict):
            return _tables(before, after)
        if isinstance(before, list) and isinstance(after, list) and _hold_texts(before, after):
            return _lists(before, after)
    return _describe(change.before), _describe(change.after)


def _matched_tensors(match: TensorMatch) -> tuple[str, str]:
    """The tensors of a GGUF and a folder in one line: which names match, what is known of the contents."""
    gguf, folder = (_count(count, "tensor") for count in (match.of_gguf, match.of_folder))
    said = [f"names match {match.matched} of {max(match.of_gguf, match.of_folder)}"]
    said += [f"missing in the folder: {_names(match.only_gguf)}"] if match.only_gguf else []
    said += [f"missing in the GGUF: {_names(match.only_folder)}"] if match.only_folder else []
    said += [f"equal content: {match.equal}"] if match.equal else []
    if match.differing:
        said.append(f"different content: {len(match.differing)} ({_names(match.differing)})")
    if match.retyped:
        kinds = ", ".join(f"{visible(kind)} {count}" for kind, count in sorted(match.retyped.items()))
        said.append(f"other type, content not comparable: {kinds}")
    if match.permuted:
        said.append(f"q and k, whose rows a conversion permutes, not comparable: {len(match.permuted)}")
    sides = [f"{gguf} (GGUF)", f"{folder} (folder)"]
    before, after = sides if match.gguf == "base" else sides[::-1]
    return before, f"{after}: {'; '.join(said)}"


def _names(names: list[str]) -> str:
    return list_fields([visible(name) for name in names])


def _side(entries: list[tuple[str, str | None]]) -> str:
    """One side of the entries of a JSON text; a single one stands under its own name."""
    shown = [(visible(key), _MISSING_ENTRY if value is None else visible(value)) for key, value in entries]
    if len(shown) == 1:
        return shown[0][1]
    return ", ".join(f"{key}={value}" for key, value in shown[:_SHOWN_ENTRIES]) + _more(len(shown))


def _marked(diff: list[str], mark: str) -> str:
    """The lines of one side of a diff."""
    lines = [visible(line[1:].strip()) for line in diff if line.startswith(mark)]
    return " ⏎ ".join(lines[:_SHOWN_ENTRIES]) + _more(len(lines)) or "nothing"


def _tables(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str]:
    mine, theirs = narrowed(before, after)
    if len(mine) <= _SHOWN_ENTRIES:
        return _short(mine), _short(theirs)
    names = list(mine)[:_SHOWN_ENTRIES]
    more = f"; {len(mine)} of {len({*before, *after})} entries differ"
    return (
        _short({name: mine[name] for name in names}) + more,
        _short({name: theirs[name] for name in names}) + more,
    )


def _hold_texts(*lists: list[Any]) -> bool:
    return all(isinstance(item, str) for items in lists for item in items)


def _lists(before: list[str], after: list[str]) -> tuple[str, str]:
    """Instruction sets and names: what one has more than the other. Equal sets differ in their order."""
    both = set(before) & set(after)
    if not both or set(before) == set(after):
        return _short(before), _short(after)
    common = f"{len(both)} in common"
    mine = [item for item in before if item not in both]
    theirs = [item for item in after if item not in both]
    return (
        f"{common} and {_short(mine)}" if mine else common,
        f"{common} and {_short(theirs)}" if theirs else common,
    )


def _describe(reading: Fact | None) -> str:
    if reading is None:
        return _MISSING
    if reading.absence is Absence.UNSET:
        return NOT_SET
    return visible(reading.text()) if reading.unavailable is not None else _short(reading.value)


def _short(value: Any) -> str:
    if value in ("", [], {}):
        return repr(value)
    if isinstance(value, dict):
        shown = [
            f"{visible(name)}: ({_short(item)})"
            if isinstance(item, dict)
            else f"{visible(name)}={_short(item)}"
            for name, item in list(value.items())[:_SHOWN_ENTRIES]
        ]
        return ", ".join(shown) + _more(len(value))
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value[:_SHOWN_ENTRIES]) + _more(len(value))
    text = visible(str(value))
    if len(text) >= 40 and all(character in "0123456789abcdef" for character in text):
        return f"{text[:_SHOWN_DIGITS]}…"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"


def _more(count: int) -> str:
    return f", … {count - _SHOWN_ENTRIES} more" if count > _SHOWN_ENTRIES else ""


def visible(text: str) -> str:
    """A fingerprint may come from anywhere: control characters must not reach a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
