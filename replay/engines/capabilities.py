"""Refusals of what an engine cannot do: before it is opened, and again where it turned out when it was."""

from __future__ import annotations

from ...schemas.choices import Mode
from ...schemas.errors import BadInput
from .base import Capabilities


def refuse_mode(engine: str, capabilities: Capabilities, mode: Mode) -> None:
    """Refuse a mode that the engine does not have.

    Raises:
        BadInput: It does not.
    """
    if mode not in capabilities.modes:
        raise BadInput(
            f"the engine {engine} has no mode {mode}", f"choose one of: {', '.join(capabilities.modes)}"
        )


def refuse_sites(engine: str, capabilities: Capabilities, fix: str = "use --capture tokens") -> None:
    """Refuse to observe sites where the engine shows none.

    Raises:
        BadInput: It shows none.
    """
    if not capabilities.sites:
        raise BadInput(f"the engine {engine} shows no sites", fix)
