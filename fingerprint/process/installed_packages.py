"""Installed Python packages: version, where they came from, and a digest of what was installed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from urllib.parse import urlsplit, urlunsplit

from ...schemas.fingerprint import Fact, fact, unavailable

SOURCE = "importlib.metadata"


def version(name: str, folders: list[str] | None = None) -> Fact:
    """The installed version of one distribution; `folders` as in `build`."""
    built = build(name, folders)
    return fact(built.value["version"], SOURCE) if built.unavailable is None else built


def build(name: str, folders: list[str] | None = None) -> Fact:
    """Version, origin and content of one distribution: distinguishes two builds of one version.

    Args:
        name: Of the distribution.
        folders: The `site-packages` of another environment, first one first; None for this process.

    The value has `version`, `record_sha256` (over the names and hashes of the installed files; absent
    where the installer left no hashes) and, for a package not from an index, `direct_url`.
    """
    path = sys.path if folders is None else folders
    distribution = next(iter(importlib.metadata.distributions(name=name, path=path)), None)
    if distribution is None:
        return unavailable("not installed", SOURCE)
    if not distribution.version:  # an installation that was broken off
        return unavailable("its metadata names no version", SOURCE)
    value = {"version": distribution.version}
    if (digest := _record_digest(distribution.read_text("RECORD"))) is not None:
        value["record_sha256"] = digest
    if (url := _direct_url(distribution.read_text("direct_url.json"))) is not None:
        value["direct_url"] = url
    return fact(value, SOURCE)


def _record_digest(record: str | None) -> str | None:
    """SHA-256 over the sorted hashed lines of a RECORD.

    Left out, because they differ between two installations of the same wheel: the installer's own files
    (`.dist-info`), compiled files (no hash), and scripts outside the package folder (their first line names
    the interpreter).
    """
    lines = sorted(
        line
        for line in (record or "").splitlines()
        if "=" in line and ".dist-info/" not in line and not line.startswith(("..", "/"))
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def _direct_url(text: str | None) -> str | None:
    """The origin with its commit; user names, passwords and query strings are taken out."""
    try:
        origin = json.loads(text or "null")
        parts = urlsplit(origin["url"])
    except (ValueError, KeyError, TypeError):
        return None
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, host, parts.path, "", ""))
    commit = (origin.get("vcs_info") or {}).get("commit_id")
    return f"{url}@{commit}" if commit else url
