"""A drift for people who were not there: Markdown for a ticket, and one self-contained HTML file."""

from __future__ import annotations

import re
from pathlib import Path
from string import punctuation
from typing import TYPE_CHECKING

from ...schemas.errors import MissingPackage
from .drift_sentences import describe_drift, list_fields

if TYPE_CHECKING:
    import jinja2

    from ...schemas.change import Drift
    from ...schemas.fingerprint import Fingerprint


TEMPLATES = Path(__file__).parent / "templates"
_BREAKS = re.compile(r"(?<=[._])(?=[^._])")
"""Where the name of a field may go on in the next line: after its dots and underscores."""
_MARKUP = frozenset(punctuation) - frozenset(".,:;()/-=%?'\"+")
"""Punctuation that Markdown or HTML may read as markup inside a table cell. The rest stays readable."""


def to_markdown(found: Drift, base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> str:
    """The drift as Markdown, for a ticket, a pull request or a CI summary.

    Args:
        found: Of `base` and `now`.
        base: The earlier one.
        now: The present one.
        names: What to call them, for example their file names.

    Raises:
        MissingPackage: jinja2 is not installed.
    """
    report = describe_drift(found, base, now, names)
    return _environment().get_template("drift.md").render(report=report)


def to_html(found: Drift, base: Fingerprint, now: Fingerprint, names: tuple[str, str]) -> str:
    """The same as one HTML file that loads nothing and runs nothing. As `to_markdown`."""
    css = (TEMPLATES / "drift.css").read_text("utf-8")
    report = describe_drift(found, base, now, names)
    return _environment().get_template("drift.html").render(report=report, css=css)


def _environment() -> jinja2.Environment:
    try:
        import jinja2
        import markupsafe
    except ModuleNotFoundError:
        raise MissingPackage(
            "a report needs the package jinja2", "pip install 'rip-forensics[report]', or use --json"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "breakable": lambda name: markupsafe.Markup("<wbr>").join(_BREAKS.split(name)),
        "md": _escape_markdown,
        "fields": list_fields,
    }
    return environment


def _escape_markdown(text: str, code: bool = False) -> str:
    """Text that Markdown shows as it is: every punctuation mark escaped, on one line.

    Args:
        text: Anything.
        code: Keep the backticks that rip's own advice puts around commands.
    """
    one_line = " ".join(text.split())
    parts = one_line.split("`") if code else [one_line]
    return "".join(f"`{part}`" if index % 2 else _escape(part) for index, part in enumerate(parts))


def _escape(text: str) -> str:
    return "".join(f"\\{character}" if character in _MARKUP else character for character in text)
