"""`rip drift`: what changed between two fingerprints, and which level each change puts at risk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput
from .exit_codes import EXIT_FAILS

if TYPE_CHECKING:
    from rich.console import Console

    from ..schemas.change import Drift
    from ..schemas.fingerprint import Fingerprint


_WIDTH_WITHOUT_TERMINAL = 160


def drift(
    base: Annotated[Path, typer.Argument(metavar="BASE.json", help="The fingerprint to compare with.")],
    now: Annotated[Path, typer.Argument(metavar="NOW.json", help="The fingerprint that may have changed.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (rip.drift/1) instead of a table.")
    ] = False,
) -> None:
    """Compare two fingerprints: each change, the level it puts at risk, and the rule that says so.

    Exit code 0: no change. 1: something changed. A rule names the level at risk; whether it was lost is
    known only after a replay.

    Example: rip drift monday.json tuesday.json
    """
    from ..fingerprint.drift import compare

    found = compare(load_fingerprint(base), load_fingerprint(now))
    if as_json:
        print(found.to_json(), end="")
    else:
        from rich.console import Console

        print_drift(Console(highlight=False), found)
    if found.changes:
        raise typer.Exit(EXIT_FAILS)


def load_fingerprint(path: Path) -> Fingerprint:
    """Read a fingerprint document.

    Raises:
        BadInput: Unreadable, not a fingerprint, or written by a newer rip.
    """
    from ..schemas.fingerprint import Fingerprint

    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} could not be read: {error.strerror}", "give a file that rip fingerprint -o wrote"
        ) from None
    return Fingerprint.from_json(content, str(path))


def print_drift(console: Console, found: Drift) -> None:
    """The changes as a table, and in words what they amount to."""
    from rich.table import Table
    from rich.text import Text

    from ..fingerprint.drift import describe

    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    if found.changes:
        table = Table("field", "before", "after", "at risk", "why", box=None, pad_edge=False)
        for change in found.changes:
            cells = (f"{change.section}.{change.field}", *describe(change), change.risk or "-", change.rule)
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
        console.print(table)
    count = len(found.changes)
    said = "no change" if count == 0 else "1 change" if count == 1 else f"{count} changes"
    console.print(said if count == 0 else f"{said}. Which levels still hold is known after a replay.")
    for line in found.source_changes:
        console.print(Text(f"note: same value from another source: {line}"))
