"""The errors a user can meet: what is wrong, how to mend it, and the exit code it ends with."""

from __future__ import annotations


class RipError(Exception):
    """An error with a message for people.

    Attributes:
        message: What is wrong, one line.
        fix: How to mend it, one line.
        exit_code: What the process returns (see `rip --help`, "Exit codes").
    """

    exit_code: int = 2

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class BadInput(RipError):
    """A file, option or value that rip was given cannot be used."""


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

    exit_code = 3
