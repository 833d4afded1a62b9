"""How a postmortem in Markdown begins: its sentences, the levels, the timeline, and the two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....schemas.claim import LEVELS
from ..findings.sentence import where, why
from ..format import plural
from ..verdict import EXPECTED_TO_DIFFER, LEVEL_WORDS
from .compared import counted
from .markdown_text import block, code, fenced, table, text
from .timeline import COUNTED

if TYPE_CHECKING:
    from .model import Postmortem

MAX_FACT = 160
"""Characters of a value in a table."""
MAX_SETTINGS = 40
"""Rows of the table, and settings in a line."""
MAX_SETTING = 60
"""Characters of a value in a line."""


def opening(document: Postmortem) -> list[str]:
    """Title, sentences, the next step and the levels."""
    return [
        f"# {text(document.title)}",
        *([f"**{text(document.headline)}**"] if document.title != document.headline else []),
        *(f"**{sentence.about}.** {text(sentence.text)}" for sentence in document.summary),
        *_next_step(document),
        _levels(document),
        *_glossary(document),
    ]


def _glossary(document: Postmortem) -> list[str]:
    said = "; ".join(f"*{text(word)}*: {text(meaning)}" for word, meaning in document.glossary)
    return [f"Words used here. {said}."] if said else []


def _next_step(document: Postmortem) -> list[str]:
    step = document.next_step
    said = [f"**Next.** {text(step.text)}"]
    if step.command is None:
        return said
    read = f"How to read it: {text(step.tells)}. " if step.tells else ""
    return [*said, fenced(step.command), f"{read}{run_in(document)}"]


def _levels(document: Postmortem) -> str:
    marks = {"holds": "✅ holds", "fails": "❌ fails"}
    rows = []
    for name in LEVELS:
        level = document.verdict.levels[name]
        said = "; ".join(text(one) for one in (where(level), why(level)) if one)
        rows.append([f"{name}: {LEVEL_WORDS[name]}", marks.get(level.state, f"– {level.state}"), said or "–"])
    return table(["level", "state", "where it first fails, and why"], rows)


def timeline(document: Postmortem) -> list[str]:
    """What happened in which order."""
    if not document.timeline:
        return []
    rows = [
        [
            text(event.when),
            f"**{text(event.title)}**" + (f"<br>{text(event.detail)}" if event.detail else ""),
            text(event.source),
        ]
        for event in document.timeline
    ]
    return ["## Timeline of evidence", COUNTED, table(["when", "what", "evidence"], rows)]


def runs(document: Postmortem) -> list[str]:
    """The two traces, where they ran, and how much was compared; only what differs is a table."""
    found = document.environment
    lists = (found.rows, found.equal, found.unknown)
    differing, equal = split([*document.facts, *found.rows[:MAX_SETTINGS]])
    telling = [row for row in differing if row[0] not in EXPECTED_TO_DIFFER]
    expected = [
        f"{text(name)} {code(a)} and {code(b)}" for name, a, b in differing if (name, a, b) not in telling
    ]
    equal += found.equal[:MAX_SETTINGS]
    lines = [f"- A and B: {' · '.join(expected)}"] if expected else []
    if equal:
        lines.append(f"- Equal in both: {' · '.join(_short(*one) for one in equal)}")
    if found.unknown:
        lines.append("- Not recorded: " + " · ".join(text(name) for name in found.unknown[:MAX_SETTINGS]))
    if hidden := sum(max(len(one) - MAX_SETTINGS, 0) for one in lists):
        lines.append(f"- {plural(hidden, 'more setting')} not listed.")
    shown = [two_sides(telling)] if telling else []
    lines += [f"- {line}" for line in (block(counted(document)), *_no_change(document))]
    return ["## The two runs, and where they ran", *shown, "\n".join(lines)]


def _short(name: str, value: str) -> str:
    return f"{text(name)} {code(value[:MAX_SETTING])}"


def _no_change(document: Postmortem) -> list[str]:
    """Where no section speaks of changes of the environment."""
    if document.rules:
        return []
    both = document.verdict.a.fingerprint and document.verdict.b.fingerprint
    return [
        "The two fingerprints (readings of the environment) agree in every field that both hold."
        if both
        else "Whether the environment changed is not known: a trace carries no fingerprint (rip fingerprint)."
    ]


def split(
    rows: list[tuple[str, str, str]],
) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Rows that differ, and names with values of those that do not."""
    return [row for row in rows if row[1] != row[2]], [(row[0], row[1]) for row in rows if row[1] == row[2]]


def two_sides(rows: list[tuple[str, str, str]]) -> str:
    """A table of names with A's and B's values; bold where they differ and that says something."""
    return table(
        ["", "A", "B"],
        [
            [
                text(name) if one == other or name in EXPECTED_TO_DIFFER else f"**{text(name)}**",
                code(one[:MAX_FACT]),
                code(other[:MAX_FACT]),
            ]
            for name, one, other in rows
        ],
    )


def run_in(document: Postmortem) -> str:
    """In which folder every command of the document runs."""
    return f"Run the commands of this document in {code(document.place.folder)}: their paths start there."
