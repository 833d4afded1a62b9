"""Python itself, the packages that carry numbers, and the installed kernel packages."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING

from ...schemas.fingerprint import Observed, Section, fact
from ..fields.packages import FRAMEWORK_PACKAGES, KERNEL_PACKAGES
from ..process import installed_packages

if TYPE_CHECKING:
    from .context import Context


def probe(context: Context) -> dict[str, Section]:
    """Sections `frameworks` (without torch), `kernels`, and the volatile part of `process`."""
    frameworks = {
        "python": fact(platform.python_version(), "sys.version"),
        "python_implementation": fact(platform.python_implementation(), "sys.implementation"),
        "python_compiler": fact(platform.python_compiler(), "sys.version"),
        **{name: installed_packages.build(name) for name in FRAMEWORK_PACKAGES},
    }
    kernels = {name: installed_packages.build(name) for name in KERNEL_PACKAGES}
    process = Section(
        facts={"observed": fact(Observed.SELF.value, "rip")},
        volatile={
            "pid": fact(os.getpid(), "getpid"),
            "executable": fact(sys.executable or "unknown", "sys.executable"),
        },
    )
    return {"frameworks": Section(facts=frameworks), "kernels": Section(facts=kernels), "process": process}
