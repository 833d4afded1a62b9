"""The errors a user can meet: what is wrong, how to fix it, and the exit code it ends with."""

from __future__ import annotations


class RipError(Exception):
    """An error with a message for people.

    Attributes:
        message: What is wrong, one line.
        fix: How to fix it, one line.
        option: What the user typed that it is about, as `--set dtype=int3`; the message begins with it.
        reason: The message without that.
        exit_code: What the process returns (see `rip --help`, "Exit codes").
    """

    exit_code: int = 2

    def __init__(self, message: str, fix: str, option: str | None = None) -> None:
        self.option, self.reason = option, _one_line(message)
        self.message = self.reason if option is None else _one_line(f"{option}: {message}")
        self.fix = _one_line(fix)
        super().__init__(self.message, self.fix)  # both, so that it survives pickling between processes
        self.add_note(f"fix: {self.fix}")  # in the traceback that users of the library see

    def __str__(self) -> str:
        return self.message


def _one_line(text: str) -> str:
    # Messages quote file names, keys and what engines said; none of their line breaks or terminal
    # sequences may reach the terminal.
    joined = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in joined
    )


def first_line(error: BaseException) -> str:
    """What a foreign error says, in one line that does not end like the head of a list."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":") if lines else type(error).__name__


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


class Interrupted(RipError):
    """The user stopped the command; the message says what was kept."""

    exit_code = 130
