"""`rip drift`: what changed between two fingerprints, and which level each change puts at risk."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput
from .drift_options import ANY, STDOUT, AsJson, DriftOptions, FailOn, Html, Ignore, Markdown, report_drift

if TYPE_CHECKING:
    from ..schemas.fingerprint import Fingerprint

MAX_BYTES = 64 << 20
"""Longest fingerprint that is read: a thousand tensors take a tenth of a megabyte."""


def drift(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="The fingerprint to compare with, or a pasted text.")
    ],
    now: Annotated[
        Path, typer.Argument(metavar="NOW", help="The fingerprint that may have changed, or a pasted text.")
    ],
    fail_on: FailOn = ANY,
    ignore: Ignore = None,
    as_json: AsJson = False,
    markdown: Markdown = None,
    html: Html = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the reports.")] = False,
) -> None:
    """Compare two fingerprints: each change, the level at risk, the rule that says so, what to replay.

    A file is a document of rip fingerprint, or text pasted from torch.utils.collect_env,
    vllm collect-env or transformers env: of such a text only what it tells is compared. -: standard input.

    Exit code 0: nothing changed that counts (see --fail-on, --ignore). 1: something did. 3: the two have
    nothing in common. A rule names the level at risk; whether it was lost is known only after a replay.

    \b
    Examples:
      rip drift monday.json tuesday.json
      rip drift monday.json tuesday.json --fail-on token --ignore 'os.*'
      rip drift old-bug-report.txt now.json --html drift.html
    """
    from rich.console import Console

    options = DriftOptions(fail_on, ignore, as_json, markdown, html, force)
    options.check(inputs=(base, now))
    if base == now == STDOUT:
        raise BadInput("BASE and NOW are both standard input", "give a file for one of them")
    sides = load_fingerprint(base), load_fingerprint(now)
    names = name_of(base), name_of(now)
    raise typer.Exit(report_drift(*sides, names, options, Console(highlight=False)))


def load_fingerprint(path: Path) -> Fingerprint:
    """Read a fingerprint document, or pasted text that tells about an environment.

    Raises:
        BadInput: Unreadable, neither of the two, or written by a newer rip.
    """
    from ..fingerprint.load import from_bytes

    return from_bytes(read_file(path), name_of(path))


def name_of(path: Path) -> str:
    """What to call an input."""
    return "standard input" if path == STDOUT else str(path)


def read_file(path: Path) -> bytes:
    """The bytes of a fingerprint file, or of standard input where `path` is `-`.

    Raises:
        BadInput: Unreadable, not a regular file, or too long to be one.
    """
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if path == STDOUT else _read_regular(path)
    except OSError as error:
        raise BadInput(
            f"{path} could not be read: {error.strerror}", "give a file that rip fingerprint -o wrote"
        ) from None
    if len(content) > MAX_BYTES:
        raise BadInput(
            f"{name_of(path)} is longer than any fingerprint ({MAX_BYTES >> 20} MiB)",
            "give a file that rip fingerprint -o wrote",
        )
    return content


def _read_regular(path: Path) -> bytes:
    # Without O_NONBLOCK, opening a pipe waits for a writer that may never come.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        what = "a directory" if stat.S_ISDIR(kind) else "not a regular file"
        raise BadInput(f"{path} is {what}", "give a file that rip fingerprint -o wrote; -: standard input")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_BYTES + 1)
