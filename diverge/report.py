"""`write_report`: one self-contained HTML file that shows what `rip diverge` found.

It assembles what the report_* modules read, lay out and say, and renders the templates. The file loads
nothing, runs no script but its own (a Content-Security-Policy names that script's hash), and is escaped
throughout: request ids, token text and settings are data from strangers.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import MissingPackage, OutputFailed
from . import agreement_words
from . import report_words as words
from .load import read_header
from .report_data import ResultData
from .report_drift import draw_drift
from .report_plot import draw_margins
from .views import open_views

if TYPE_CHECKING:
    import jinja2

    from ..schemas.trace import TraceHeader
    from .report_data import Candidate, Pair, TokenRow
    from .report_drift import Drift
    from .report_plot import Plot

TEMPLATES = Path(__file__).parent / "templates"

# Bounds that keep the file below about 3 MB whatever the traces hold.
MAX_PAIRS_LISTED = 400
MAX_PAIRS_SHOWN = 6
MAX_SITES_LISTED = 1000
PROMPT_TOKENS = 400
TOKENS_BEFORE = 160
"""Generated tokens shown before the divergence; earlier ones are folded."""
TOKENS_AFTER = 200
TOKENS_EQUAL = 600
"""Generated tokens shown where all are equal."""
FOLDED_TOKENS = 800
MARGIN_BINS = 400
CANDIDATES = 8
"""Candidates shown at the divergence; less likely ones are folded."""
MAX_CHANGES = 200


@dataclass(frozen=True)
class Token:
    """One token of one side as it is shown."""

    position: int
    pieces: list[tuple[bool, str]]
    kind: str
    """Empty, `first` (the divergent one) or `other` (differs, later)."""


@dataclass(frozen=True)
class SideText:
    """One side's output in the stretches that are shown."""

    folded: list[Token]
    shown: list[Token]
    ends: bool
    """The output ends at the divergence."""


@dataclass(frozen=True)
class PairView:
    """Everything that is shown of one pair."""

    pair: Pair
    name: str
    prompt: list[Token]
    prompt_left_out: int
    a: SideText
    b: SideText
    before_left_out: int
    after_left_out: int
    candidates: list[tuple[Candidate, list[tuple[bool, str]]]]
    more_candidates: list[tuple[Candidate, list[tuple[bool, str]]]]
    """Folded."""
    largest_logprob: float
    plot: Plot | None
    drift: Drift | None
    data: dict[str, Any]


def write_report(folder: Path, html: Path, a: Path | None = None, b: Path | None = None) -> None:
    """Write the report of a result folder.

    Args:
        folder: What `rip diverge` wrote.
        html: The file to write; replaced if it exists.
        a: Trace A, for token text and settings. None: token ids stand for the text.
        b: Trace B, likewise.

    Raises:
        BadInput: The folder or a trace cannot be read.
        MissingPackage: jinja2 is not installed.
        OutputFailed: The file cannot be written.
    """
    text = render(folder, None if a is None else read_header(a), None if b is None else read_header(b))
    unfinished = html.with_name(f".{html.name}.unfinished")
    try:
        unfinished.touch(mode=0o600)  # it holds prompts
        unfinished.write_bytes(text.encode("utf-8", "backslashreplace"))
        unfinished.replace(html)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OutputFailed(
            f"{html} could not be written: {error.strerror}", "free space or choose another place"
        ) from None


def render(folder: Path, header_a: TraceHeader | None, header_b: TraceHeader | None) -> str:
    """The report as text. Raises as `write_report`."""
    environment = _environment()
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    with ExitStack() as stack:
        data = ResultData(folder, stack.enter_context(open_views(folder)))
        pairs = data.pairs(MAX_PAIRS_LISTED)
        texts = tuple(_token_text(header) for header in (header_a, header_b))
        shown = [pair for pair in pairs if pair.first_position is not None or pair.rows_differing]
        views = [
            _pair_view(data, pair, texts, with_sites=index == 0)
            for index, pair in enumerate((shown or pairs)[:MAX_PAIRS_SHOWN])
        ]
        verdict = data.verdict
        return environment.get_template("report.html").render(
            style=style,
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            verdict=verdict,
            folder=folder,
            headline=words.headline(verdict),
            second_line=words.second_line(verdict),
            logprob_line=words.logprob_line(verdict),
            kind=words.difference_kind(verdict),
            text_sides=None if verdict.first_text is None else agreement_words.text_sides(verdict.first_text),
            agreement=None
            if verdict.agreement is None
            else agreement_words.agreement_rows(verdict.agreement),
            unique_line=None if verdict.agreement is None else agreement_words.unique_line(verdict.agreement),
            close_call=None if verdict.first_token is None else words.close_call(verdict.first_token),
            facts=words.facts(verdict, header_a, header_b),
            expected_to_differ=words.EXPECTED_TO_DIFFER,
            largest=verdict.max_abs_logit_diff
            if verdict.max_abs_logit_diff is not None
            else verdict.max_abs_logprob_diff,
            findings=[*_findings("A", header_a), *_findings("B", header_b)],
            pairs=pairs,
            pair_count=data.pair_count(),
            views=views,
            sites=data.sites[:MAX_SITES_LISTED],
            site_count=len(data.sites),
            drift_max=max((site.drift_max or 0 for site in data.sites), default=0),
            changes=data.changes()[:MAX_CHANGES],
            has_text=any(texts) or verdict.first_text is not None,
            max_requests=MAX_PAIRS_LISTED,
        )


