"""What all commands share when they write to a person: console, progress, and streams that may be closed."""

from __future__ import annotations

import codecs
import io
import os
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ..schemas.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Progress

    from ..schemas.trace import TraceHeader

SHOWN_NOTES = 8
"""Notes of a trace that are printed; its header holds all."""

LINE_EVERY_S = 10.0
"""Between two lines of progress where there is no terminal."""
KNOWN_AFTER_S = 3.0
"""Of a stage, before its remaining time is estimated."""


def stderr_console() -> Console:
    """The console for summaries and progress. Data goes to stdout with `print`.

    It wraps between words on a terminal, and not at all in a file.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def stdout_console() -> Console:
    """The console for a result that is text for people."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale without our marks still gets the answer
    console = Console(highlight=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


class ShownProgress:
    """Shows the progress of an experiment: on a terminal a bar that vanishes when done, elsewhere a line
    every ten seconds; and notes that stay.

    Args:
        console: Where to.
        bar: A running display with no task.
        clock: Seconds from any beginning.
    """

    def __init__(self, console: Console, bar: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._bar, self._clock = console, bar, clock
        self._task = bar.add_task("", total=None, note="", visible=False)
        self._words = ""
        self._began = self._printed = clock()
        self._counted: tuple[int, int | None] = (0, None)

    def stage(self, name: str, done: int = 0, total: int | None = None, detail: str = "") -> None:
        """What is being done, and how far it is."""
        if total != self._counted[1] or done < self._counted[0]:  # other work, with a time of its own
            self._began, self._counted = self._clock(), (done, total)
        left = self._time_left(done, total)
        note = " · ".join(filter(None, (detail, left)))
        self._bar.update(
            self._task, description=printable(name), completed=done, total=total, note=note, visible=True
        )
        if total is None:  # rich keeps the earlier total
            self._bar.tasks[0].total = None
        self._words = " · ".join(filter(None, (printable(name), note)))

    def _time_left(self, done: int, total: int | None) -> str:
        from ..diverge.present.format import time_in_words

        first = self._counted[0]
        took = self._clock() - self._began
        if total is None or not first < done < total or took < KNOWN_AFTER_S:
            return ""
        return f"about {time_in_words(took * (total - done) / (done - first))} left"

    def print_if_due(self) -> None:
        """Where there is no terminal: a line, if the last one is ten seconds old."""
        now = self._clock()
        if self._words and now - self._printed >= LINE_EVERY_S and not self._console.is_terminal:
            self._printed = now
            print_sentence(self._console, self._words)

    def stop(self) -> None:
        """Show no more stages; notes are still printed."""
        self._words = ""
        self._bar.stop()

    def note(self, sentence: str) -> None:
        """A sentence that stays."""
        print_sentence(self._console, sentence)


@contextmanager
def shown_progress(console: Console) -> Iterator[ShownProgress]:
    """A progress display that vanishes when done; where stderr is no terminal, a line every ten seconds."""
    import threading

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    ended = threading.Event()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        shown = ShownProgress(console, bar)

        def print_lines() -> None:
            while not ended.wait(1.0):
                shown.print_if_due()

        lines = threading.Thread(target=print_lines, name="rip progress", daemon=True)
        if not console.is_terminal:
            lines.start()
        try:
            yield shown
        finally:
            ended.set()
            if not console.is_terminal:
                lines.join()


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

    Args:
        stream: The stream.
        dropped: What is dropped: a closed pipe, or every failure where only notes are written.
    """

    def __init__(self, stream: TextIO, dropped: type[OSError]) -> None:
        self._stream, self._dropped = stream, dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            return self._stream.write(text)
        except self._dropped:
            self.drop()
            return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            self._stream.flush()
        except self._dropped:
            self.drop()

    def drop(self) -> None:
        """Write nothing more, what waits included."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What a stream cannot encode as `\\uXXXX`: JSON stays JSON."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


def tolerate_any_stream() -> None:
    """From now on no stream decides what a command does or returns.

    Closed pipes are no errors, neither are streams that were closed from the start, a full disk behind
    stderr, and characters that the stream's encoding lacks.
    """
    codecs.register_error("rip-escape", _escaped)
    for name, dropped in (("stdout", BrokenPipeError), ("stderr", OSError)):
        # Python has None where the shell closed the stream (`>&-`).
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="rip-escape")
        setattr(sys, name, _PersistentStream(stream, dropped))
