"""How a postmortem in Markdown begins: its sentences, the timeline, and the two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.claim import LEVELS
from ..verdict_words import EXPECTED_TO_DIFFER
from ..words import does, number, plural
from .markdown_text import code, fenced, table, text

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
    marks = {"holds": "✅ holds", "fails": "❌ fails"}
    levels = document.verdict.levels
    states = [marks.get(levels[name].state, f"– {levels[name].state}") for name in LEVELS]
    return [
        f"# {text(document.title)}",
        *([f"**{text(document.headline)}**"] if document.title != document.headline else []),
        *(f"**{sentence.about}.** {text(sentence.text)}" for sentence in document.summary),
        *_next_step(document),
        table(list(LEVELS), [states]),
    ]


def _next_step(document: Postmortem) -> list[str]:
    step = document.next_step
    said = [f"**Next.** {text(step.text)}"]
    return said if step.command is None else [*said, fenced(step.command), run_in(document)]


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
    return ["## Timeline of evidence", table(["when", "what", "evidence"], rows)]


def runs(document: Postmortem) -> list[str]:
    """The two traces, where they ran, and how much was compared."""
    compared = document.verdict.compared
    said = (
        f"{plural(compared.sequences, 'sequence')} compared, {compared.sequences_diverging:,} diverging;"
        f" {plural(compared.positions, 'position')} with an equal token prefix;"
        f" {plural(compared.rows, 'row')} at {plural(compared.sites, 'site')} compared by hash,"
        f" {compared.rows_differing:,} {does(compared.rows_differing, 'differ')};"
        f" largest {document.kind} difference {number(document.largest)}."
    )
    if compared.texts:
        differing = compared.texts_differing or 0
        said += (
            f" {plural(compared.texts, 'text')} compared as text, {differing:,} {does(differing, 'differ')}."
        )
    return ["## The two runs", two_sides(document.facts), said, *_where_it_ran(document)]


def _where_it_ran(document: Postmortem) -> list[str]:
    found = document.environment
    if not found.rows:
        return []
    lines = [
        f"{what}, equal in both: "
        + " · ".join(f"{text(name)} {code(value[:MAX_SETTING])}" for name, value in settings[:MAX_SETTINGS])
        for what, settings in (("Settings", found.equal), ("Sampling", found.sampling))
        if settings
    ]
    if found.unknown:
        lines.append("Not recorded: " + " · ".join(text(name) for name in found.unknown[:MAX_SETTINGS]))
    lists = (found.rows, found.equal, found.sampling, found.unknown)
    if hidden := sum(max(len(one) - MAX_SETTINGS, 0) for one in lists):
        lines.append(f"{plural(hidden, 'more setting')} not listed.")
    return ["### Where it ran", two_sides(found.rows[:MAX_SETTINGS]), *lines]


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
