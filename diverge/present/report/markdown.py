"""Renders a report as GitHub-flavoured Markdown, in which text from strangers stays text.

What would be markup becomes a character reference, which no reader of Markdown takes for markup: not in a
table, where a backslash before a bar means something else, and not for GitHub's mentions and links.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..format import bar, plain
from .pictures.text_map import text_map
from .rendering import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from .document import Postmortem

BAR = 10
"""Characters of the longest bar."""

_MARKUP = re.compile(r"[&<>\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=\bwww)\.")


class Markdown(str):
    """Text that is Markdown already."""

    def __html__(self) -> str:
        """What jinja2 takes as escaped."""
        return self


def to_markdown(document: Postmortem) -> str:
    """The document as text. It needs jinja2."""
    rendered = render("report.md", document, _escape, **{one.__name__: one for one in _FILTERS})
    return re.sub(r"\n{3,}", "\n\n", rendered).strip() + "\n"


def _escape(value: object) -> object:
    """What is put into the template is text, where no filter made it Markdown."""
    return value if hasattr(value, "__html__") else text(value)


def text(value: object) -> Markdown:
    """Any text as running text, on one line."""
    return Markdown(_escaped(plain(value)))


def block(value: object) -> Markdown:
    """Any text where a block or a list item begins: it makes no list, heading or rule."""
    shown = text(value).lstrip()
    return Markdown(re.sub(r"^(?:[-+=#]|\d+(?=[.)]))", lambda found: _references(found[0]), shown))


def code(value: object) -> Markdown:
    """Any text in code type, on one line, also inside a table."""
    shown = plain(value)
    if shown.strip() and shown == shown.strip() and not re.search(r"[`|\\]", shown):
        return Markdown(f"`{shown}`")
    return Markdown(f"<code>{_MARKUP.sub(_reference, shown)}</code>" if shown else "")


def flowing(value: str) -> Markdown:
    """Text of several lines for the inside of an HTML block: it wraps, and keeps line breaks and spaces."""
    return Markdown(_escaped(value).replace("  ", "&nbsp; ").replace("\n", "<br>"))


def html(value: str) -> Markdown:
    """Text for the inside of an HTML block."""
    return Markdown(value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def fenced(value: str, language: str = "console") -> Markdown:
    """A block of code that holds any text."""
    longest = max((len(run) for run in re.findall(r"`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{value}\n{fence}")


def token_bar(logprob: float | None, largest: float) -> str:
    """A probability as a bar of characters; empty where there is no number."""
    share = bar(logprob, largest)
    return "█" * max(1, round(BAR * share)) if share else ""


def as_script(commands: list[tuple[str, str]]) -> str:
    """Commands, each below a comment that says what it is for."""
    return "\n".join(f"# {purpose}\n{command}" for purpose, command in commands)


def of_requests(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Rows of request ids, each called a request."""
    return [(f"request {name}", a, b) for name, a, b in rows]


def _escaped(value: str) -> str:
    """Without markup, and so that @name and #1 refer to nobody and nothing."""
    return re.sub(r"(?<!&)([@#])(?=\w)", r"\1<!-- -->", _MARKUP.sub(_reference, value))


def _reference(found: re.Match[str]) -> str:
    return _references(found[0])


def _references(characters: str) -> str:
    named = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    return "".join(named.get(one, f"&#{ord(one)};") for one in characters)


_FILTERS: tuple[Callable[..., Any], ...] = (
    *(text, block, code, flowing, html, fenced, token_bar, text_map, as_script, of_requests),
)
