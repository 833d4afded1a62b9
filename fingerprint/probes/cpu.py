"""The processor: model, instruction sets, usable cores, and the BLAS and OpenMP libraries of a process."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.fingerprint import NOT_VISIBLE, Fact, Section, fact, fact_or, unavailable
from ..fields.machine_fields import NUMERIC_ISA
from ..process import proc, root_files

if TYPE_CHECKING:
    from .context import Context

NOT_VISIBLE_FROM_OUTSIDE = f"{NOT_VISIBLE}process"
FROM_INSIDE = "only the process itself can tell: run rip inside it, or read the trace of a replay"
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def probe(context: Context) -> dict[str, Section]:
    """Facts of section `cpu` that do not need torch."""
    info = _cpuinfo()
    no_cpuinfo = unavailable(f"there is no {_CPUINFO}", "proc-cpuinfo")
    facts = {
        "model": _model(info),
        "signature": no_cpuinfo if info is None else _signature(info),
        "isa_available": no_cpuinfo if info is None else _isa(info),
        "logical_cpus": fact(os.cpu_count() or 1, "os.cpu_count"),
    }
    if context.pid is None:
        facts |= {"usable_cpus": _usable_cpus(), "cgroup_quota": _cgroup_quota(), **_thread_pools()}
    else:
        facts |= _of_process(context.pid, context.root)
    return {"cpu": Section(facts=facts)}


def _of_process(pid: int, root: Path) -> dict[str, Fact]:
    """What the kernel shows of another process; its thread pools are visible from inside only."""
    inside = unavailable(FROM_INSIDE, NOT_VISIBLE_FROM_OUTSIDE)
    try:
        usable = fact(len(proc.usable_cpus(pid)), "/proc/PID/status")
        quota = _quota_of(pid, root)
    except proc.Unread as reason:
        usable = quota = unavailable(str(reason), "/proc/PID")
    return {"usable_cpus": usable, "cgroup_quota": quota, "blas": inside, "openmp": inside}


def _quota_of(pid: int, root: Path) -> Fact:
    """Of its control group as this machine names it, else as its container does."""
    groups = proc.read(pid, "cgroup").decode("utf-8", "replace").splitlines()
    unified = next((line[len("0::") :] for line in groups if line.startswith("0::/")), "/")
    candidates = (Path("/"), f"/sys/fs/cgroup{unified}/cpu.max"), (root, str(_CGROUP_QUOTA))
    for base, path in candidates:
        with contextlib.suppress(proc.Unread, ValueError):
            quota, period = root_files.read_file(base, path, 100).decode("ascii").split()
            return _as_cores(quota, period)
    return unavailable(f"there is no {_CGROUP_QUOTA}", "cgroup")


def _cpuinfo() -> dict[str, str] | None:
    """The first processor's entries of /proc/cpuinfo; None where the file is not there."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _model(info: dict[str, str] | None) -> Fact:
    if info and (name := info.get("model name") or info.get("CPU part")):
        return fact(name, "proc-cpuinfo")
    if name := platform.processor():
        return fact(name, "platform.processor")
    return unavailable("the system does not name it", "proc-cpuinfo")


def _signature(info: dict[str, str]) -> Fact:
    of_x86 = ("vendor_id", "cpu family", "model", "stepping")
    of_arm = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part")
    stated = "-".join(info[key] for key in (*of_x86, *of_arm) if key in info)
    return fact_or(stated, "proc-cpuinfo", "not stated")


def _isa(info: dict[str, str]) -> Fact:
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return fact(sorted(flags & NUMERIC_ISA), "proc-cpuinfo")


def _usable_cpus() -> Fact:
    if not hasattr(os, "sched_getaffinity"):
        return unavailable("this system has no CPU affinity", "sched_getaffinity")
    return fact(len(os.sched_getaffinity(0)), "sched_getaffinity")


def _cgroup_quota() -> Fact:
    """CPU time in cores that the control group allows; torch and OpenMP do not look at it."""
    try:
        quota, period = _CGROUP_QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return unavailable(f"there is no {_CGROUP_QUOTA}", "cgroup")
    return _as_cores(quota, period)


def _as_cores(quota: str, period: str) -> Fact:
    return unavailable("no limit", "cgroup") if quota == "max" else fact(int(quota) / int(period), "cgroup")


def _thread_pools() -> dict[str, Fact]:
    """Loaded BLAS and OpenMP libraries: which copy, version, core type and threads.

    Several copies in one process are a common surprise, so each is listed by its file name.
    """
    import numpy  # noqa: F401  (loads its BLAS, so that there is at least that one to see)
    import threadpoolctl

    pools: dict[str, dict[str, dict[str, Any]]] = {"blas": {}, "openmp": {}}
    copies: Counter[str] = Counter()
    for library in sorted(threadpoolctl.threadpool_info(), key=lambda library: str(library["filepath"])):
        known = {
            "api": library["internal_api"],
            "version": library.get("version"),
            "core": library.get("architecture"),
            "threading": library.get("threading_layer"),
            "threads": library["num_threads"],
        }
        pool = pools.setdefault(library["user_api"], {})
        name = Path(library["filepath"]).name
        copies[name] += 1
        pool[f"{name}#{copies[name]}" if copies[name] > 1 else name] = {
            key: value for key, value in known.items() if value is not None
        }
    return {
        name: fact_or(found, "threadpoolctl", f"no {name} library is loaded in this process")
        for name, found in pools.items()
    }


def torch_loaded() -> bool:
    """Whether this process has finished importing torch. A fingerprint never imports it by itself."""
    return hasattr(sys.modules.get("torch"), "backends")
