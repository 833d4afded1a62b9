"""What all commands share when they speak to a person: stderr console, progress, output files."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.errors import OutputFailed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def stderr_console() -> Console:
    """The console for summaries and progress. Data goes to stdout with `print`.

    It wraps between words on a terminal, and not at all in a file.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def progress_bar(console: Console) -> Progress:
    """A progress display that vanishes when done, and is silent where stderr is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def printable(text: str) -> str:
    """Text without the control characters that a request id or a file name can carry to a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def counted(count: int, noun: str) -> str:
    """`1 envelope`, `2 envelopes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def tell(console: Console, sentence: str, style: str | None = None) -> None:
    """Print one sentence: one line in a file; on a terminal wrapped between words, later lines indented."""
    text = printable(sentence)
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    console.print(text, style=style, markup=False)


def refuse_overwrite(path: Path, force: bool) -> None:
    """Check, before any work, that an output can be written.

    Raises:
        OutputFailed: It exists and `force` is off, or its folder does not exist or is not writable.
    """
    if path.exists() and not force:
        raise OutputFailed(f"{path} exists already", "choose another name, or overwrite it with --force")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OutputFailed(f"{folder} is not a folder", f"create it: mkdir -p {folder}")
    if not os.access(folder, os.W_OK):
        raise OutputFailed(f"{folder} is not writable", "choose another folder")


def check_output_file(path: Path, force: bool) -> None:
    """`refuse_overwrite` for a file: a folder or a device is not replaced by force either.

    Raises:
        OutputFailed: As `refuse_overwrite`, or something else than a file has that name.
    """
    if path.is_dir():
        raise OutputFailed(
            f"{path} exists and is not a file: it is a directory", "choose another name, for example in it"
        )
    if path.exists() and not path.is_file():
        raise OutputFailed(f"{path} exists and is not a file", "choose another name")
    refuse_overwrite(path, force)
