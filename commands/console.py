"""What all commands share when they write to a person: console, progress, and streams that may be closed."""

from __future__ import annotations

import os
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ..schemas.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress

    from ..schemas.trace import TraceHeader

SHOWN_NOTES = 8
"""Notes of a trace that are printed; its header holds all."""


def stderr_console() -> Console:
    """The console for summaries and progress. Data goes to stdout with `print`.

    It wraps between words on a terminal, and not at all in a file.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def stdout_console() -> Console:
    """The console for a result that is text for people."""
    from rich.console import Console

    return Console(highlight=False)


class ShownProgress:
    """Shows the progress of an experiment: a bar that vanishes when done, and notes that stay.

    Args:
        console: Where to.
        bar: A running display with no task.
    """

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("", total=None, note="", visible=False)

    def stage(self, name: str, done: int = 0, total: int | None = None, detail: str = "") -> None:
        """What is being done, and how far it is."""
        self._bar.update(
            self._task, description=printable(name), completed=done, total=total, note=detail, visible=True
        )
        if total is None:  # rich keeps the earlier total
            self._bar.tasks[0].total = None

    def stop(self) -> None:
        """Show no more stages; notes are still printed."""
        self._bar.stop()

    def note(self, sentence: str) -> None:
        """A sentence that stays."""
        print_sentence(self._console, sentence)


@contextmanager
def shown_progress(console: Console) -> Iterator[ShownProgress]:
    """A progress display that vanishes when done, and is silent where stderr is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        yield ShownProgress(console, bar)


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 envelope`, `2 envelopes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def print_sentence(console: Console, sentence: str, style: str | None = None) -> None:
    """Print one sentence: one line in a file; on a terminal wrapped between words, later lines indented."""
    text = printable(sentence)
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    console.print(text, style=style, markup=False)


def print_notes(console: Console, header: TraceHeader) -> None:
    """What a trace's header notes about its run, and what was not observed."""
    for finding in header.findings[:SHOWN_NOTES]:
        print_sentence(console, f"note: {finding}")
    if len(header.findings) > SHOWN_NOTES:
        print_sentence(console, f"note: {len(header.findings) - SHOWN_NOTES} more in the header of the trace")
    for sentence in header.not_seen:
        print_sentence(console, f"not observed: {sentence}")


class _PersistentStream:
    """A text stream that drops what nobody reads any more.

    The command runs to its end: files are written, and the exit code stays the verdict. Ending at the
    first unread line would turn "the claim does not hold" into whatever a closed pipe means.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


def tolerate_closed_streams() -> None:
    """From now on, closed pipes are no errors, and neither are streams that were closed from the start."""
    for name in ("stdout", "stderr"):
        # Python has None where the shell closed the stream (`>&-`).
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        setattr(sys, name, _PersistentStream(stream))
