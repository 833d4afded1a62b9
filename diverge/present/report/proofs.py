"""What experiments showed: transplant (activation patching), zoom, distance from a reference trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings.reference import reference_sentence
from ..findings.sentence import sentence
from ..format import number, plain, plural, request_name
from ..zoom import finding_sentence, proof_line, zoom_lines
from .document import Proof

if TYPE_CHECKING:
    from ....schemas.reference import Reference, ReferenceSite
    from ....schemas.verdict import Verdict
    from ....schemas.zoom import Transplant, Zoom

MAX_ORIGINS = 16
"""Sites of a transplant that are listed."""


def proofs(verdict: Verdict) -> list[Proof]:
    """The experiments that the verdict holds, the strongest first."""
    zoom = verdict.zoom
    found = []
    if zoom is not None:
        if zoom.transplant.state != "not run":
            found.append(_transplant(zoom, zoom.transplant))
        if zoom.finding is not None or zoom.transplant.state == "not run":
            found.append(_zoom(zoom))
    if verdict.reference is not None:
        found.append(_reference(verdict.reference))
    return found


def _transplant(zoom: Zoom, done: Transplant) -> Proof:
    hidden = len(done.origins) - MAX_ORIGINS
    rows = [
        [plain(one.site), f"{one.positions:,}", str(one.first), str(one.last)]
        for one in done.origins[:MAX_ORIGINS]
    ]
    return Proof(
        title=f"Transplant (activation patching): {done.state}",
        conclusion=_sentence(proof_line(zoom)),
        proven=done.state == "proven",
        tables=[(["A's rows put in at", "positions", "first", "last"], rows)] if rows else [],
        notes=[f"{plural(hidden, 'more site')} not listed"] if hidden > 0 else [],
    )


def _zoom(zoom: Zoom) -> Proof:
    where = f"{plain(zoom.site) or 'the logits'} at position {zoom.position}"
    title = f"Zoom into {where} of {request_name(zoom.request_id, zoom.sample)}"
    _, *lines = zoom_lines(zoom)
    if zoom.finding is None:
        return Proof(title, "Both sides ran again; no differing op was found.", False, lines=_plain(lines))
    return Proof(title, _sentence(finding_sentence(zoom.finding)), False, lines=_plain(lines[1:]))


def _plain(lines: list[str]) -> list[str]:
    return [plain(line) for line in lines]


def _sentence(line: str) -> str:
    text = plain(line).rstrip(".")
    is_name = "." in text.split(" ")[0]  # an op keeps its case: aten.mm
    return f"{text[:1] if is_name else text[:1].upper()}{text[1:]}."


def _reference(found: Reference) -> Proof:
    dtypes = [("dtypes", f"A {found.dtype_a}, B {found.dtype_b}, reference {found.dtype_reference}")]
    farther = [
        (what, site)
        for what, site in (("first farther site", found.first), ("at the output", found.output))
        if site is not None
    ]
    rows = [
        *(dtypes if found.dtype_reference else []),
        ("positions compared", f"{found.rows:,}"),
        ("expected ratio of distances B / A, by dtype", f"× {number(found.expected_ratio)}"),
        ("sites with a farther side", f"{found.sites_farther:,} of {found.sites:,}"),
        ("repeats for the noise", str(found.repeats)),
    ]
    return Proof(
        title=f"Against the reference: {found.verdict}",
        conclusion=plain(reference_sentence(found)),
        proven=False,
        rows=[(name, plain(value)) for name, value in rows],
        tables=[
            (
                ["where", "site", "distance B / A", "95 % interval", "rows", "from position"],
                [_reference_row(what, site) for what, site in farther],
            )
        ]
        if farther
        else [],
        notes=[plain(sentence(note)) for note in found.notes],
    )


def _reference_row(what: str, site: ReferenceSite) -> list[str]:
    return [
        what,
        plain(site.site),
        f"× {number(site.ratio)}",
        f"{number(site.low)} to {number(site.high)}",
        f"{site.rows:,}",
        f"{site.position} of {request_name(site.request_id, site.sample)}",
    ]
