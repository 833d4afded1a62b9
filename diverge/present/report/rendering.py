"""What the HTML page and the Markdown text share: where the templates are, and the filters that they use."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import format, verdict_sentences
from ..findings import experiments, labels, sentences
from ..first_screen import causes as screen_causes
from ..first_screen.compose import confirm_command
from ..first_screen.lines import sparkline
from ..first_screen.screen import MARKS
from ..format import bar, plain
from . import pair_sentences
from .pictures.text_map import text_map

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .document import Postmortem
    from .reading.rows import Candidate


TEMPLATES = Path(__file__).parent / "templates"

TwoSides = tuple[str, str, str]
"""A name, A's value and B's value."""


def render(
    template: str, document: Postmortem, finalize: Callable[[Any], Any] | None = None, **more: Any
) -> str:
    """A template over a document.

    Args:
        template: File name.
        document: What it shows.
        finalize: Escapes what is put into the template; None: for HTML.
        more: Further filters, where they are functions, and variables.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= _FILTERS | {name: one for name, one in more.items() if callable(one)}
    environment.globals |= _GLOBALS
    return environment.get_template(template).render(
        document=document,
        verdict=document.verdict,
        kind=document.kind,
        **{name: one for name, one in more.items() if not callable(one)},
    )


def differing(rows: Sequence[TwoSides]) -> list[TwoSides]:
    """The rows whose values differ."""
    return [row for row in rows if row[1] != row[2]]


def equal(rows: Sequence[TwoSides]) -> list[tuple[str, str]]:
    """The names and values of the others."""
    return [(name, a) for name, a, b in rows if a == b]


def moved(candidate: Candidate) -> float | None:
    """By how much a candidate's logit (logprob, where there are no logits) is larger in B."""
    if candidate.logit_a is not None and candidate.logit_b is not None:
        return candidate.logit_b - candidate.logit_a
    if candidate.logprob_a is not None and candidate.logprob_b is not None:
        return candidate.logprob_b - candidate.logprob_a
    return None


_FILTERS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        *(format.drift_cell, format.does, format.moment, format.number, format.logit, format.count),
        *(format.percent, format.bar, format.plain, format.shell, format.plural, format.pieces),
        *(
            sentences.sentence,
            sentences.where,
            sentences.why,
            labels.label,
            sentences.how_to_read,
            experiments.decision,
        ),
        *(
            screen_causes.is_unlikely,
            screen_causes.own_evidence,
            sparkline,
            pair_sentences.causes_ranked,
            verdict_sentences.is_cut,
            verdict_sentences.level_note,
            verdict_sentences.level_reason,
            differing,
            equal,
            moved,
        ),
    )
}
_GLOBALS = {
    "marks": MARKS,
    "confirm_command": confirm_command,
    "request_name": format.request_name,
    "expected_to_differ": verdict_sentences.EXPECTED_TO_DIFFER,
    "level_promises": verdict_sentences.LEVEL_PROMISES,
    "how_positions_count": pair_sentences.HOW_POSITIONS_COUNT,
    "about_agreement": pair_sentences.ABOUT_AGREEMENT,
}


def to_html(document: Postmortem) -> str:
    """The page as text. It needs jinja2."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render("report.html", document, script=script, script_hash=digest)


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
    rendered = render("report.md", document, _escape, **{one.__name__: one for one in _MARKDOWN})
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


def wrapped_markdown(value: str) -> Markdown:
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


_MARKDOWN: tuple[Callable[..., Any], ...] = (
    *(text, block, code, wrapped_markdown, html, fenced, token_bar, text_map, as_script, of_requests),
)
