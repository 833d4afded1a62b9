"""Part of section `os`: whether the observed process runs in a container, which one, and from which image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.fingerprint import Fact, Section, fact, unavailable
from ..process import proc, root_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .context import Context

MARKS: tuple[tuple[str, str], ...] = (
    ("docker", "/.dockerenv"),
    ("podman", "/run/.containerenv"),
    ("apptainer", "/.singularity.d"),
)
"""Runtime → a file that it puts into every container."""
_CGROUPS: tuple[tuple[str, str], ...] = (
    ("podman", r"libpod-"),
    ("cri-o", r"crio-|overlay-containers"),
    ("containerd", r"cri-containerd|containerd-|io\.containerd"),
    ("docker", r"docker[/-]"),
    ("lxc", r"/lxc"),
    ("kubernetes", r"kubepods"),
)
"""Runtime → what it calls its control groups and mounts; the more specific names first."""
KUBERNETES_MARK = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Only whether it is there: what lies in it is a secret."""
DIGEST_VARIABLES = ("CONTAINER_IMAGE_DIGEST", "IMAGE_DIGEST", "OCI_IMAGE_DIGEST")
"""Common names by which a deployment passes a container its own image; no standard sets one."""
ECS_VARIABLE = "ECS_CONTAINER_METADATA_FILE"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CONTAINER_ID = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope|/|\s|$)", re.MULTILINE)
_ID_IN_MOUNTS = re.compile(r"/(?:containers|overlay-containers|sandboxes)/([0-9a-f]{64})/")
_IMAGE_ID = re.compile(r'^imageid="?([0-9a-f]{64})"?$', re.MULTILINE)
_MAX_BYTES = 1 << 20


def probe(context: Context) -> dict[str, Section]:
    """`container`, `kubernetes`, `image_digest`; the container's id is volatile, as every start makes one."""
    cgroup = _of_process(context, "cgroup")
    mounts = _of_process(context, "mountinfo")
    facts = {
        "container": _container(context, cgroup, mounts),
        "kubernetes": _kubernetes(context, cgroup),
        "image_digest": _image_digest(context),
    }
    found = _CONTAINER_ID.search(cgroup) or _ID_IN_MOUNTS.search(mounts)
    volatile = {"container_id": fact(found[1], "proc-cgroup, proc-mountinfo")} if found else {}
    return {"os": Section(facts=facts, volatile=volatile)}


def _of_process(context: Context, name: str) -> str:
    """A file of the process; empty where it cannot be read, which then says nothing."""
    try:
        return proc.read(context.pid, name, _MAX_BYTES).decode("utf-8", "replace")
    except proc.Unread:
        return ""


def _container(context: Context, cgroup: str, mounts: str) -> Fact:
    for name, mark in MARKS:
        if _exists(context.root, mark):
            return fact(name, mark)
    manager = root_files.read_text(context.root, "/run/systemd/container", _MAX_BYTES).strip()
    if re.fullmatch(r"[\w.-]{1,32}", manager):
        return fact(manager, "/run/systemd/container")
    # In a control-group namespace the path is "/"; the mounts of host names and DNS still name the runtime.
    for source, text in (("proc-cgroup", cgroup), ("proc-mountinfo", _bind_mounts(mounts))):
        for name, pattern in _CGROUPS:
            if re.search(pattern, text):
                return fact(name, source)
    searched = ", ".join(mark for _, mark in MARKS)
    if (reason := root_files.why_closed(context.root)) is not None:
        return unavailable(reason, f"{searched}, proc-cgroup, proc-mountinfo")
    return unavailable("no mark of a container was found", f"{searched}, proc-cgroup, proc-mountinfo")


def _bind_mounts(mounts: str) -> str:
    """The lines of files that a runtime binds into every container; a host has none of them."""
    files = (" /etc/hostname ", " /etc/hosts ", " /etc/resolv.conf ")
    return "\n".join(line for line in mounts.splitlines() if any(name in line for name in files))


def _kubernetes(context: Context, cgroup: str) -> Fact:
    if "kubepods" in cgroup:
        return fact(True, "proc-cgroup")
    if _exists(context.root, KUBERNETES_MARK):
        return fact(True, KUBERNETES_MARK)
    if "KUBERNETES_SERVICE_HOST" in context.environ:
        return fact(True, "environment")
    if (reason := context.environ_unread or root_files.why_closed(context.root)) is not None:
        return unavailable(reason, f"proc-cgroup, {KUBERNETES_MARK}, environment")
    return fact(False, f"proc-cgroup, {KUBERNETES_MARK}, environment")


def _image_digest(context: Context) -> Fact:
    for name in DIGEST_VARIABLES:
        if found := _DIGEST.search(context.environ.get(name, "")):
            return fact(found[0], f"environment:{name}, as deployed")
    if found := _IMAGE_ID.search(root_files.read_text(context.root, "/run/.containerenv", _MAX_BYTES)):
        return fact(f"sha256:{found[1]}", "/run/.containerenv")
    if (path := context.environ.get(ECS_VARIABLE, "")).startswith("/"):
        image = _ecs_image(root_files.read_text(context.root, path, _MAX_BYTES))
        if image is not None:
            return fact(image, f"environment:{ECS_VARIABLE}")
    if (reason := context.environ_unread or root_files.why_closed(context.root)) is not None:
        return unavailable(reason, "environment, /run/.containerenv")
    return unavailable(
        "a process cannot read the digest of its own image: start it with CONTAINER_IMAGE_DIGEST=sha256:…",
        "environment, /run/.containerenv",
    )


def _ecs_image(text: str) -> str | None:
    try:
        found: Mapping[str, object] = json.loads(text)
        match = _DIGEST.search(str(found["ImageID"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return match[0] if match else None


def _exists(root: Path, path: str) -> bool:
    try:
        return root_files.locate(root, path).exists()
    except (proc.Unread, OSError):
        return False
