"""The command line: assembles the commands, and is the one place that maps errors to exit codes."""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from . import __version__
from .commands.command_group import CommandGroup
from .commands.console import tolerate_closed_streams
from .schemas.errors import RipError, report_error
from .schemas.exit_codes import EXIT_HOLDS, EXIT_INTERRUPTED, EXIT_NO_WORK

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
    tolerate_closed_streams()
    # What supervisors and CI send is an interruption too: recorded rows are kept, and servers are stopped.
    on_term = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            app(arguments, prog_name="rip", standalone_mode=True)
        finally:
            sys.stdout.flush()  # here, where a full disk can still be reported
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
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        message = f"output could not be written: {error.strerror}"
        fix = "free disk space, or write the output elsewhere"
    else:
        message = f"unexpected {type(error).__name__}: {error}"
        fix = "run again with --debug and report the traceback; this is a bug in rip"
    print(f"rip: {message}\n     fix: {fix}", file=sys.stderr)
    report_error(error, message, fix)
    return code
