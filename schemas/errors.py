"""The errors a user can meet: what is wrong, how to fix it, what it is about, and its exit code."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from .exit_codes import EXIT_INTERRUPTED, EXIT_NO_WORK, EXIT_NOTHING_COMPARED
from .redact import HIDDEN, holds_secret, is_secret


@dataclass(frozen=True)
class Stated:
    """An option or a setting that an error is about, as the user wrote it.

    Attributes:
        name: Field of a lane (`python`), or name of a setting (`batch_size`, `env.NAME`).
        text: What was written: `--set batch_size=0`.
        option: What to write to state it: `--python`, `--set batch_size`.
    """

    name: str
    text: str
    option: str


def stated_option(name: str, value: object = None) -> Stated:
    """An option of the command line; `name` is the field's: `api_key_env`."""
    option = f"--{name.replace('_', '-')}"
    return Stated(name, option if value is None else f"{option} {value}", option)


def stated_setting(pair: str) -> Stated:
    """A setting as `--set` takes it: `KEY=VALUE`, or what was written in its place."""
    name, equals, value = pair.partition("=")
    if is_secret(name) or holds_secret(value):
        value = HIDDEN
    if holds_secret(name):
        name = HIDDEN
    return Stated(name, f"--set {name}{equals}{value}", f"--set {name}")


class RipError(Exception):
    """An error with a message for people.

    Args:
        problem: What is wrong, one line; after `about` where there is one.
        fix: How to fix it, one line. `{option}` in it stands for what states `about`.
        about: The option or setting that is wrong.

    Attributes:
        message: What is wrong, one line.
        fix: How to fix it, one line.
        about: The option or setting that is wrong, None where no single one is.
        exit_code: What the process returns (see `rip --help`, "Exit codes").
    """

    exit_code: int = EXIT_NO_WORK

    def __init__(self, problem: str, fix: str, about: Stated | None = None) -> None:
        self._problem, self._fix, self.about = problem, fix, about
        self.message = _one_line(problem if about is None else f"{about.text}: {problem}")
        self.fix = _one_line(fix if about is None else fix.replace("{option}", about.option))
        super().__init__(problem, fix, about)  # all, so that it survives pickling between processes
        self.add_note(f"fix: {self.fix}")  # in the traceback that users of the library see

    def __str__(self) -> str:
        return self.message

    def stated_as(self, about: Stated) -> RipError:
        """The same error where what it is about was written in another way, such as in a lane file."""
        return type(self)(self._problem, self._fix, about)


def _one_line(text: str) -> str:
    # Messages quote file names, keys and what engines said; none of their line breaks or terminal
    # sequences may reach the terminal.
    return printable(" ".join(line.strip() for line in text.splitlines() if line.strip()))


def printable(text: str) -> str:
    """Text without the control characters that a request id or a file name can carry to a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def first_line(error: BaseException) -> str:
    """What a foreign error says, in one line that does not end like the head of a list."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":") if lines else type(error).__name__


class BadInput(RipError):
    """A file, an option or a value cannot be used."""


class NewerVersion(BadInput):
    """A whole document, but of a version that a newer rip wrote."""


class MissingPackage(RipError):
    """A Python package that this command needs is not installed."""


class EngineFailed(RipError):
    """The engine could not be started, refused the request, or died."""


class OutputFailed(RipError):
    """A result could not be written (disk full, no permission, exists already)."""


class ContractBroken(RipError):
    """The envelope names a model, tokenizer or template other than the one at hand."""


class NothingCompared(RipError):
    """Two traces have no row in common. Never a pass."""

    exit_code = EXIT_NOTHING_COMPARED


class Interrupted(RipError):
    """The user stopped the command; the message says what was kept."""

    exit_code = EXIT_INTERRUPTED


VARIABLE = "RIP_ERROR_REPORT"
"""Environment variable with the number of the file descriptor that the report goes to."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class ErrorReport(NamedTuple):
    """The error that ended a process.

    Attributes:
        kind: Name of the error's class, such as `BadInput`.
        message: What is wrong.
        fix: How to fix it.
        disk_full: A full disk is why, wherever it was met.
    """

    kind: str
    message: str
    fix: str
    disk_full: bool


def report_error(error: Exception, message: str, fix: str) -> None:
    """Write the report, where whoever started this process wants one."""
    descriptor = os.environ.pop(VARIABLE, "")
    if not descriptor.isdecimal():
        return
    kind = type(error).__name__ if isinstance(error, RipError) else "unexpected"
    report = ErrorReport(kind, message, fix, _is_disk_full(error))
    with suppress(OSError):  # the words on stderr remain
        os.write(int(descriptor), json.dumps(report._asdict()).encode())


def read_report(content: bytes) -> ErrorReport | None:
    """The report that a process wrote; None: it wrote none, or not a whole one."""
    try:
        return ErrorReport(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _is_disk_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
