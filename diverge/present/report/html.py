"""Renders a report as one self-contained HTML page.

The page loads nothing, runs no script but its own (a Content-Security-Policy names that script's hash), and
is escaped throughout: request ids, token text and settings are data from strangers.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from .rendering import TEMPLATES, render

if TYPE_CHECKING:
    from .document import Postmortem


def to_html(document: Postmortem) -> str:
    """The page as text. It needs jinja2."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render("report.html", document, script=script, script_hash=digest)
