"""Sentences that explain the report itself: how positions count, what was compared, what its terms mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..format import does, number, plural
from ..verdict import difference_kind, largest_difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ....schemas.verdict import Verdict
    from .reading.rows import Pair, SiteTotal

HOW_POSITIONS_COUNT = (
    "Positions count prompt and answer tokens together, from 0; steps count answer tokens. A row is named by"
    " the token that the model read, logits by the token that they chose: the next one."
)
"""For the whole document."""

ABOUT_AGREEMENT = (
    "How often outputs are equal where requests ran several times; in brackets the 95 % interval (Wilson)."
    " TARr@N: the share of requests whose N samples are all equal. No hypothesis is tested."
)
"""What the table of agreement shows."""

CAUSES_RANKED = "Ranked by the evidence in the two traces. Run the command to confirm a cause."
"""Above several causes."""

_TERMS: tuple[tuple[str, str, str], ...] = (
    ("origin", r"\borigin\b", "the first module output that differs although all its inputs are equal"),
    ("site", r"\bsites?\b", "a module output (or another named tensor) that rip records"),
    ("row", r"\brows?\b", "the vector at one site for one token"),
    ("drift", r"\bdrift\b", "numeric difference, relative to the size of the row"),
    ("name:0", r"\w:\d\b", "the first of several outputs of a module"),
    ("name#1", r"\w#\d\b", "the second call of a module in one forward pass"),
    ("prefill", r"\bprefill\b", "the pass over the prompt; decode then adds one token at a time"),
    ("envelope", r"\benvelopes?\b", "the recorded request with all its settings"),
    ("sampling contract", r"\bsampling contract\b", "all fields that decide how a token is chosen"),
    ("lane", r"\blanes?\b", "one way to run: engine, model, settings, machine"),
    ("golden path", r"\bgolden\b", "teacher forcing: recorded tokens are forced, so every step compares"),
    ("transplant", r"\b[Tt]ransplant", "activation patching: A's rows are put into B's run"),
    (
        "reference",
        r"--reference\b",
        "the request in a higher precision, to distinguish rounding from a bug",
    ),
    ("hash", r"\bhash(es)?\b", "a digest of a row or of logits, equal only where every bit is"),
    (
        "sketch",
        r"\bsketch(es)?\b",
        "a short summary of a row that shows how large a difference is",
    ),
    ("nats", r"\bnats\b", "the unit of log-probabilities"),
)
"""Term, how it is found, and what it means; in the order in which a reader needs them."""


def glossary(texts: Iterable[str]) -> list[tuple[str, str]]:
    """The terms that occur in some texts, with their meanings."""
    whole = "\n".join(texts)
    return [(term, meaning) for term, pattern, meaning in _TERMS if re.search(pattern, whole)]


def how_much_compared(verdict: Verdict, sites: Sequence[SiteTotal], pairs: Sequence[Pair]) -> str:
    """Sequences, positions, rows and the largest difference of the logits.

    Args:
        verdict: Of the comparison.
        sites: The compared sites.
        pairs: The listed pairs.
    """
    compared = verdict.compared
    parts = [f"{plural(compared.sequences, 'sequence')} compared, {compared.sequences_diverging:,} diverging"]
    if compared.positions:
        parts.append(f"{plural(compared.positions, 'position')} with equal tokens before")
    if compared.rows:
        parts.append(
            f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')} (module outputs) compared"
            f" bit for bit, {compared.rows_differing:,} {does(compared.rows_differing, 'differ')}"
        )
    sketched = sum(site.by_sketch for site in sites)
    if sketched:
        parts.append(
            f"{plural(sketched, 'site')} with a different dtype or row hash compared by sketch (a short"
            f" summary of each row): {plural(sum(pair.rows_differing for pair in pairs), 'row')} differ"
        )
    if largest := largest_difference(verdict):
        parts.append(f"largest {difference_kind(verdict)} difference {number(largest)}")
    if compared.texts:
        differing = compared.texts_differing or 0
        parts.append(
            f"{plural(compared.texts, 'text')} compared as text, {differing:,} {does(differing, 'differ')}"
        )
    return f"{'; '.join(parts)}."
