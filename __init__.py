"""rip: Reproducible Inference Postmortems. This file knows the version, and where `rip.tap` is found."""

TYPE_CHECKING = False  # typing's own would be one more module to load
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_LATE = {"tap": "replay.own_programs.tap:Tap"}
"""What is imported when it is first asked for: importing rip loads nothing and runs nothing."""


def __getattr__(name: str) -> "Any":
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _LATE[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)
