"""What a fingerprint does not tell because of how it was made. That is not a change."""

from __future__ import annotations

from ...schemas.fingerprint import Fact, Fingerprint

PASTED = "pasted:"
"""Begins the source of every fact that was read from pasted text."""
STRENGTH = "strength:"
"""Begins the source of a digest that is not there because another strength of hashing was asked for."""
UNTOLD = "untold:"
"""Begins the source of a fact that cannot be seen from where one looked; what follows names from where."""
UNTOLD_BY_SERVER = f"{UNTOLD}server"
NOT_PASTED = "not in the pasted text"
NO_TIME = "1970-01-01T00:00:00+00:00"
"""A pasted text does not say when it was made, and a fingerprint states a time."""
SERVER = "a server, by what it answers"
"""What the fingerprint of a server says that it observed."""
OUT_OF_VIEW = (
    NOT_PASTED,
    "torch is not loaded in this process",
    "no engine has run in this process; a replay states it",
)
"""Reasons that say: from here this cannot be seen. Others, such as `not installed`, say something."""


def is_pasted(fingerprint: Fingerprint) -> bool:
    """Whether it was made from pasted text."""
    return any(
        reading.source.startswith(PASTED)
        for section in fingerprint.sections.values()
        for reading in section.facts.values()
    )


def fields_vary(base: Fingerprint, now: Fingerprint) -> bool:
    """Whether a field that only one of them has tells how they were read, not that something changed.

    So it is between fingerprints of different kinds (rip's own process, another process, a server, pasted
    text), and with every server: what one tells depends on its release and on how it was started.
    """
    kinds = {_observed(fingerprint) for fingerprint in (base, now)}
    return is_pasted(base) or is_pasted(now) or len(kinds) > 1 or SERVER in kinds


def _observed(fingerprint: Fingerprint) -> str:
    kind = fingerprint.get("process", "observed")
    return str(kind.value) if kind is not None else ""


def is_untold(reading: Fact) -> bool:
    """Whether it says only that its source does not tell, or that it was not asked to."""
    return reading.unavailable is not None and (
        reading.unavailable in OUT_OF_VIEW or reading.source.startswith((UNTOLD, STRENGTH))
    )
