"""A drift for people who were not there: Markdown for a ticket, and one self-contained HTML file.

Every value comes from a document that may be a stranger's, so everything is escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import punctuation
from typing import TYPE_CHECKING

from ...schemas.errors import MissingPackage
from ...schemas.fingerprint import FLAT_KEYS, Fingerprint
from .compare import by_risk
from .partial import NO_TIME
from .words import before_and_after, visible

if TYPE_CHECKING:
    from ...schemas.change import Change, Drift

TEMPLATES = Path(__file__).parent / "templates"
HEADINGS = {
    "semantic": "Semantic in doubt",
    "token": "Tokens in doubt",
    "numeric": "Numbers in doubt",
    "bitwise": "Bitwise equality in doubt",
    "no rule": "No rule",
    "none": "None directly at risk",
}
MEANINGS = {
    "semantic": "The answers themselves may be others; nothing stronger can be expected to hold.",
    "token": "The same logits may give other tokens.",
    "numeric": "The logits may leave any tolerance that was measured before.",
    "bitwise": "Results need not be bit-identical any more. Whether tokens change, a replay tells.",
    "no rule": "Nobody has stated what these put at risk.",
    "none": "A rule says that these alone change no result.",
}
CLOSING = "A rule names the level in doubt. Whether it was lost is known only after a replay."


@dataclass(frozen=True)
class Row:
    """One change as it is shown."""

    name: str
    before: str
    after: str
    why: str
    urls: list[str]


@dataclass(frozen=True)
class Group:
    """The changes of one risk, and what to replay: advice and the fields it is for."""

    heading: str
    meaning: str
    rows: list[Row]
    replays: list[tuple[str, list[str]]]


def headline(found: Drift) -> str:
    """What the drift amounts to, in one sentence without a full stop."""
    if not found.changes:
        return "no change that counts" if found.ignored else "no change"
    counted = "1 change" if len(found.changes) == 1 else f"{len(found.changes)} changes"
    parts = [f"{group} {len(members)}" for group, members in by_risk(found.changes)]
    return f"{counted} ({', '.join(parts)})"


def groups_of(changes: list[Change]) -> list[Group]:
    """Changes by risk, gravest first."""
    return [
        Group(
            HEADINGS[group],
            MEANINGS[group],
            [
                Row(change.name, *before_and_after(change), visible(change.rule), _web_addresses(change))
                for change in members
            ],
            replays_of(members),
        )
        for group, members in by_risk(changes)
    ]


def replays_of(changes: list[Change]) -> list[tuple[str, list[str]]]:
    """What to replay, each advice once, with the fields that ask for it."""
    advised: dict[str, list[str]] = {}
    for change in changes:
        if change.replay:
            advised.setdefault(visible(change.replay), []).append(change.name)
    return list(advised.items())


def notes_of(found: Drift) -> list[str]:
    """What else the reader must know: ignored changes, what could not be compared, other sources."""
    notes = [f"ignored: {visible(change.name)}" for change in found.ignored or ()]
    if found.not_compared:
        keys = [key for key, place in FLAT_KEYS.items() if ".".join(place) in found.not_compared]
        count = len(found.not_compared)
        fields, them = ("1 field", "it") if count == 1 else (f"{count} fields", "them")
        were = "1 was" if found.compared == 1 else f"{found.compared} were"
        among = f"; among them {', '.join(keys)}" if keys else ""
        notes.append(
            f"{fields} could not be compared: one side or both do not tell {them} ({were} compared){among}"
        )
    return notes + [f"same value from another source: {visible(line)}" for line in found.source_changes]


def to_markdown(found: Drift, base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> str:
    """The drift as Markdown, for a ticket, a pull request or a CI summary.

    Args:
        found: Of `base` and `now`.
        base: The earlier one.
        now: The present one.
        names: What to call them, for example their file names.
    """
    lines = ["# Environment drift", "", f"**{_plain(headline(found))}**", ""]
    lines += ["| | base | now |", "|---|---|---|"]
    lines += [
        f"| {label} | {_plain(one)} | {_plain(other)} |" for label, one, other in _sides(base, now, names)
    ]
    for group in groups_of(found.changes):
        lines += ["", f"## {group.heading}", "", group.meaning, ""]
        lines += ["| field | before | after | why |", "|---|---|---|---|"]
        for row in group.rows:
            links = " ".join(f"[{index}](<{url}>)" for index, url in enumerate(row.urls, 1))
            cells = (
                _plain(row.name),
                _plain(row.before),
                _plain(row.after),
                f"{_plain(row.why)} {links}".strip(),
            )
            lines.append(f"| {' | '.join(cells)} |")
        if group.replays:
            lines += ["", "To know:", ""]
            lines += [
                f"- {_plain(advice, code=True)} ({_plain(listed(for_))})" for advice, for_ in group.replays
            ]
    if found.changes:
        lines += ["", CLOSING]
    if notes := notes_of(found):
        lines += ["", "## Notes", "", *(f"- {_plain(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def to_html(found: Drift, base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> str:
    """The same as one HTML file that loads nothing and runs nothing. Arguments as `to_markdown`.

    Raises:
        MissingPackage: jinja2 is not installed.
    """
    try:
        import jinja2
        import markupsafe
    except ModuleNotFoundError:
        raise MissingPackage(
            "the HTML report needs the package jinja2",
            "pip install 'rip-forensics[report]', or use --markdown",
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = lambda name: markupsafe.Markup("<wbr>").join(_BREAKS.split(name))
    return environment.get_template("drift.html").render(
        headline=headline(found),
        css=(TEMPLATES / "drift.css").read_text("utf-8"),
        sides=_sides(base, now, names),
        keys=_keys(found, base, now),
        groups=groups_of(found.changes),
        closing=CLOSING,
        notes=notes_of(found),
        listed=listed,
    )


def _sides(base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> list[tuple[str, str, str]]:
    return [
        ("name", visible(names[0]), visible(names[1])),
        ("read", _when(base), _when(now)),
        ("by rip", visible(base.tool_version), visible(now.tool_version)),
        ("root digest", base.root_digest[:16], now.root_digest[:16]),
    ]


def _when(fingerprint: Fingerprint) -> str:
    return "not stated" if fingerprint.created == NO_TIME else visible(fingerprint.created)


def _keys(found: Drift, base: Fingerprint, now: Fingerprint) -> list[tuple[str, str, str, str]]:
    """The thirteen keys: name, both values, and `changed`, `untold` (by one side or by both) or `equal`."""
    changed = {change.name for change in (*found.changes, *(found.ignored or ()))}
    before, after = base.flat(), now.flat()
    keys = []
    for key, place in FLAT_KEYS.items():
        name = ".".join(place)
        untold = name in (found.not_compared or ()) or not (base.get(*place) or now.get(*place))
        kind = "changed" if name in changed else "untold" if untold else "equal"
        keys.append((key, visible(str(before[key])), visible(str(after[key])), kind))
    return keys


def listed(names: list[str], shown: int = 4) -> str:
    """Field names in one line, the first few of many."""
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(visible(name) for name in names[:shown]) + rest


_BREAKS = re.compile(r"(?<=[._])(?=[^._])")
"""Where the name of a field may go on in the next line: after its dots and underscores."""


def _web_addresses(change: Change) -> list[str]:
    """A drift document may come from anywhere: only plain web addresses become links."""
    return [
        url for url in change.sources or () if url.startswith("https://") and not set(url) & set("<>\"'` \\")
    ]


def _plain(text: str, *, code: bool = False) -> str:
    """Text that Markdown shows as it is: every punctuation mark escaped, on one line.

    Args:
        text: Anything.
        code: Keep the backticks that rip's own advice puts around commands.
    """
    one_line = " ".join(text.split())
    if code:
        parts = one_line.split("`")
        return "".join(f"`{part}`" if index % 2 else _escaped(part) for index, part in enumerate(parts))
    return _escaped(one_line)


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in _MARKUP else character for character in text)


_MARKUP = frozenset(punctuation) - frozenset(".,:;()/-=%?'\"+")
"""Punctuation that Markdown or HTML may read as markup inside a table cell. The rest stays readable."""
