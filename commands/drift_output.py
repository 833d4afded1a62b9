"""The output of `rip drift` and `rip fingerprint --against`: options, changes on the terminal, reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import LEVELS, check_choice
from ..schemas.errors import BadInput, NothingCompared, printable
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS
from ..schemas.files import check_output_file

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.change import Drift
    from ..schemas.fingerprint import Fingerprint

ANY = "any"
SHOWN_LINES = 12
"""Of a diff, on a terminal; the document keeps more of it."""
STREAM = Path("-")
"""Standard input or output in place of a file."""

FailOn = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="LEVEL",
        help="Exit 1 only where the promise of this level, or of a weaker one, is in doubt: bitwise, "
        "numeric, token, semantic; a change without a rule always counts. any: every change, "
        "but of compile caches that put nothing at risk.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="FIELD",
        help="Leave section.field out of the result, for example 'os.kernel' or 'cpu.*'. Repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, not text.")]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="FILE", help="Write the drift as Markdown too; -: print it."),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the drift as HTML too; -: print it.")
]


@dataclass(frozen=True)
class DriftOptions:
    """The options above."""

    fail_on: str
    ignore: tuple[str, ...]
    as_json: bool
    markdown: Path | None
    html: Path | None
    force: bool

    def any_stated(self) -> bool:
        """Whether any of them was stated."""
        return self.fail_on != ANY or any((self.ignore, self.as_json, self.markdown, self.html))

    def check(self, inputs: Iterable[Path | None], output: Path | None = None) -> None:
        """Refuse before any work what cannot be done.

        Args:
            inputs: Files that are read, which no report may replace.
            output: Another file that is written, or `-`.

        Raises:
            BadInput: No such level, two documents for standard output, or two uses of one file.
            OutputFailed: A report cannot be written.
        """
        check_choice("fail-on", self.fail_on, (ANY, *LEVELS), "level")
        written = {"-o": output, "--markdown": self.markdown, "--html": self.html}
        printed = ["--json"] if self.as_json else []
        printed += [f"{name} -" for name, path in written.items() if path == STREAM]
        if len(printed) > 1:
            raise BadInput(
                f"{printed[0]} and {printed[1]} both write to standard output", "give one of them a file"
            )
        files = {name: path for name, path in written.items() if path is not None and path != STREAM}
        taken = [("an input", path) for path in inputs if path is not None and path != STREAM]
        for name, path in files.items():
            for other, known in taken:
                if _is_same_file(path, known):
                    raise BadInput(
                        f"{name} {path} is also {other}", "choose another name: it would be overwritten"
                    )
            taken.append((f"the file of {name}", path))
        for path in files.values():
            check_output_file(path, self.force)


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether writing one would change the other, whatever names or links lead to them."""
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def report_drift(
    base: Fingerprint, now: Fingerprint, names: tuple[str, str], options: DriftOptions, console: Console
) -> int:
    """Compare, print and write reports.

    Args:
        base: The earlier fingerprint.
        now: The present one.
        names: What to call them in a report.
        console: Where the changes are printed for a person.

    Returns:
        The exit code.

    Raises:
        NothingCompared: The two have no field in common.
    """
    from ..fingerprint.drift import compare, failing, without_field
    from ..fingerprint.present.drift_report import to_html, to_markdown
    from ..fingerprint.present.drift_sentences import paste_note, permission_note
    from ..fingerprint.present.warnings import describe_contradictions
    from ..schemas.files import write_private

    found = compare(base, now, options.ignore)
    if not found.compared:
        raise NothingCompared(
            f"{names[0]} and {names[1]} have no field in common",
            "compare with one that has more fields, such as what `rip fingerprint -o FILE` records",
        )
    for pattern in without_field(base, now, options.ignore):
        print(
            f"note: --ignore {printable(pattern) or repr(pattern)} matched no field (section.field)",
            file=sys.stderr,
        )
    notes = [paste_note(one, name) for one, name in zip((base, now), names, strict=True)]
    for one, name in zip((base, now), names, strict=True):
        notes += [f"{name}: {contradiction}" for contradiction in describe_contradictions(one)]
    for note in (*notes, permission_note(base, now, names)):
        if note is not None:
            print(f"note: {printable(note)}", file=sys.stderr)
    level = None if options.fail_on == ANY else check_choice("fail-on", options.fail_on, LEVELS, "level")
    counted = failing(found.changes, level)
    if options.as_json:
        print(found.to_json(), end="")
    elif options.markdown == STREAM:
        print(to_markdown(found, base, now, names), end="")
    elif options.html == STREAM:
        print(to_html(found, base, now, names), end="")
    else:
        print_drift(console, found)
        if found.changes and not counted:
            console.print(f"None of them counts for --fail-on {options.fail_on}.")
    for path, render in ((options.markdown, to_markdown), (options.html, to_html)):
        if path is not None and path != STREAM:
            write_private(path, render(found, base, now, names))
            print(f"Wrote {path}", file=sys.stderr)
    return EXIT_FAILS if counted else EXIT_HOLDS


def print_drift(console: Console, found: Drift) -> None:
    """The changes by risk, what to replay, and in one line what they amount to."""
    from ..fingerprint.present.drift_sentences import (
        CLOSING,
        group_changes,
        headline,
        list_fields,
        list_notes,
    )

    for group in group_changes(found.changes):
        for row in group.rows:
            change = "the text differs" if row.diff else f"{row.before} → {row.after}"
            _print_line(console, f"{row.name}: {change}", f"[{group.risk}]", "bold")
            for line in row.diff[:SHOWN_LINES]:
                _print_line(console, f"  {line}")
            if len(row.diff) > SHOWN_LINES:
                _print_line(console, f"  … {len(row.diff) - SHOWN_LINES} more lines")
            if row.followers:
                _print_line(console, f"  with it: {', '.join(row.followers)}")
            _print_line(console, f"  why: {row.why}")
        for advice, fields in group.replays:
            _print_line(
                console, f"  to know: {advice}", f"({list_fields(fields)})" if len(group.rows) > 1 else ""
            )
        console.print()
    _print_line(console, headline(found) + (f". {CLOSING}" if found.changes else ""))
    for note in list_notes(found):
        _print_line(console, f"note: {note}")


def _print_line(console: Console, text: str, remark: str = "", style: str = "") -> None:
    """One line in a file; on a terminal wrapped between words, under its own indentation."""
    from rich.padding import Padding
    from rich.text import Text

    line = Text(text.strip(), style=style)
    if remark:
        line.append(f"  {remark}", style="not bold dim")
    indent = len(text) - len(text.lstrip())
    if console.is_terminal:
        console.print(Padding(line, (0, 0, 0, indent)))
    else:
        console.print(Text(" " * indent).append_text(line), soft_wrap=True)
