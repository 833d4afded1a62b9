"""Words for texts that differ and for how samples agree. Plain text in, plain text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .format import plain

if TYPE_CHECKING:
    from ...schemas.sequences import Agreement, Proportion, TraceAgreement
    from ...schemas.verdict import FirstText


def text_sides(first: FirstText) -> list[tuple[str, str, str]]:
    """For A and B: the side, the common end before the first differing character, and how it goes on."""
    return [("A", plain(first.before), plain(first.a)), ("B", plain(first.before), plain(first.b))]


def proportion(share: Proportion) -> str:
    """`3 of 8, 0.38 (0.14 to 0.69)`."""
    return f"{share.count:,} of {share.of:,}: {share.share:.2f} ({share.low:.2f} to {share.high:.2f})"


def agreement_rows(found: Agreement) -> list[tuple[str, str, str]]:
    """What, its name, and the share with its interval."""
    rows = []
    for name, side in (("A", found.a), ("B", found.b), ("A and B together", found.both)):
        if side is not None:
            rows.append((f"{name}: all samples of a request equal", _tar(side), proportion(side.all_agree)))
    if found.pairs is not None:
        rows.append(("sample i of A equals sample i of B", "pairs", proportion(found.pairs)))
    return rows


def _tar(side: TraceAgreement) -> str:
    most = f"…{side.most_samples}" if side.most_samples != side.samples else ""
    return f"TARr@{side.samples}{most}"


def unique_line(found: Agreement) -> str | None:
    """How many different outputs the requests gave; None where no request of either ran several times."""
    sides = [
        ("A", [(one.unique_a, one.samples_a) for one in found.requests]),
        ("B", [(one.unique_b, one.samples_b) for one in found.requests]),
    ]
    said = []
    for name, counts in sides:
        several = [unique for unique, samples in counts if samples > 1]
        if several:
            span = str(min(several)) if min(several) == max(several) else f"{min(several)} to {max(several)}"
            said.append(f"{span} in {name}")
    return f"different outputs of a request: {', '.join(said)}" if said else None
