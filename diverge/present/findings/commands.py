"""Commands as they are typed into a shell."""

from __future__ import annotations

import shlex

from ....schemas.findings.command import Command


def in_shell(command: Command) -> str:
    """A command, and the one to run after it, quoted for a POSIX shell; what no trace holds as a comment."""
    if command.purpose == "not known":
        return command.text or ""
    then = f"; {shlex.join(command.then)}" if command.then else ""
    if command.purpose == "rerun program":
        settings = ", ".join(f"{name}={value}" for name, value in command.settings.items())
        how = f" with {settings}" if settings else ""
        return f"run the program again{how}, tapped into {command.output}{then}"
    hidden = (
        f"  # and --set {' --set '.join(f'{name}=…' for name in command.hidden)}" if command.hidden else ""
    )
    return f"{shlex.join(command.argv)}{then}{hidden}"
