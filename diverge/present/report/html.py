"""Renders a postmortem as one self-contained HTML page.

The page loads nothing, runs no script but its own (a Content-Security-Policy names that script's hash), and
is escaped throughout: request ids, token text and settings are data from strangers.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ....schemas.errors import MissingPackage
from .. import format, verdict
from ..findings import interpretation, labels, sentence
from . import pair_words
from .compared import AGREEMENT, counted
from .timeline import COUNTED

if TYPE_CHECKING:
    import jinja2

    from .model import Postmortem

TEMPLATES = Path(__file__).parent / "templates"

MAX_REQUESTS = 400
"""Requests listed under Agreement."""


def to_html(document: Postmortem) -> str:
    """The page as text. It needs jinja2: see `check_packages`."""
    environment = _environment()
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(
        document=document,
        verdict=document.verdict,
        kind=document.kind,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        expected_to_differ=verdict.EXPECTED_TO_DIFFER,
        header_names=[name for name, _, _ in document.appendix.identities if "header" in name],
        max_requests=MAX_REQUESTS,
        how_counted=COUNTED,
        about_agreement=AGREEMENT,
        level_words=verdict.LEVEL_WORDS,
    )


def check_packages() -> None:
    """Check, before the work, that the page can be rendered.

    Raises:
        MissingPackage: jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError:
        raise MissingPackage(
            "the HTML report needs jinja2",
            "pip install 'rip-forensics[report]', or write Markdown: rip report DIR -o FILE.md",
        ) from None


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "drift_cell": format.drift_cell,
        "does": format.does,
        "moment": format.moment,
        "number": format.number,
        "logit": format.logit,
        "count": format.count,
        "percent": format.percent,
        "bar": format.bar,
        "plain": format.plain,
        "shell": format.shell,
        "plural": format.plural,
        "pieces": format.pieces,
        "is_cut": verdict.is_cut,
        "level_note": verdict.level_note,
        "counted": counted,
        "candidates_place": pair_words.candidates_place,
        "candidates_told": pair_words.candidates_told,
        "close_steps_title": pair_words.close_steps_title,
        "margin_line": pair_words.margin_line,
        "no_drift_line": pair_words.no_drift_line,
        "first_cause": pair_words.first_cause,
        "sentence": sentence.sentence,
        "where": sentence.where,
        "why": sentence.why,
        "label": labels.label,
        "how_to_read": interpretation.how_to_read,
    }
    environment.globals["site_label"] = format.site_label
    environment.globals["request_name"] = format.request_name
    return environment
