"""How much was compared, in sentences that both forms of the report print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..format import does, number, plural

if TYPE_CHECKING:
    from .model import Postmortem

AGREEMENT = (
    "How often outputs are equal where requests ran several times; in brackets the 95 % interval (Wilson)."
    " TARr@N: the share of requests whose N samples are all equal. No hypothesis is tested."
)
"""What the table of agreement shows."""


def counted(document: Postmortem) -> str:
    """Sequences, positions, rows inside the model and the largest difference of the logits."""
    compared = document.verdict.compared
    said = [f"{plural(compared.sequences, 'sequence')} compared, {compared.sequences_diverging:,} diverging"]
    if compared.positions:
        said.append(f"{plural(compared.positions, 'position')} with equal tokens up to there")
    if compared.rows:
        said.append(
            f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')} (places inside the model"
            f" whose output is recorded) compared bit for bit, {compared.rows_differing:,}"
            f" {does(compared.rows_differing, 'differ')}"
        )
    sketched = sum(site.by_sketch for site in document.sites)
    if sketched:
        said.append(
            f"{plural(sketched, 'site')} with another dtype or row hash compared only by a short summary of"
            f" each row, by which {plural(sum(pair.rows_differing for pair in document.pairs), 'row')} differ"
        )
    if document.largest:
        said.append(f"largest {document.kind} difference {number(document.largest)}")
    if compared.texts:
        differing = compared.texts_differing or 0
        said.append(
            f"{plural(compared.texts, 'text')} compared as text, {differing:,} {does(differing, 'differ')}"
        )
    return f"{'; '.join(said)}."
