"""What cannot be compared because of how a fingerprint was made. That is not a change."""

from __future__ import annotations

from ...schemas.fingerprint import Absence, Fact, Fingerprint, Observed

OBSERVED = "process.observed"
"""Which kind of fingerprint it is: no reading of the environment, so never counted as a compared field."""


def is_pasted(fingerprint: Fingerprint) -> bool:
    """Whether it was made from pasted text."""
    return any(
        reading.is_pasted for section in fingerprint.sections.values() for reading in section.facts.values()
    )


def fields_vary(base: Fingerprint, now: Fingerprint) -> bool:
    """Whether a field that only one of them has says how they were read, not that something changed.

    So it is between fingerprints of different kinds (rip's own process, another process, a server, pasted
    text), and with every server: what one reports depends on its release and on how it was started.
    """
    kinds = {_observed(fingerprint) for fingerprint in (base, now)}
    partial = any(is_pasted(one) or is_closed(one) for one in (base, now))
    return partial or len(kinds) > 1 or Observed.SERVER in kinds


def is_closed(fingerprint: Fingerprint) -> bool:
    """Whether it is of a process that rip had no permission to read."""
    packages = fingerprint.get("libraries", "installed_packages")
    return packages is not None and packages.absence is Absence.FORBIDDEN


def count_forbidden(fingerprint: Fingerprint) -> int:
    """How many fields were not read for lack of permission."""
    return sum(
        item.absence is Absence.FORBIDDEN
        for section in fingerprint.sections.values()
        for item in section.facts.values()
    )


def is_unknown(reading: Fact) -> bool:
    """Whether its source cannot show it, was not asked to, or was not allowed to: it may have any value."""
    return reading.absence in (Absence.NOT_VISIBLE, Absence.FORBIDDEN)


def _observed(fingerprint: Fingerprint) -> str:
    kind = fingerprint.get("process", "observed")
    return str(kind.value) if kind is not None else ""
