"""The folder of an evidence bundle: which files it has, and whether they are intact."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...schemas.bundle import Artifact, Bundle, Packed
from ...schemas.errors import BadInput
from ..acceptance.inputs import digest_of

MANIFEST = "manifest.json"
STATEMENT = "statement.json"
POLICY = "policy.toml"
BASELINE = "baseline.json"
"""The fingerprint that the policy names as its baseline."""
ENVIRONMENT = "environment.json"
"""The fingerprint of where the candidate will serve."""
GATE = "gate.json"


@dataclass(frozen=True)
class Fault:
    """Why a bundle is not what was packed.

    Attributes:
        path: From the folder of the bundle.
    """

    kind: Literal["changed", "missing", "not listed", "unreadable", "not what the evidence says"]
    path: str


def is_bundle(folder: Path) -> bool:
    """Whether a folder is that of a bundle."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Bundle:
    """The manifest of a bundle.

    Raises:
        BadInput: There is none, or it is damaged.
    """
    path = folder / MANIFEST
    try:
        return Bundle.from_json(path.read_bytes(), str(path))
    except OSError:
        raise BadInput(
            f"{folder} is not a bundle", "rip bundle FOLDER --policy policy.toml makes one"
        ) from None


def packed_file(folder: Path, path: Path, artifact: Artifact) -> Packed:
    """The entry of a file in the manifest."""
    name = path.relative_to(folder).as_posix()
    return Packed(path=name, artifact=artifact, bytes=path.stat().st_size, sha256=digest_of(path))


def find_faults(folder: Path, manifest: Bundle) -> Iterator[Fault]:
    """What is wrong with a bundle: the manifest is not that of the statement; files are not what the manifest
    says, are not there, or are not in it."""
    if (folder / STATEMENT).is_file():
        yield from _check_statement(folder)
    found = dict(_files(folder))
    for packed in manifest.files:
        path = found.pop(packed.path, None)
        if path is None:
            yield Fault("missing", packed.path)
        elif path.is_symlink() or path.stat().st_size != packed.bytes or digest_of(path) != packed.sha256:
            yield Fault("changed", packed.path)
    for name in (MANIFEST, STATEMENT):
        if found.pop(name, None) is None:
            yield Fault("missing", name)
    for name in found:
        yield Fault("not listed", name)


def _check_statement(folder: Path) -> Iterator[Fault]:
    """Compare the manifest with the digest in the statement."""
    try:
        statement = json.loads((folder / STATEMENT).read_bytes())
        named = {each["name"]: each["digest"]["sha256"] for each in statement["predicate"]["configuration"]}
        stated = named[MANIFEST]
    except (OSError, ValueError, KeyError, TypeError):
        yield Fault("unreadable", STATEMENT)
        return
    if stated != digest_of(folder / MANIFEST):
        yield Fault("changed", MANIFEST)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Everything in a folder that is no folder; links are not followed."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(place) / name
            yield path.relative_to(folder).as_posix(), path


def check_bundle(folder: Path) -> None:
    """Refuse a bundle whose files are not those of its manifest.

    Raises:
        BadInput: They are not.
    """
    fault = next(find_faults(folder, read_manifest(folder)), None)
    if fault is not None:
        raise BadInput(
            f"{folder} is damaged: {fault.path} is not as packed", f"rip verify {folder} lists what differs"
        )
