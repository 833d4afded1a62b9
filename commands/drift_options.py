"""What `rip drift` and `rip fingerprint --against` share: which changes count, and where they are shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput, NothingCompared
from .exit_codes import EXIT_FAILS, EXIT_HOLDS

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.change import Drift
    from ..schemas.fingerprint import Fingerprint

ANY = "any"
STDOUT = Path("-")

FailOn = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="LEVEL",
        help="Exit 1 only where the promise of this level, or of a weaker one, is in doubt: bitwise, "
        "numeric, token, semantic; a change without a rule always counts. any: every change.",
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
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the drift as one JSON document (rip.drift/1), not as text.")
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="FILE", help="Write the drift as Markdown too; -: print it."),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the drift as HTML too; -: print it.")
]


@dataclass(frozen=True)
class DriftOptions:
    """The options above, as given."""

    fail_on: str
    ignore: list[str] | None
    as_json: bool
    markdown: Path | None
    html: Path | None
    force: bool

    def are_given(self) -> bool:
        """Whether any of them asks for something."""
        asked = (self.ignore, self.as_json, self.markdown, self.html)
        return self.fail_on != ANY or any(asked)

    def check(self, inputs: Iterable[Path | None], output: Path | None = None) -> None:
        """Say before any work what cannot be done.

        Args:
            inputs: Files that are read, which no report may replace.
            output: Another file that is written, or `-`.

        Raises:
            BadInput: No such level, two documents for standard output, or two uses of one file.
            OutputFailed: A report cannot be written.
        """
        from ..schemas.claim import LEVELS
        from .console import check_output_file

        if self.fail_on not in (ANY, *LEVELS):
            raise BadInput(
                f"--fail-on {self.fail_on}: no such level", f"choose one of: {', '.join((ANY, *LEVELS))}"
            )
        written = {"-o": output, "--markdown": self.markdown, "--html": self.html}
        printed = ["--json"] if self.as_json else []
        printed += [f"{name} -" for name, path in written.items() if path == STDOUT]
        if len(printed) > 1:
            raise BadInput(f"{printed[0]} and {printed[1]} both print", f"give {printed[1][:-2]} a file")
        files = {name: path for name, path in written.items() if path is not None and path != STDOUT}
        taken = [("an input", path) for path in inputs if path is not None and path != STDOUT]
        for name, path in files.items():
            for other, known in taken:
                if _is_same_file(path, known):
                    raise BadInput(f"{name} {path} is also {other}", "choose another name: it would be lost")
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
    """Compare, show and write as the options say.

    Args:
        base: The earlier fingerprint.
        now: The present one.
        names: What to call them in a report.
        options: As given.
        console: Where the changes are shown to a person.

    Returns:
        The exit code.

    Raises:
        NothingCompared: The two have no field in common.
    """
    from ..fingerprint.drift.compare import compare, failing, without_field
    from ..fingerprint.present.drift_report import to_html, to_markdown
    from ..fingerprint.present.drift_sentences import permission_note
    from ..schemas.claim import LEVELS
    from ..schemas.files import write_private
    from .console import printable

    found = compare(base, now, options.ignore or ())
    if not found.compared:
        raise NothingCompared(
            f"{names[0]} and {names[1]} have no field in common",
            "compare with one that has more fields, such as what `rip fingerprint -o FILE` records",
        )
    for pattern in without_field(base, now, options.ignore or ()):
        print(
            f"note: --ignore {printable(pattern) or repr(pattern)} matched no field (section.field)",
            file=sys.stderr,
        )
    if note := permission_note(base, now, names):
        print(f"note: {printable(note)}", file=sys.stderr)
    level = next((level for level in LEVELS if level == options.fail_on), None)
    counted = failing(found.changes, level)
    if options.as_json:
        print(found.to_json(), end="")
    elif options.markdown == STDOUT:
        print(to_markdown(found, base, now, names), end="")
    elif options.html == STDOUT:
        print(to_html(found, base, now, names), end="")
    else:
        print_drift(console, found)
        if found.changes and not counted:
            console.print(f"None of them counts for --fail-on {options.fail_on}.")
    for path, render in ((options.markdown, to_markdown), (options.html, to_html)):
        if path is not None and path != STDOUT:
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
            _say(console, f"{row.name}: {row.before} → {row.after}", f"[{group.risk}]", "bold")
            _say(console, f"  why: {row.why}")
        for advice, fields in group.replays:
            _say(console, f"  to know: {advice}", f"({list_fields(fields)})" if len(group.rows) > 1 else "")
        console.print()
    _say(console, headline(found) + (f". {CLOSING}" if found.changes else ""))
    for note in list_notes(found):
        _say(console, f"note: {note}")


def _say(console: Console, text: str, remark: str = "", style: str = "") -> None:
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
