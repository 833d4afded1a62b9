"""The process of rip itself: its Python and packages, and the sections that only an engine run can fill."""

from __future__ import annotations

import os
import platform
import socket
import sys
from typing import TYPE_CHECKING

from ...schemas.fingerprint import NO_ENGINE_RUN, Observed, Section, fact, unavailable
from ..fields.known_names import FRAMEWORK_PACKAGES, KERNEL_PACKAGES
from ..process import python_packages

if TYPE_CHECKING:
    from .context import Context

SAMPLING_CONTRACT = "rip.sampling/1"
"""Names the meaning of the envelope's `sampling` fields and the sampler that carries them out; it changes
when the same fields and seed would choose other tokens from the same logits."""


def probe_python(context: Context) -> dict[str, Section]:
    """Sections `frameworks` (without torch), `kernels`, and the volatile part of `process`."""
    frameworks = {
        "python": fact(platform.python_version(), "sys.version"),
        "python_implementation": fact(platform.python_implementation(), "sys.implementation"),
        "python_compiler": fact(platform.python_compiler(), "sys.version"),
        **{name: python_packages.read_build(name) for name in FRAMEWORK_PACKAGES},
    }
    kernels = {name: python_packages.read_build(name) for name in KERNEL_PACKAGES}
    process = Section(
        facts={"observed": fact(Observed.SELF.value, "rip")},
        volatile={
            "pid": fact(os.getpid(), "getpid"),
            "executable": fact(sys.executable or "unknown", "sys.executable"),
        },
    )
    return {"frameworks": Section(facts=frameworks), "kernels": Section(facts=kernels), "process": process}


def probe_engine(context: Context) -> dict[str, Section]:
    """Sections `engine`, `parallelism`, `cache`, `replica` and part of `sampling`.

    `rip replay` runs the engine and passes what it resolved and observed to `collect` as overrides.
    """
    transformers = python_packages.read_version("transformers")
    engine = {
        "name": fact("hf", "rip"),
        "version": transformers
        if transformers.unavailable is None
        else unavailable("transformers is not installed", python_packages.SOURCE),
        "attention_backend": unavailable(NO_ENGINE_RUN, "rip"),
        "dtype": unavailable(NO_ENGINE_RUN, "rip"),
    }
    return {
        "engine": Section(facts=engine),
        "parallelism": Section(facts={"tensor_parallel_size": unavailable(NO_ENGINE_RUN, "rip")}),
        "cache": Section(facts={"prefix_cache": unavailable(NO_ENGINE_RUN, "rip")}),
        "replica": Section(
            facts={"id": unavailable("no served replica was asked", "rip")},
            volatile={"hostname": fact(socket.gethostname() or "unknown", "gethostname")},
        ),
        "sampling": Section(facts={"contract_version": fact(SAMPLING_CONTRACT, "rip")}),
    }
