"""A fingerprint as an in-toto statement (version 1), for `cosign`, `sigstore` or any other signer.

The subjects are the fingerprint's own document and the model's files, as far as every byte of them was read.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ...schemas.fingerprint import Fingerprint
from .facts import verified_files

PREDICATE_TYPE = "urn:rip:fingerprint:1"
"""The identifier of the document's JSON Schema."""


def statement(fingerprint: Fingerprint, document: bytes, name: str) -> dict[str, Any]:
    """The statement as JSON values.

    Args:
        fingerprint: What is stated.
        document: The bytes of its document: what `sha256sum` of the file says is what the statement says.
        name: What to call the document.
    """
    files = verified_files(fingerprint)
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            _subject(name, hashlib.sha256(document).hexdigest()),
            *(_subject(file, digest) for file, digest in files.items()),
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "tool": {"name": "rip", "version": fingerprint.tool_version},
            "created": fingerprint.created,
            "rootDigest": fingerprint.root_digest,
            "sections": {section: content.digest for section, content in fingerprint.sections.items()},
            "keys": fingerprint.flat(),
        },
    }


def _subject(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}
