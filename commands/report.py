"""`rip report`: the postmortem of a comparison, as one HTML file or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..schemas.errors import BadInput
from ..schemas.files import check_output_file
from .console import print_sentence, stderr_console

EXAMPLES = """\b
Examples:
  rip report result
  rip report result -o postmortem.html --title "Replica 7 answers differently since Tuesday"
  rip report result -o postmortem.md
"""
FORMATS: dict[str, Literal["html", "markdown"]] = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
}


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="RESULT_DIR", help="The folder that rip diverge wrote with -o.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE.html|FILE.md", help="The file to write. [default: RESULT_DIR.html]"
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Title of the report. [default: the verdict's headline]"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file; of a link, its target.")
    ] = False,
) -> None:
    """Write the postmortem of a comparison: what differs, since when, why, and what proves it.

    One self-contained file that works offline and prints to PDF, or Markdown for a ticket or a pull request.
    Token text, times and settings come from the two traces, as long as they exist; without them the report
    holds what the folder holds, and says so.
    """
    from ..diverge.present.report.build import write_report

    out = out or _default_output(folder)
    form = FORMATS.get(out.suffix.lower())
    if form is None:
        raise BadInput(f"{out}: the file name ends neither in .html nor in .md", "end it in .html or .md")
    check_output_file(out, force)
    console = stderr_console()
    for sentence in write_report(folder, out, form=form, title=title):
        print_sentence(console, f"note: {sentence}")
    print_sentence(console, f"Wrote {out}")


def _default_output(folder: Path) -> Path:
    """`results/diverge` → `results/diverge.html`."""
    source = folder if folder.name not in ("", "..") else folder.resolve()
    return source.with_name(f"{source.name}.html")
