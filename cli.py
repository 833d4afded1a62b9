"""The command line: assembles the commands, and is the one place that maps errors to exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from . import __version__
from .commands.command_group import CommandGroup
from .commands.console import tolerate_any_stream
from .schemas.errors import RipError, first_line, printable, report_error
from .schemas.exit_codes import EXIT_HOLDS, EXIT_INTERRUPTED, EXIT_NO_WORK
from .schemas.redact import without_secrets

app = typer.Typer(
    name="rip",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time of --help (benchmarks/help_time.py)
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Reproducible Inference Postmortems: the same request gave a different answer. What changed, where "
    "did it start, and does it matter?",
    epilog="Exit codes: 0 the claim holds (by default: tokens equal) · 1 it does not · 2 the command could "
    "not do its work · 3 nothing could be compared · 130 interrupted.",
)


def _print_version(stated: bool) -> None:
    if stated:
        print(f"rip {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the Python traceback of an error (works after any command).")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and exit. Every error ends here."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    tolerate_any_stream()
    # What supervisors and CI send is an interruption too: recorded rows are kept, and servers are stopped.
    on_term = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            app(arguments, prog_name="rip", standalone_mode=True)
        finally:
            _flush_stdout()
        code: int | str | None = EXIT_HOLDS
    except SystemExit as stop:
        code = stop.code
        if code == EXIT_INTERRUPTED:
            print("rip: interrupted", file=sys.stderr)  # typer turns Ctrl-C into this exit code only
    except Exception as error:
        if debug:
            vars(error).pop("__notes__", None)  # the fix, which is printed below
            traceback.print_exc()
        code = _print_error(error)
    finally:
        signal.signal(signal.SIGTERM, on_term)  # a program that calls this may have one of its own
    sys.exit(code)


def _print_error(error: Exception) -> int:
    """Print what is wrong and how to fix it.

    Returns:
        The exit code.
    """
    code = EXIT_NO_WORK
    if isinstance(error, RipError):
        message, fix, code = error.message, error.fix, error.exit_code
    elif isinstance(error, ModuleNotFoundError):
        message = f"the package {error.name!r} is not installed"
        fix = "pip install 'rip-forensics[local,report]' into the environment that runs rip"
    elif isinstance(error, OSError | MemoryError):
        message, fix = _describe_shortage(error)
    else:
        message = f"unexpected {type(error).__name__}: {error}"
        fix = "run again with --debug and report the traceback; this is a bug in rip"
    message, fix = without_secrets(message), without_secrets(fix)
    print(f"rip: {message}\n     fix: {fix}", file=sys.stderr)
    report_error(error, message, fix)
    return code


def _flush_stdout() -> None:
    """Flush here, where a full disk can still be reported; at the end nothing is tried again.

    Raises:
        OSError: As the disk says.
    """
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout.drop()  # type: ignore[union-attr]  # see tolerate_any_stream
        raise


_SHORTAGES = {
    errno.ENOSPC: "free disk space, or write the output elsewhere",
    errno.EDQUOT: "free disk space, or write the output elsewhere",
    errno.EIO: "check the disk, or write the output elsewhere",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "allow more open files: ulimit -n 1024",
    errno.ENFILE: "close other programs: the machine's table of open files is full",
    errno.ENOMEM: "free memory, or allow more of it: ulimit -v",
    errno.EAGAIN: "allow more processes (ulimit -u), or end others",
    errno.ELOOP: "check the links on this path",
}


def _describe_shortage(error: OSError | MemoryError) -> tuple[str, str]:
    """What the machine refused, and how to fix it."""
    if isinstance(error, MemoryError):
        return "there is not enough memory", _SHORTAGES[errno.ENOMEM]
    path = "" if error.filename is None else f"{_name_of(error.filename)}: "
    fix = _SHORTAGES.get(error.errno or 0, "check the path and its permissions; --debug shows where")
    if not path and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        path = "output could not be written: "
    return f"{path}{error.strerror or first_line(error)}", fix


def _name_of(path: object) -> str:
    """A path as a message holds it."""
    text = printable(os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path))
    return text if len(text) <= _LONGEST_PATH else f"{text[:_LONGEST_PATH]}…"


_LONGEST_PATH = 200
"""Characters of a path that a message shows."""
