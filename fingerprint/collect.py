"""Running the probes beside each other, each within its time limit, and joining what they found.

What a probe reads is the probe's business; a probe that fails or hangs becomes a fact that says so.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .. import __version__
from ..schemas.errors import RipError
from ..schemas.fingerprint import Fact, Fingerprint, Section, unavailable
from .context import Context, Progress

if TYPE_CHECKING:
    from .model_ref import ModelRef

Sections = dict[str, Section]
Overrides = Mapping[str, Mapping[str, Fact]]


@dataclass(frozen=True)
class Probe:
    """One source of facts, loaded only when it runs."""

    name: str
    target: str
    """`module:function`; a leading dot means: inside this package."""
    sections: tuple[str, ...]
    """Where its failure is recorded."""
    limit_s: float | None = 10.0
    """Seconds until it is given up; None for hashing, which takes as long as the files are large."""
    in_caller: bool = False
    """Read in the calling thread: OpenMP keeps a thread count per thread, so another one would lie."""


PROBES: tuple[Probe, ...] = (
    Probe("variables", ".probes.os_env:probe_variables", ("determinism",)),
    Probe("os", ".probes.os_env:probe_os", ("os",)),
    Probe("cpu", ".probes.cpu:probe", ("cpu",), in_caller=True),
    Probe("python", ".probes.python_env:probe", ("frameworks", "kernels", "process")),
    Probe("nvidia_packages", ".probes.python_env:probe_nvidia_packages", ("libraries",)),
    Probe("torch", ".probes.torch_env:probe", ("frameworks", "cpu", "libraries"), in_caller=True),
    Probe(
        "engine",
        ".probes.engine:probe",
        ("engine", "parallelism", "cache", "replica", "gpus", "driver", "sampling"),
    ),
    Probe("model", ".probes.model_files:probe", ("model", "tokenizer", "template", "sampling"), limit_s=None),
)


def collect(
    model: ModelRef | None = None,
    *,
    overrides: Overrides | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] | None = None,
    probes: Sequence[Probe] = PROBES,
) -> Fingerprint:
    """Read the environment of this process and, if given, a model.

    Args:
        model: From `model_ref.resolve`; its files are hashed.
        overrides: Section → field → fact that the caller knows better, such as what an engine resolved or
            observed: `{"engine": {"attention_backend": fact("sdpa", "transformers")}}`.
        progress: Called with (bytes done, bytes in all) while files are hashed.
        environ: Stands in for the environment variables.
        probes: Stands in for the probes.

    Raises:
        BadInput: The model's files cannot be read. Every other failure becomes a fact.
    """
    context = Context(model, os.environ if environ is None else environ, progress)
    runs = [_Run(probe, context) for probe in probes]
    try:
        for run in runs:
            run.start()
        joined: Sections = {}
        for run in runs:
            _join(joined, run.result())
    finally:
        context.stop.set()  # on Ctrl-C or an error, readers end within one block
    _join(joined, {name: Section(facts=dict(facts)) for name, facts in (overrides or {}).items()})
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Fingerprint.build(__version__, created, joined)


def _join(joined: Sections, found: Sections) -> None:
    for name, section in found.items():
        known = joined.get(name, Section())
        joined[name] = Section(
            facts={**known.facts, **section.facts}, volatile={**known.volatile, **section.volatile}
        )


class _Run:
    """One probe, in a thread of its own where it can. A hanging one cannot keep the process alive."""

    def __init__(self, probe: Probe, context: Context) -> None:
        self._probe, self._context = probe, context
        self._found: Sections = {}
        self._error: Exception | None = None
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"rip-probe-{probe.name}", daemon=True)

    def start(self) -> None:
        if not self._probe.in_caller:
            if self._probe.limit_s is not None:
                self._deadline = time.monotonic() + self._probe.limit_s
            self._thread.start()

    def result(self) -> Sections:
        """What the probe found, or facts that say why it found nothing.

        Raises:
            RipError: The probe could not use what the user gave.
        """
        if self._probe.in_caller:
            self._work()
        else:
            self._thread.join(None if self._deadline is None else max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            return self._failed(f"no answer within {self._probe.limit_s:g} s")
        if isinstance(self._error, RipError):
            raise self._error
        if self._error is not None:
            return self._failed(f"{type(self._error).__name__}: {self._error}")
        return self._found

    def _work(self) -> None:
        try:
            module, _, function = self._probe.target.partition(":")
            loaded = importlib.import_module(module, __package__)
            self._found = getattr(loaded, function)(self._context)
        except Exception as error:
            self._error = error  # handed to the waiting thread, which decides

    def _failed(self, reason: str) -> Sections:
        failure = unavailable(f"the probe failed: {reason}", f"probe:{self._probe.name}")
        return {name: Section(facts={f"probe_{self._probe.name}": failure}) for name in self._probe.sections}
