"""The environment variables that change numerics, and what is read of the operating system.

Only the variables named here are read, and their values lose logins and keys: some are addresses.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas import redact
from ...schemas.fingerprint import NOT_SET, NOT_VISIBLE, Fact, Section, fact, fact_or, unavailable
from ..fields.known_names import ALL_VARIABLES, BATCH_INVARIANCE_VARIABLES, SET_BY_BATCH_INVARIANT_VLLM
from ..process import proc, root_files
from ..process.proc import mapped_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .context import Context

_SOURCE = "environment"
LAUNCH_SOURCE = "/proc/PID/environ (as launched)"
"""An engine may set variables later: those of its own process are not seen from outside."""
_SET_BY_VLLM = "vLLM sets it itself in its batch-invariant mode; the launch environment does not show to what"
_MAX_RELEASE_BYTES = 65536
_MAX_LIBC_BYTES = 16 * 1024 * 1024
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,100}version (\d+\.\d+)")


def probe_variables(context: Context) -> dict[str, Section]:
    """Every variable of `VARIABLES`, and the batch-invariance switch in one field."""
    source = _SOURCE if context.pid is None else LAUNCH_SOURCE
    if context.environ_unread is not None:
        unread = unavailable(context.environ_unread, source)
        return {"determinism": Section(facts=dict.fromkeys([*ALL_VARIABLES, "batch_invariance"], unread))}
    facts = {name: _variable(name, context.environ, source) for name in ALL_VARIABLES}
    if context.pid is not None and context.environ.get("VLLM_BATCH_INVARIANT") == "1":
        set_by_engine = unavailable(_SET_BY_VLLM, f"{NOT_VISIBLE}{LAUNCH_SOURCE}")
        facts |= dict.fromkeys(SET_BY_BATCH_INVARIANT_VLLM, set_by_engine)
    switched = [name for name in BATCH_INVARIANCE_VARIABLES if name in context.environ]
    facts["batch_invariance"] = fact_or(
        " ".join(f"{name}={facts[name].value}" for name in switched),
        source,
        f"none of {', '.join(BATCH_INVARIANCE_VARIABLES)} is set",
    )
    return {"determinism": Section(facts=facts)}


def _variable(name: str, environ: Mapping[str, str], source: str) -> Fact:
    if name not in environ:
        return unavailable(NOT_SET, source)
    # Bytes that are no UTF-8 arrive as lone surrogates, which no JSON can carry.
    value = environ[name].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return fact(redact.text(value), source)


def probe_os(context: Context) -> dict[str, Section]:
    """Kernel, distribution, C library; load and free memory as volatile readings."""
    facts = {
        "system": fact(platform.system() or "unknown", "uname"),
        "kernel": fact(platform.release() or "unknown", "uname"),
        "machine": fact(platform.machine() or "unknown", "uname"),
        "distribution": _distribution(context),
        "libc": _libc() if context.pid is None else _mapped_libc(context.root, context.pid),
    }
    volatile = {}
    if hasattr(os, "getloadavg"):
        volatile["load_average"] = fact([round(load, 2) for load in os.getloadavg()], "getloadavg")
    if (available := _available_memory()) is not None:
        volatile["available_memory_bytes"] = fact(available, "/proc/meminfo")
    return {"os": Section(facts=facts, volatile=volatile)}


def _distribution(context: Context) -> Fact:
    if context.pid is not None:
        return _distribution_inside(context.root)
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return unavailable("there is no os-release file", "os-release")
    return fact(release.get("PRETTY_NAME") or release["NAME"], "os-release")


def _distribution_inside(root: Path) -> Fact:
    """Of the container that a process sees, which need not be that of rip."""
    reason = "there is no os-release file"
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            text = root_files.read_file(root, path, _MAX_RELEASE_BYTES).decode("utf-8", "replace")
        except proc.Unread as unread:
            reason = str(unread)
            continue
        if name := re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]+)", text, re.MULTILINE):
            return fact(name[1], "os-release")
    return unavailable(reason, "os-release")


def _libc() -> Fact:
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError, AttributeError):
        version = None
    return fact_or(version, "confstr", "not the GNU C library")


def _mapped_libc(root: Path, pid: int) -> Fact:
    """The C library that another process runs on, from the file that it has mapped."""
    source = "proc-maps"
    try:
        paths = mapped_files(pid)
        found = [path for path in paths if re.search(r"/libc(?:\.so\.6|-[\d.]+\.so)$", path)]
        content = root_files.read_file(root, found[0], _MAX_LIBC_BYTES) if found else b""
    except proc.Unread as reason:
        return unavailable(str(reason), source)
    if version := _GLIBC.search(content):
        return fact(f"glibc {version[1].decode()}", source)
    return unavailable("not the GNU C library", source)


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) * 1024 if kibibytes else None
