"""Section `process` of a process that was named: its workers, where they differ, and its devices.

Which process it is (pid, folder, time) is for people only and enters no digest.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...schemas import redact
from ...schemas.fingerprint import NOT_SET, Fact, Observed, Section, fact, fact_or, unavailable
from ..fields.known_names import ALL_VARIABLES
from ..process import proc
from .os_env import LAUNCH_SOURCE

if TYPE_CHECKING:
    import psutil

_DESCENDANTS = "/proc/PID/cmdline of its descendants"
_ACCELERATORS = (
    (re.compile(r"/dev/nvidia\d+"), "nvidia"),
    (re.compile(r"/dev/nvidia-caps/nvidia-cap\d+"), "nvidia_mig"),
    (re.compile(r"/dev/dri/renderD\d+"), "dri"),
    (re.compile(r"/dev/davinci\d+"), "ascend"),
)
_HELPERS = re.compile(r"multiprocessing\.(?:resource_tracker|forkserver)|compile_worker")
"""Processes that compute nothing."""


def process_section(pid: int, family: tuple[int, ...]) -> Section:
    """What is known of a process as a process.

    Args:
        pid: The one that was named.
        family: It and its descendants.
    """
    workers = {member: role for member in family if member != pid and (role := _role(member)) is not None}
    stable = {
        "observed": fact(Observed.PROCESS.value, "rip"),
        "accelerators": _accelerators(pid, family),
        **_layout(workers),
        "variables_differ": _differing_variables(pid, workers),
    }
    return Section(facts=stable, volatile=_volatile(pid, family))


def _role(pid: int) -> str | None:
    """What a worker calls itself: its title, else its program; None for one that computes nothing."""
    try:
        arguments = proc.command_line(pid)
    except proc.Unread:
        return None
    if not arguments or any(_HELPERS.search(argument) for argument in arguments):
        return None
    if len(arguments) == 1 or not re.fullmatch(r"python[\d.]*", os.path.basename(arguments[0])):
        return redact.text(arguments[0] if "::" in arguments[0] else os.path.basename(arguments[0]))
    rest = [argument for argument in arguments[1:] if argument not in ("-B", "-E", "-I", "-s", "-S", "-u")]
    if rest[:1] in (["-m"], ["-c"]) and len(rest) > 1:
        return redact.text(f"python {rest[0]} {rest[1]}")
    return redact.text(os.path.basename(rest[0])) if rest else "python"


def _layout(workers: dict[int, str]) -> dict[str, Fact]:
    """How many workers of each kind there are, and on how many processors each may run."""
    processors: dict[str, list[int]] = {}
    for member, role in workers.items():
        try:
            processors.setdefault(role, []).append(len(proc.usable_cpus(member)))
        except proc.Unread:
            continue  # it ended meanwhile
    if not processors:
        return dict.fromkeys(
            ("workers", "worker_cpus"), unavailable("it has no other process that computes", _DESCENDANTS)
        )
    counts = Counter({role: len(found) for role, found in processors.items()})
    return {
        "workers": fact(dict(sorted(counts.items())), _DESCENDANTS),
        "worker_cpus": fact(
            {role: sorted(found) for role, found in sorted(processors.items())}, "/proc/PID/status"
        ),
    }


def _differing_variables(pid: int, workers: dict[int, str]) -> Fact:
    """The known variables with which the process and its workers were launched differently."""
    launched = {pid: proc.launch_environment(pid), **{one: proc.launch_environment(one) for one in workers}}
    known = {member: environ for member, (environ, unread) in launched.items() if unread is None}
    if pid not in known:
        return unavailable(launched[pid][1] or proc.ENDED, LAUNCH_SOURCE)
    differing = {}
    for variable in sorted(ALL_VARIABLES):
        values = {member: redact.text(environ.get(variable, NOT_SET)) for member, environ in known.items()}
        if len(set(values.values())) > 1:
            differing[variable] = {workers.get(member, "itself"): value for member, value in values.items()}
    same = "no variable that rip knows differs between it and its workers"
    return fact_or(differing, LAUNCH_SOURCE, same)


def _accelerators(pid: int, family: tuple[int, ...]) -> Fact:
    """How many devices of each kind the process and its workers have open; which ones differs by host."""
    source = "/proc/PID/fd"
    found: dict[str, set[str]] = {}
    for member in family:
        try:
            paths = proc.open_files(member)
        except proc.Unread as reason:
            if member == pid:
                return unavailable(str(reason), source)
            continue
        for path in paths:
            for pattern, kind in _ACCELERATORS:
                if pattern.fullmatch(path):
                    found.setdefault(kind, set()).add(path)
    counts = {kind: len(paths) for kind, paths in sorted(found.items())}
    return fact_or(counts, source, "no accelerator's device file is open")


def _volatile(pid: int, family: tuple[int, ...]) -> dict[str, Fact]:
    """Which process it is: nothing of it changes a number."""
    readings: dict[str, Callable[[psutil.Process], object]] = {
        "name": lambda process: redact.text(process.name()),
        "executable": lambda _: redact.text(proc.link(pid, "exe")),
        "working_directory": lambda _: redact.text(proc.link(pid, "cwd")),
        "command_line": lambda _: redact.command_line(proc.command_line(pid)),
        "user_id": lambda process: process.uids().effective,
        "threads": lambda process: process.num_threads(),
        "allowed_cpus": lambda process: sorted(process.cpu_affinity()),
        "started": lambda process: _in_utc(process.create_time()),
    }
    found = {"pid": fact(pid, "--pid"), "family": fact(list(family), "/proc/PID/stat")}
    for name, reading in readings.items():
        try:
            with proc.open_process(pid) as process:
                found[name] = fact(reading(process), "/proc/PID")
        except proc.Unread as reason:
            found[name] = unavailable(str(reason), "/proc/PID")
    return found


def _in_utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
