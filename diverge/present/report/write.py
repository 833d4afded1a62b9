"""`write_report`: the postmortem of a result folder, as one HTML file or as Markdown.

Both forms show the same document (model.py), which is built once (build.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ....schemas.files import write_private
from ...result.read_verdict import read_verdict
from .build import build
from .sources import find_sources

if TYPE_CHECKING:
    from pathlib import Path

    from .sources import Place, Source

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
        out: The file to write; replaced if it exists. Of a link what it leads to.
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
    place, sources = find_sources(read_verdict(folder), folder, a, b)
    text = render(folder, place, sources, form, title)
    write_private(out, text.encode("utf-8", "backslashreplace"))  # it holds prompts
    return [source.missing for source in sources if source.missing]


def render(
    folder: Path,
    place: Place,
    sources: tuple[Source, Source],
    form: Form = "html",
    title: str | None = None,
) -> str:
    """The postmortem as text. Raises as `write_report`."""
    if form == "markdown":
        from .markdown import to_markdown

        return to_markdown(build(folder, place, sources, title))
    from .html import check_packages, to_html

    check_packages()
    return to_html(build(folder, place, sources, title))
