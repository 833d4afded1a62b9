"""A fingerprint in the formats that other tools read. Nothing is measured and nothing is signed here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...schemas.fingerprint import Fingerprint
from . import cyclonedx, in_toto

FORMATS: dict[str, Callable[[Fingerprint, bytes, str], dict[str, Any]]] = {
    "cyclonedx": lambda fingerprint, document, name: cyclonedx.bill_of_materials(fingerprint),
    "in-toto": in_toto.statement,
}
"""Name on the command line → what makes it of a fingerprint, its document's bytes and their name."""


def export(fingerprint: Fingerprint, kind: str, document: bytes, name: str) -> str:
    """A fingerprint as JSON text in another format.

    Args:
        fingerprint: What to export.
        kind: One of `FORMATS`.
        document: The bytes of its own document, which a statement names by digest.
        name: What to call that document.
    """
    return json.dumps(FORMATS[kind](fingerprint, document, name), indent=2, ensure_ascii=False) + "\n"
