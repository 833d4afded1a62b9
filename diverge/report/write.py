"""`write_report`: the postmortem of a result folder, as one HTML file or as Markdown.

Both forms show the same document (model.py), which is built once (build.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...schemas.errors import BadInput, OutputFailed
from ...schemas.verdict import Verdict
from .. import tables
from .build import build
from .sources import find_source, given_source

if TYPE_CHECKING:
    from pathlib import Path

    from ...schemas.verdict import TraceRef
    from .sources import Source

Form = Literal["html", "markdown"]


def write_report(
    folder: Path,
    out: Path,
    a: Path | None = None,
    b: Path | None = None,
    *,
    form: Form = "html",
    title: str | None = None,
) -> list[str]:
    """Write the postmortem of a result folder.

    Args:
        folder: What `rip diverge` wrote.
        out: The file to write; replaced if it exists.
        a: Trace A, for token text, times and settings. None: the one that was compared, where it still lies.
        b: Trace B, likewise.
        form: `html` or `markdown`.
        title: Instead of the headline.

    Returns:
        What could not be read, in sentences.

    Raises:
        BadInput: The folder or a trace cannot be read.
        MissingPackage: jinja2, which the HTML form needs, is not installed.
        OutputFailed: The file cannot be written.
    """
    verdict = _verdict(folder)
    sources = _source("A", a, verdict.a, folder), _source("B", b, verdict.b, folder)
    text = render(folder, sources, form, title)
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        unfinished.touch(mode=0o600)  # it holds prompts
        unfinished.write_bytes(text.encode("utf-8", "backslashreplace"))
        unfinished.replace(out)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OutputFailed(
            f"{out} could not be written: {error.strerror}", "free space or choose another place"
        ) from None
    return [source.missing for source in sources if source.missing]


def render(
    folder: Path, sources: tuple[Source, Source], form: Form = "html", title: str | None = None
) -> str:
    """The postmortem as text. Raises as `write_report`."""
    if form == "markdown":
        from .markdown import to_markdown

        return to_markdown(build(folder, sources, title))
    from .html import check_packages, to_html

    check_packages()
    return to_html(build(folder, sources, title))


def _verdict(folder: Path) -> Verdict:
    summary = folder / tables.SUMMARY_FILE
    try:
        return Verdict.from_json(summary.read_bytes(), str(summary))
    except OSError as error:
        raise BadInput(
            f"{folder} is not a result of rip diverge: {summary.name}: {error.strerror}",
            "give the folder that rip diverge wrote with -o",
        ) from None


def _source(side: str, path: Path | None, reference: TraceRef, folder: Path) -> Source:
    return find_source(side, reference, folder) if path is None else given_source(side, path)
