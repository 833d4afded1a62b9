"""A rip command as data: its argument list and its purpose. It is quoted for a shell only when shown."""

from __future__ import annotations

from typing import Literal

from .statement import Statement


class Command(Statement):
    """A command that confirms or refutes something."""

    purpose: Literal["rerun", "rerun program", "show", "not known"]
    """`rerun`: it runs the requests again, then `then` compares. `rerun program`: a program of the user's own
    has to run again. `show`: it shows what was recorded, and runs nothing. `not known`: from a document of
    version 1, whose words stand in `text`."""
    argv: list[str] = []
    """Empty: there is no rip command for it (`rerun program`, `not known`)."""
    then: list[str] = []
    """The command to run after it; empty: none."""
    settings: dict[str, str] = {}
    """Of `rerun program`: what is changed in it."""
    output: str | None = None
    """The trace that it writes."""
    hidden: list[str] = []
    """Settings that have to be stated too (`--set NAME=…`): no trace holds them, as they may be secret."""
