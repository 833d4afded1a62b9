"""What the exports read out of a fingerprint: verified file digests, packages, and facts as text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...schemas.base import canonical_json
from ...schemas.fingerprint import Fact, Fingerprint

MAX_TEXT = 4096
"""Longest value that is written out; of longer ones (a thousand tensors) the digest is."""
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Package:
    """One installed Python distribution."""

    name: str
    version: str
    record_sha256: str | None = None
    origin: str | None = None
    """Where it was installed from, when that was no index."""


def verified_files(fingerprint: Fingerprint) -> dict[str, str]:
    """File name → SHA-256 of the model's weights and tokenizer files whose every byte was read.

    A weaker digest is never passed on as a hash.
    """
    found: dict[str, str] = {}
    for section in ("model", "tokenizer"):
        reading = fingerprint.get(section, "files")
        if reading is None or not reading.is_verified or not isinstance(reading.value, dict):
            continue
        for name, entry in reading.value.items():
            digest = entry.get("sha256") if isinstance(entry, dict) else entry
            if isinstance(digest, str) and len(digest) == 64 and set(digest) <= _DIGITS:
                found.setdefault(name, digest)
    return found


def packages(fingerprint: Fingerprint) -> Iterator[Package]:
    """Every installed distribution that the fingerprint names, each once."""
    seen: set[str] = set()
    for package in _stated(fingerprint):
        if package.name not in seen:
            seen.add(package.name)
            yield package


def _stated(fingerprint: Fingerprint) -> Iterator[Package]:
    for section in ("frameworks", "kernels"):
        content = fingerprint.sections.get(section)
        for name, reading in (content.facts if content else {}).items():
            value = reading.value
            if isinstance(value, dict) and isinstance(value.get("version"), str):
                yield Package(
                    name.removesuffix(".build"),
                    value["version"],
                    _text_or_none(value.get("record_sha256")),
                    _text_or_none(value.get("direct_url")),
                )
    installed = fingerprint.get("libraries", "installed_packages")
    for name, version in (installed.value if installed and isinstance(installed.value, dict) else {}).items():
        if isinstance(version, str):
            yield Package(name, version)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_text(reading: Fact) -> str:
    """A fact as one text: the value, or why there is none."""
    if reading.unavailable is not None:
        return reading.text()
    text = reading.value if isinstance(reading.value, str) else canonical_json(reading.value).decode()
    if len(text) > MAX_TEXT:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        return f"sha256:{digest} of {len(text)} characters; the fingerprint has them"
    return text
