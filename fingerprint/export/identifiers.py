"""Replacing what names one card or one machine by a digest: such a fingerprint can be shared and compared.

The same name always gives the same digest, without a key. A UUID cannot be guessed from it; a host name or a
serial number that somebody suspects can be tried.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ...schemas.fingerprint import Fact, Fingerprint, Section, is_absent_text

_NAMING = ("uuid", "serial", "hostname")
"""Fields, and entries of a field's value, that end so hold such names."""
_UUID_IN_TEXT = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_DIGITS = 16
"""64 bits: two cards of a fleet do not meet by chance."""
_DIGEST = re.compile(rf"sha256:[0-9a-f]{{{_DIGITS}}}")


def hash_ids(fingerprint: Fingerprint) -> Fingerprint:
    """The same fingerprint with every GPU UUID, serial number and host name replaced by a digest.

    Its own digests are computed anew. One that was hashed before stays as it is.
    """
    sections = {
        name: Section(
            facts={field: _of_fact(field, fact) for field, fact in section.facts.items()},
            volatile={field: _of_fact(field, fact) for field, fact in section.volatile.items()},
        )
        for name, section in fingerprint.sections.items()
    }
    return Fingerprint.build(fingerprint.tool_version, fingerprint.created, sections)


def _of_fact(field: str, fact: Fact) -> Fact:
    if fact.unavailable is not None:
        return fact.model_copy(update={"unavailable": _of_text(fact.unavailable)})
    return fact.model_copy(update={"value": _of_value(fact.value, field.endswith(_NAMING))})


def _of_value(value: Any, naming: bool) -> Any:
    if isinstance(value, dict):
        return {
            _of_text(key): _of_value(item, naming or str(key).endswith(_NAMING))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_of_value(item, naming) for item in value]
    if not isinstance(value, str):
        return value
    named = naming and not is_absent_text(value) and not _DIGEST.fullmatch(value)
    return _digest(value) if named else _of_text(value)


def _of_text(text: str) -> str:
    return _UUID_IN_TEXT.sub(lambda found: _digest(found[0]), text)


def _digest(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:_DIGITS]}"
