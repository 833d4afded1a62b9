"""Markdown that shows text from strangers as text: escaping, code, tables, folds.

What would be markup becomes a character reference, which no reader of Markdown takes for markup: not in a
table, where a backslash before a bar means something else, and not for GitHub's mentions and links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..format import plain

_MARKUP = re.compile(r"[&<>\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=\bwww)\.")


def text(value: object) -> str:
    """Any text as running text, on one line."""
    return _escaped(plain(value))


def block(value: object) -> str:
    """Any text where a block or a list item begins: it makes no list, heading or rule."""
    return re.sub(r"^(?:[-+=#]|\d+(?=[.)]))", lambda found: _references(found[0]), text(value).lstrip())


def code(value: object) -> str:
    """Any text in code type, on one line, also inside a table."""
    shown = plain(value)
    if shown.strip() and shown == shown.strip() and not re.search(r"[`|\\]", shown):
        return f"`{shown}`"
    return f"<code>{_MARKUP.sub(_reference, shown)}</code>" if shown else ""


def flowing(value: str) -> str:
    """Text of several lines for the inside of an HTML block: it wraps, and keeps line breaks and spaces."""
    return _escaped(value).replace("  ", "&nbsp; ").replace("\n", "<br>")


def html(value: str) -> str:
    """Text for the inside of an HTML block."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fenced(value: str, language: str = "console") -> str:
    """A block of code that holds any text."""
    longest = max((len(run) for run in re.findall(r"`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{value}\n{fence}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A table. Cells are Markdown already.

    Args:
        heads: Headings.
        rows: Cells.
        numbers: Columns that stand right.
    """
    right = set(numbers)
    rule = ["--:" if column in right else "---" for column in range(len(heads))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows))


def fold(summary: str, *blocks: str) -> str:
    """Blocks that are folded away; the summary is escaped here."""
    return "\n\n".join((f"<details><summary>{html(plain(summary))}</summary>", *blocks, "</details>"))


def _escaped(value: str) -> str:
    """Without markup, and so that @name and #1 refer to nobody and nothing."""
    return re.sub(r"(?<!&)([@#])(?=\w)", r"\1<!-- -->", _MARKUP.sub(_reference, value))


def _reference(found: re.Match[str]) -> str:
    return _references(found[0])


def _references(characters: str) -> str:
    named = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    return "".join(named.get(one, f"&#{ord(one)};") for one in characters)
