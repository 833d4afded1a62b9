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
HOW_READ = "process.observed"
"""Which kind of fingerprint it is: no reading of the environment, so never counted as a compared field."""
OUT_OF_VIEW = (
    NOT_PASTED,
    "torch is not loaded in this process",
    "no engine has run in this process; a replay states it",
)
"""Reasons that say: from here this cannot be seen. Others, such as `not installed`, say something."""
FORBIDDEN = "no permission"
"""Is in the reason of what could not be looked at: it may be there, unchanged."""
UNASKED = "nothing of another process is executed"
"""Is in the reason of what only the program itself could tell."""
MEND = "run rip as the user who owns the process, or as root, and read it again"


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
    partial = any(is_pasted(one) or is_closed(one) for one in (base, now))
    return partial or len(kinds) > 1 or SERVER in kinds


def is_closed(fingerprint: Fingerprint) -> bool:
    """Whether it is of a process into which rip had no permission to look."""
    return is_forbidden(fingerprint.get("libraries", "installed_packages"))


def is_forbidden(reading: Fact | None) -> bool:
    """Whether it could not be made for lack of permission."""
    return reading is not None and reading.unavailable is not None and FORBIDDEN in reading.unavailable


def forbidden_note(base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> str | None:
    """One line on what lack of permission has hidden, and the mend; None where it hid nothing."""
    told = []
    for name, one in zip(names, (base, now), strict=True):
        hidden = sum(
            is_forbidden(item) for section in one.sections.values() for item in section.facts.values()
        )
        if hidden:
            told.append(f"{hidden} of {name}")
    if not told:
        return None
    return f"fields that were not read for lack of permission, and so not compared: {', '.join(told)}; {MEND}"


def _observed(fingerprint: Fingerprint) -> str:
    kind = fingerprint.get("process", "observed")
    return str(kind.value) if kind is not None else ""


def is_untold(reading: Fact) -> bool:
    """Whether it says only that its source does not tell, or that it was not asked to."""
    return reading.unavailable is not None and (
        reading.unavailable in OUT_OF_VIEW
        or reading.source.startswith((UNTOLD, STRENGTH))
        or is_forbidden(reading)
        or UNASKED in reading.unavailable
    )
