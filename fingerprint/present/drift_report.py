"""A drift for people who were not there: Markdown for a ticket, and one self-contained HTML file."""

from __future__ import annotations

import re
from pathlib import Path
from string import punctuation
from typing import TYPE_CHECKING, Any

from ...schemas.errors import MissingPackage
from ...schemas.fingerprint import Fingerprint
from ..libraries.findings import CopyName, LibraryFinding
from ..model.weights import HEADER
from ..remote.client import KEY_FIX, WANTS_KEY
from .drift_sentences import CLAIMED, describe_drift, list_fields

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


LIBRARY_SENTENCES = {
    "replaced since loaded": "{label} was replaced on disk since it was loaded: "
    "a restart will load another file or none",
    "deleted since loaded": "{label} was deleted from disk since it was loaded: "
    "a restart will load another file or none",
    "not as installed": "{label} is not the file that {package} installed",
    "several loaded": "{builds} different copies of {family} are loaded at once: {copies}",
    "loaded from elsewhere": "{family} is loaded from {loaded}, not from the installed {installed}",
    "pin not met": "torch asks for {package} {required}, but {installed} is installed",
    "processes differ": "the processes have loaded {builds} different copies of {name}",
}
"""Kind of finding → sentence. They are values of `libraries.warnings`: a new wording reads as a change."""
_SHOWN_TENSORS = 5
"""Of those that are not where the index promises them."""
_BUILD_DIGITS = 12


def describe_library(finding: LibraryFinding) -> str:
    """One sentence without a full stop."""
    return LIBRARY_SENTENCES[finding.kind].format(
        **{name: _in_sentence(value) for name, value in finding.data.items()}
    )


def _in_sentence(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(sorted(map(_in_sentence, value)))
    if isinstance(value, CopyName):
        build = f"build {value.build_id[:_BUILD_DIGITS]}" if value.build_id else "of unknown version"
        return f"{value.label} ({value.version or build})"
    return str(value)


def clock_warning(read: Fingerprint) -> str | None:
    """That a chat template reads the time; None where none does."""
    template = read.sections.get("template")
    found = template.volatile.get("reads_clock") if template is not None else None
    if found is None or not isinstance(found.value, list):
        return None
    return (
        f"the chat template ({', '.join(map(str, found.value))}) reads the clock (strftime_now): "
        "the same messages become another prompt at another time; replay by token ids"
    )


def list_warnings(read: Fingerprint) -> list[str]:
    """What a person should hear at once: damage, contradictions, what ended meanwhile, mixed libraries.

    None where everything that was asked for could be read and fits together.
    """
    warnings: list[str] = []
    layout = read.get("model", "layout_sha256")
    if layout is not None and layout.unavailable is not None and layout.source == HEADER:
        warnings.append(f"weights: {layout.unavailable}")
    if read.is_claimed:
        warnings.append(f"no weight was read: {CLAIMED}")
    contradicted = read.get("model", "contradicted_claims")
    if contradicted is not None and contradicted.value:
        names = ", ".join(sorted(contradicted.value))
        warnings.append(f"{names}: the bytes are not those that the cache names; overwritten or damaged")
    if clock := clock_warning(read):
        warnings.append(clock)
    misplaced = read.get("model", "contradicted_index")
    if misplaced is not None and isinstance(misplaced.value, dict):
        for tensor, place in list(misplaced.value.items())[:_SHOWN_TENSORS]:
            warnings.append(
                f"the index promises {tensor} in {place['promised']}, which lacks it; found: {place['found']}"
            )
        if len(misplaced.value) > _SHOWN_TENSORS:
            warnings.append(f"… and {len(misplaced.value) - _SHOWN_TENSORS} more tensors that are misplaced")
    model = read.sections.get("model")
    if model is not None and "unfinished_downloads" in model.volatile:
        warnings.append("the model's folder holds unfinished downloads")
    ended = read.get("process", "read_whole")
    if ended is not None and ended.unavailable is not None:
        warnings.append(ended.unavailable)
    replica = read.sections.get("replica")
    refused = replica.volatile.get("refused") if replica is not None else None
    if refused is not None and isinstance(refused.value, dict) and refused.value:
        paths, reason = sorted(refused.value), next(iter(refused.value.values()))
        fix = f": {KEY_FIX}" if reason == WANTS_KEY else ""
        warnings.append(f"the server refuses {', '.join(paths)}: {reason}{fix}")
    libraries = read.get("libraries", "warnings")
    if libraries is not None and isinstance(libraries.value, list):
        warnings += map(str, libraries.value)
    return warnings
