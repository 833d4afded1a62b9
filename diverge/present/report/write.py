"""`write_report`: the report of a result folder, as one HTML file or as Markdown.

Both forms are templates over the same document (document.py), which is built once (build.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ....schemas.errors import MissingPackage
from ....schemas.files import write_private
from ...result.read_verdict import read_verdict
from .build import build
from .html import to_html
from .markdown import to_markdown
from .reading.traces import find_sources

if TYPE_CHECKING:
    from pathlib import Path

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
        MissingPackage: jinja2 is not installed.
        OutputFailed: The file cannot be written.
    """
    check_packages()
    paths, sources = find_sources(read_verdict(folder), folder, a, b)
    document = build(folder, paths, sources, title)
    text = to_markdown(document) if form == "markdown" else to_html(document)
    write_private(out, text.encode("utf-8", "backslashreplace"))  # it holds prompts
    return [source.missing for source in sources if source.missing]


def check_packages() -> None:
    """Check, before the work, that a report can be rendered.

    Raises:
        MissingPackage: jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError:
        raise MissingPackage("a report needs jinja2", "pip install 'rip-forensics[report]'") from None
