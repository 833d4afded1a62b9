"""Where a process has its home, its caches and its packages, as it sees them itself."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..process import proc, root_files
from ..process.proc import mapped_files
from ..process.python_packages import python_of

if TYPE_CHECKING:
    from .context import Context

MAX_PASSWD_BYTES = 1 << 20


def uid(context: Context) -> int | None:
    """The user id of the observed process."""
    if context.pid is None:
        return os.getuid() if hasattr(os, "getuid") else None
    try:
        return proc.owner(context.pid)
    except proc.Unread:
        return None


def account(context: Context) -> tuple[str, str] | None:
    """(name, home folder) of the observed process's user, as its own `/etc/passwd` has them."""
    number = uid(context)
    try:
        text = root_files.read_file(context.root, "/etc/passwd", MAX_PASSWD_BYTES)
    except proc.Unread:
        return None
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(":")
        if len(fields) > 5 and fields[2] == str(number):
            return fields[0], fields[5]
    return None


def home(context: Context) -> str:
    """Its home folder: `HOME`, else that of its user, else `/`."""
    if found := context.environ.get("HOME"):
        return found
    known = account(context)
    return known[1] if known else "/"


def user(context: Context) -> str:
    """Its user's name as Python's `getpass.getuser` would give it."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if found := context.environ.get(name):
            return found
    known = account(context)
    return known[0] if known else f"uid_{uid(context)}"


def absolute(context: Context, path: str) -> str:
    """A path that a variable names, from the folder in which the process works.

    Raises:
        Unread: That folder is not known.
    """
    if context.pid is None or path.startswith("/"):
        return path
    return f"{proc.link(context.pid, 'cwd')}/{path}"


def xdg_cache(context: Context) -> str:
    """Its user's cache folder: `XDG_CACHE_HOME`, else `~/.cache`."""
    return context.environ.get("XDG_CACHE_HOME") or f"{home(context)}/.cache"


def package_folders(context: Context) -> list[str]:
    """Where its Python finds packages, as it sees them, first one first; empty for another program."""
    if context.pid is None:
        return [folder for folder in dict.fromkeys(sys.path) if folder]
    try:
        executable = proc.link(context.pid, "exe").removesuffix(" (deleted)")
        arguments, mapped = proc.command_line(context.pid), mapped_files(context.pid)
        folder = proc.link(context.pid, "cwd")
    except proc.Unread:
        return []
    return list(python_of(context.root, executable, arguments, mapped, context.environ, folder).folders)
