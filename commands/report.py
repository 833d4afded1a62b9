"""`rip report`: the postmortem of a comparison, as one HTML file or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import BadInput

FORMS = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="RESULT_DIR", help="The folder that rip diverge wrote with -o.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE.html|FILE.md", help="Where it goes. [default: RESULT_DIR.html]"
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Instead of the verdict's headline.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file; of a link, what it leads to.")
    ] = False,
) -> None:
    """Write the postmortem of a comparison: what differs, since when, why, and what proves it.

    One self-contained file that works offline and prints to PDF, or Markdown for a ticket or a pull request.
    Token text, times and settings come from the two traces where they still lie; without them the report
    holds what the folder holds, and says so.

    \b
    Examples:
      rip report result
      rip report result -o postmortem.html --title "Replica 7 answers differently since Tuesday"
      rip report result -o postmortem.md
    """
    from ..diverge.present.report.write import write_report
    from .console import check_output_file, stderr_console, tell

    out = out or _beside(folder)
    form = FORMS.get(out.suffix.lower())
    if form is None:
        raise BadInput(f"{out}: the ending says neither HTML nor Markdown", "end the name in .html or .md")
    check_output_file(out, force)
    console = stderr_console()
    for sentence in write_report(folder, out, form="html" if form == "html" else "markdown", title=title):
        tell(console, f"note: {sentence}")
    tell(console, f"Wrote {out}")


def _beside(folder: Path) -> Path:
    """`results/diverge` → `results/diverge.html`."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.html")
