"""Running the probes beside each other, each within its time limit, and joining what they found.

It knows which probes apply to which subject: this process, another process, or a server. What a probe reads
is the probe's business; a probe that fails or hangs becomes a fact that says so.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..schemas.choices import Strength
from ..schemas.errors import BadInput, EngineFailed, RipError
from ..schemas.fingerprint import PROBE, Fact, Fingerprint, Section, fact, unavailable
from .probes.context import Context, Subject
from .process import proc
from .process.root_files import root_of
from .untrusted.patience import MOST, patience

if TYPE_CHECKING:
    import psutil

    from ..schemas.choices import Strength
    from .model.read_and_hash import Progress
    from .model.ref import ModelRef
    from .remote.address import Server

Sections = dict[str, Section]
Overrides = Mapping[str, Mapping[str, Fact]]

SERVER_LIMIT_S = 30.0
"""Seconds until an unresponsive server is given up; the probe itself stops asking earlier."""


_LOOK = 0.5
"""How often a probe beyond its limit is looked at, in limits."""
_IDLE_SHARE = 0.02
"""One that had less of a processor than this hangs."""


@dataclass(frozen=True)
class Probe:
    """One source of facts, loaded only when it runs."""

    name: str
    target: str
    """`module:function`; a leading dot means: inside this package."""
    sections: tuple[str, ...]
    """Where its failure is recorded."""
    limit_s: float | None = 10.0
    """Seconds until it is given up where it hangs; None for hashing, which takes as long as it takes."""
    in_caller: bool = False
    """Read in the calling thread: OpenMP keeps a thread count per thread, so another one would lie."""
    subjects: tuple[Subject, ...] = ("self", "process")
    """What it applies to. A probe for `process` reads `context.pid`, `family` and `root`, never its own."""


PROBES: tuple[Probe, ...] = (
    Probe("variables", ".probes.os_env:probe_variables", ("determinism",)),
    Probe("os", ".probes.os_env:probe_os", ("os",)),
    Probe("cpu", ".probes.cpu:probe", ("cpu",), in_caller=True),
    Probe(
        "python",
        ".probes.own_process:probe_python",
        ("frameworks", "kernels", "process"),
        subjects=("self",),
    ),
    Probe("container", ".probes.container:probe", ("os",)),
    # Before torch, whose own CUDA version counts where it has one.
    Probe("libraries", ".probes.numeric_libraries:probe", ("libraries",)),
    Probe("nccl_conf", ".probes.nccl_conf:probe", ("libraries",)),
    Probe("kernel_lineage", ".probes.kernel_caches:probe", ("kernels",)),
    Probe(
        "torch",
        ".probes.torch_env:probe",
        ("frameworks", "cpu", "libraries"),
        in_caller=True,
        subjects=("self",),
    ),
    Probe(
        "engine",
        ".probes.own_process:probe_engine",
        ("engine", "parallelism", "cache", "replica", "sampling"),
        subjects=("self",),
    ),
    Probe(
        "process",
        ".probes.named_process:probe",
        ("process", "engine", "parallelism", "cache", "frameworks", "kernels", "cpu"),
        subjects=("process",),
    ),
    Probe(
        "server",
        ".probes.remote_server:probe",
        ("engine", "parallelism", "cache", "replica"),
        limit_s=SERVER_LIMIT_S,
        subjects=("server",),
    ),
    Probe("accelerators", ".probes.accelerators:probe", ("gpus", "libraries")),
    Probe("nvidia", ".probes.nvidia:probe", ("gpus", "driver")),
    Probe("model", ".probes.model_files:probe", ("model", "tokenizer", "template", "sampling"), limit_s=None),
)


def collect(
    model: ModelRef | None = None,
    *,
    pid: int | None = None,
    server: Server | None = None,
    overrides: Overrides | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] | None = None,
    probes: Sequence[Probe] = PROBES,
    strength: Strength = "verified",
    fast: bool = False,
) -> Fingerprint:
    """Read the environment of a process or of a server and, if given, a model.

    Args:
        model: From `model.ref.resolve`; its files are hashed.
        pid: The process to observe; None for this one.
        server: The server to ask instead of a process.
        overrides: Section → field → fact that the caller knows better, such as what an engine resolved or
            observed: `{"engine": {"attention_backend": fact("sdpa", "transformers")}}`.
        progress: Called with (bytes done, bytes in all) while files are hashed.
        environ: Stands in for the environment variables.
        probes: Stands in for the probes.
        strength: How much of the model's weights is read.
        fast: Leave out the SHA-256 of the weights files; their tensors are read all the same.

    Raises:
        BadInput: The model's files cannot be read, or there is no such process that could be observed.
        EngineFailed: The server cannot be read. Every other failure becomes a fact.
    """
    if pid is not None and server is not None:
        raise BadInput("a process and a server were both named", "give one of the two")
    subject: Subject = "server" if server is not None else "self" if pid is None else "process"
    observed = None if pid is None else proc.identify(pid)
    context = Context(
        model,
        {} if server is not None else os.environ if environ is None else environ,
        progress,
        server=server,
        strength=strength,
        fast=fast,
    )
    if observed is not None:
        context = _of_process(context, observed)
    joined = _run(
        [
            probe
            for probe in probes
            if subject in probe.subjects or (probe.name == "model" and model is not None)
        ],
        context,
    )
    if observed is not None:
        _join(joined, {"process": Section(facts={"read_whole": _is_complete(observed)})})
    for name, facts in (overrides or {}).items():
        known = joined.setdefault(name, Section())
        joined[name] = known.model_copy(update={"facts": {**known.facts, **facts}})
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Fingerprint.build(__version__, created, joined)


def _run(probes: Sequence[Probe], context: Context) -> Sections:
    """What the probes found, run beside each other. Errors as for `_Run.result`."""
    runs = [_Run(probe, context) for probe in probes]
    joined: Sections = {}
    try:
        for run in runs:
            run.start()
        for run in runs:
            _join(joined, run.result())
    finally:
        context.stop.set()  # on Ctrl-C or an error, readers end within one block
    return joined


def _of_process(context: Context, process: psutil.Process) -> Context:
    """The same for a process that was named: its variables, its view of the files, its workers."""
    launched, unread = proc.launch_environment(process.pid)
    return replace(
        context,
        environ=launched,
        environ_unread=unread,
        pid=process.pid,
        root=root_of(process.pid),
        family=(process.pid, *proc.descendants(process)),
    )


def _is_complete(observed: psutil.Process) -> Fact:
    """Whether the readings are all of one process: it may have ended, and its number may have been reused."""
    if proc.is_alive(observed):
        return fact(True, "/proc/PID/stat")
    return unavailable(proc.ENDED, "/proc/PID/stat")


def _join(joined: Sections, found: Sections) -> None:
    """Later readings count, but one that failed never hides a value that another probe has."""
    for name, section in found.items():
        known = joined.get(name, Section())
        facts = dict(known.facts)
        for field, reading in section.facts.items():
            if reading.unavailable is None or field not in facts or facts[field].unavailable is not None:
                facts[field] = reading
        texts = {**(known.texts or {}), **(section.texts or {})}
        joined[name] = Section(
            facts=facts, volatile={**known.volatile, **section.volatile}, texts=texts or None
        )


class _Run:
    """One probe, in a thread of its own where it can. A hanging one cannot keep the process alive."""

    def __init__(self, probe: Probe, context: Context) -> None:
        self._probe, self._context = probe, context
        self._found: Sections = {}
        self._error: Exception | None = None
        self._started = 0.0
        self._thread = threading.Thread(target=self._work, name=f"rip-probe-{probe.name}", daemon=True)

    def start(self) -> None:
        if not self._probe.in_caller:
            self._started = time.monotonic()
            self._thread.start()

    def result(self) -> Sections:
        """What the probe found, or facts that say why it found nothing.

        Raises:
            RipError: The probe could not use what the user gave, or not read the server that was named.
        """
        if self._probe.in_caller:
            self._work()
        else:
            self._wait()
        if self._thread.is_alive():
            return self._failed(f"no answer within {self._probe.limit_s:g} s")
        if isinstance(self._error, RipError):
            raise self._error
        if self._error is not None:
            return self._failed(f"{type(self._error).__name__}: {self._error}")
        return self._found

    def _wait(self) -> None:
        """Until it ends, or hangs: it computes nothing, and had its time, longer on a busy machine."""
        limit = self._probe.limit_s
        if limit is None:
            self._thread.join()
            return
        self._thread.join(max(0.0, self._started + limit - time.monotonic()))
        computed = self._computed() if self._thread.is_alive() else 0.0
        while self._thread.is_alive():
            self._thread.join(limit * _LOOK)
            before, computed = computed, self._computed()
            waited = time.monotonic() - self._started
            is_idle = computed - before < _IDLE_SHARE * limit * _LOOK
            if computed >= limit * MOST or (is_idle and waited >= patience(limit)):
                return

    def _computed(self) -> float:
        """Seconds of processor time that its thread has had."""
        try:
            spent = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text().split()[0]
        except (OSError, IndexError):  # it has ended; not on this system
            return 0.0
        return int(spent) / 1e9

    def _work(self) -> None:
        try:
            module, _, function = self._probe.target.partition(":")
            loaded = importlib.import_module(module, __package__)
            self._found = getattr(loaded, function)(self._context)
        except Exception as error:
            self._error = error  # handed to the waiting thread, which decides

    def _failed(self, reason: str) -> Sections:
        if self._probe.subjects == ("server",):
            raise EngineFailed(f"the server could not be read: {reason}", "see whether the server is up")
        failure = unavailable(f"the probe failed: {reason}", f"{PROBE}{self._probe.name}")
        return {name: Section(facts={f"probe_{self._probe.name}": failure}) for name in self._probe.sections}
