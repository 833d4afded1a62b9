"""What the HTML page and the Markdown text share: where the templates are, and the filters that they use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import format, verdict
from ..findings import interpretation, labels, sentence
from . import explanations

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
        *(sentence.sentence, sentence.where, sentence.why, labels.label, interpretation.how_to_read),
        *(verdict.is_cut, verdict.level_note, verdict.level_reason, differing, equal, moved),
    )
}
_GLOBALS = {
    "request_name": format.request_name,
    "expected_to_differ": verdict.EXPECTED_TO_DIFFER,
    "level_promises": verdict.LEVEL_PROMISES,
    "how_positions_count": explanations.HOW_POSITIONS_COUNT,
    "about_agreement": explanations.ABOUT_AGREEMENT,
    "causes_ranked": explanations.CAUSES_RANKED,
}
