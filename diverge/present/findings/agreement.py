"""Sentences of what limits the agreement of many samples."""

from __future__ import annotations

from ....schemas.sequences import AgreementNote
from ..format import plural


def agreement_note(found: AgreementNote) -> str:
    if found.kind == "forced":
        return f"{found.trace} was forced, so its outputs are not counted"
    if found.kind == "unfinished":
        return f"{found.trace} is of an unfinished run, so its outputs are not counted"
    if found.kind == "own seeds":
        return (
            f"{found.trace}: the n samples of {plural(found.requests or 0, 'request')} run on seeds of their "
            "own, so they differ by design and are not counted"
        )
    return "every request ran once, which says little: several samples of each do (--repeat 8)"