def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ModuleNotFoundError:
        raise MissingPackage("the HTML report needs jinja2", "pip install 'rip-forensics[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "drift": words.drift,
        "number": words.number,
        "logit": words.logit,
        "count": words.count,
        "percent": words.percent,
        "plain": words.plain,
        "shell": words.shell,
        "plural": words.plural,
        "pieces": words.pieces,
    }
    environment.globals["site_label"] = words.site_label
    environment.globals["request_name"] = words.request_name
    return environment


def _token_text(header: TraceHeader | None) -> dict[str, str]:
    return header.token_text if header is not None else {}


def _findings(side: str, header: TraceHeader | None) -> list[str]:
    return [f"{side}: {finding}" for finding in (header.findings if header is not None else [])]


def _pair_view(data: ResultData, pair: Pair, texts: tuple[dict[str, str], ...], with_sites: bool) -> PairView:
    parts_at = pair.first_position
    start = pair.prompt if parts_at is None or parts_at >= pair.prompt else 0
    middle, stop = start, start + TOKENS_EQUAL
    if parts_at is not None:
        middle, stop = max(start, parts_at - TOKENS_BEFORE), parts_at + TOKENS_AFTER
    stop = min(pair.positions, stop)
    folded_from = max(start, middle - FOLDED_TOKENS)
    prompt_from = max(0, start - PROMPT_TOKENS)
    rows = data.tokens(pair.pair, min(prompt_from, folded_from), stop)
    prompt = [row for row in rows if prompt_from <= row.position < start]
    folded = [row for row in rows if folded_from <= row.position < middle]
    shown = [row for row in rows if middle <= row.position]
    candidates = data.candidates(pair)
    described = [(item, _pieces(item.token_id, {**texts[1], **texts[0]})) for item in candidates]
    logprobs = [value for item in candidates for value in (item.logprob_a, item.logprob_b)]
    plot = draw_margins(f"margins-{pair.pair}", data.margins(pair.pair, MARGIN_BINS), pair.first_step)
    drift = draw_drift(data, pair, with_sites)
    maps = [] if drift is None else [drift.layers, drift.sites, drift.depth]
    return PairView(
        pair=pair,
        name=words.request_name(pair.request_id, pair.sample),
        prompt=[token for row in prompt if (token := _token(row, row.token_a, texts[0], parts_at))],
        prompt_left_out=prompt_from,
        a=_side(folded, shown, "a", texts[0], parts_at),
        b=_side(folded, shown, "b", texts[1], parts_at),
        before_left_out=folded_from - start,
        after_left_out=pair.positions - stop,
        candidates=described[:CANDIDATES],
        more_candidates=described[CANDIDATES:],
        largest_logprob=max((value for value in logprobs if value is not None), default=0.0),
        plot=plot,
        drift=drift,
        data={
            "tokens": _token_data(rows),
            "plot": None if plot is None else {"id": plot.id, **plot.data},
            "maps": [{"id": item.id, **item.data} for item in maps if item is not None],
            "sites": [site.label for site in data.sites] if drift is not None else [],
        },
    )


def _side(
    folded: list[TokenRow], shown: list[TokenRow], side: str, texts: dict[str, str], parts_at: int | None
) -> SideText:
    def tokens(rows: list[TokenRow]) -> list[Token]:
        ids = ((row, row.token_a if side == "a" else row.token_b) for row in rows)
        return [token for row, token_id in ids if (token := _token(row, token_id, texts, parts_at))]

    at = next((row for row in shown if row.position == parts_at), None)
    missing = at is not None and (at.token_a if side == "a" else at.token_b) is None
    return SideText(tokens(folded), tokens(shown), missing)


def _token(row: TokenRow, token_id: int | None, texts: dict[str, str], parts_at: int | None) -> Token | None:
    if token_id is None:
        return None
    first = row.position == parts_at
    kind = "first" if first else "" if row.equal else "other"
    return Token(row.position, _pieces(token_id, texts, spaces=first), kind)


def _pieces(token_id: int, texts: dict[str, str], spaces: bool = True) -> list[tuple[bool, str]]:
    text = texts.get(str(token_id))
    if text is None:
        return [(True, f"⟨{token_id}⟩")]
    return words.pieces(text, spaces) or [(True, "∅")]


def _token_data(rows: list[TokenRow]) -> dict[str, Any]:
    """For hovering: a list per field, a place per position from `first` on, texts as they are shown."""
    return {
        "first": rows[0].position if rows else 0,
        "step": [row.step for row in rows],
        "ida": [row.token_a for row in rows],
        "idb": [row.token_b for row in rows],
        "pa": [None if row.logprob_a is None else words.percent(row.logprob_a) for row in rows],
        "pb": [None if row.logprob_b is None else words.percent(row.logprob_b) for row in rows],
        "ma": [None if row.margin_a is None else words.number(row.margin_a) for row in rows],
        "mb": [None if row.margin_b is None else words.number(row.margin_b) for row in rows],
        "d": [None if row.drift is None else words.number(row.drift) for row in rows],
    }
