"""The Hugging Face cache and its traces in local folders: snapshots, refs, what a download claims.

It reads names and small text files only; whether a claim is true is found by reading the bytes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..untrusted.files import read_small

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SETTLE_SECONDS = 1.0
"""File systems may keep times less exactly than the record does; the hub client allows as much."""


@dataclass(frozen=True)
class Claim:
    """A digest that somebody stated for a file, without rip having read its bytes."""

    sha256: str
    source: str
    """`hub-blob-name:claimed` or `hub-download-record:claimed`."""


def claim_of(path: Path) -> Claim | None:
    """What the hub client's download claims of a file, or None where nothing does.

    In the cache, a file is a link to a blob that is named by its SHA-256. In a folder that was downloaded to,
    `.cache/huggingface/download/` has a record of each file, which holds while the file is older than it.
    """
    try:
        if path.is_symlink():
            blob = path.resolve(strict=True)
            if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name):
                return Claim(blob.name, "hub-blob-name:claimed")
        record = path.parent / ".cache" / "huggingface" / "download" / f"{path.name}.metadata"
        _commit, etag, written = read_small(record).decode("ascii").split("\n")[:3]
        is_newer = path.stat().st_mtime - _SETTLE_SECONDS > float(written)
    except (OSError, ValueError, RuntimeError):  # no record, or not one; a loop of links
        return None
    return Claim(etag, "hub-download-record:claimed") if _SHA256.fullmatch(etag) and not is_newer else None


def unfinished_downloads(folder: Path) -> list[str]:
    """Names of files that a download left incomplete, in a snapshot's repository or a downloaded folder."""
    repository = repository_of(folder)
    folders = [repository / "blobs"] if repository else [folder / ".cache" / "huggingface" / "download"]
    try:
        return sorted(path.name for each in folders for path in each.glob("*.incomplete"))
    except OSError:
        return []


def repository_of(snapshot: Path) -> Path | None:
    """The `models--org--name` folder of a snapshot in a cache; None for any other folder."""
    absolute = snapshot.absolute()
    is_snapshot = absolute.parent.name == "snapshots" and absolute.parent.parent.name.startswith("models--")
    return absolute.parent.parent if is_snapshot else None


def refs_to(snapshot: Path) -> list[str]:
    """The branches and tags of the cache that stand for this snapshot's commit."""
    repository = repository_of(snapshot)
    if repository is None:
        return []
    refs = repository / "refs"
    found = [path for path in refs.rglob("*") if path.is_file()] if refs.is_dir() else []
    return sorted(str(path.relative_to(refs)) for path in found if _commit_in(path) == snapshot.name)


def other_revisions(snapshot: Path) -> list[str]:
    """The commits of the same model that lie in the cache beside this one."""
    repository = repository_of(snapshot)
    if repository is None:
        return []
    return sorted(path.name for path in (repository / "snapshots").iterdir() if path.name != snapshot.name)


def cached_snapshot(hub_id: str, revision: str) -> Path | None:
    """The folder of a branch, tag or commit in the local cache, if it has a model's or adapter's config."""
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / (_commit_in(repository / "refs" / revision) or revision)
    has_config = any(
        (snapshot / name).is_file() for name in ("config.json", "adapter_config.json", "params.json")
    )
    return snapshot if has_config else None


def _commit_in(ref: Path) -> str | None:
    try:
        return read_small(ref).decode("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
