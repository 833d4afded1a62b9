"""Builds the document of a report from a result folder and the two traces, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ....schemas.errors import BadInput, MissingPackage
from ....schemas.files import write_private
from ....schemas.findings.unseen import Note
from ...result_folder import REPEAT_DIVERGE, read_verdict
from ...views.open_views import first_line, open_views
from .. import format, sequence_sentences, verdict_sentences
from ..findings.labels import label
from ..findings.sentences import sentence
from ..first_screen.compose import Scene, first_screen
from ..first_screen.places import site_course
from ..prompt_words import prompt_words
from .appendix import appendix, proofs
from .document import Postmortem
from .environment import where_it_ran
from .environment_changes import group_by_rule
from .pair import view_pair
from .pair_sentences import glossary, how_much_compared
from .patterns import patterns
from .reading.result import ResultData
from .reading.traces import find_sources
from .rendering import to_html, to_markdown
from .summary import compared_runs
from .timeline import timeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ....schemas.verdict import Verdict
    from ..first_screen.screen import FirstScreen
    from .document import Event, PairView
    from .environment import WhereItRan
    from .reading.rows import Pair
    from .reading.traces import ReportPaths, Source


# Bounds that keep the page below about 3 MB whatever the traces hold.
MAX_PAIRS_LISTED = 400
MAX_PAIRS_SHOWN = 6
MAX_SITES_LISTED = 1000
MAX_CHANGES = 200


def build(
    folder: Path, paths: ReportPaths, sources: tuple[Source, Source], title: str | None = None
) -> Postmortem:
    """Read a result folder into the document that both renderers show.

    Args:
        folder: What `rip diverge` wrote.
        paths: Where the document's commands run.
        sources: Its two traces, as far as they are there.
        title: Instead of the headline.

    Raises:
        BadInput: The folder cannot be read.
    """
    import duckdb

    try:
        with open_views(folder) as views:
            return _read(ResultData(folder, views), paths, sources, title)
    except duckdb.Error as error:  # DuckDB reads a file only when its rows are queried
        raise BadInput(f"{folder}: a table cannot be read: {first_line(error)}", REPEAT_DIVERGE) from None


def _read(
    data: ResultData, paths: ReportPaths, sources: tuple[Source, Source], title: str | None
) -> Postmortem:
    verdict = data.verdict
    pairs, pair_count = data.pairs(MAX_PAIRS_LISTED), data.pair_count()
    differing = [pair for pair in pairs if pair.first_position is not None or pair.rows_differing]
    shown = (differing or pairs)[:MAX_PAIRS_SHOWN]
    views = [view_pair(data, pair, sources, with_sites=index == 0) for index, pair in enumerate(shown)]
    environment = where_it_ran(sources)
    left_out = _left_out(data, pairs, views, len(differing)) + _settings_left_out(environment)
    experiments = proofs(verdict)
    headers = sources[0].header, sources[1].header
    scene = Scene(paths.result, headers, site_course(data.folder), more="below", in_report=True)
    screen = first_screen(verdict, scene)
    headline = screen.headline
    events = timeline(data, views[0] if views else None, sources)
    not_seen = [*(source.missing for source in sources if source.missing), *_limits(verdict)]
    findings = _findings(sources)
    agreement, first_text = verdict.agreement, verdict.first_text
    return Postmortem(
        title=format.plain(title) if title else headline,
        headline=headline,
        screen=screen,
        runs=compared_runs(verdict, sources),
        asked={**prompt_words(sources[1].header), **prompt_words(sources[0].header)},
        glossary=glossary(_texts(verdict, screen, events, [*not_seen, *findings])),
        verdict=verdict,
        paths=paths,
        sources=sources,
        kind=verdict_sentences.difference_kind(verdict),
        facts=verdict_sentences.facts(verdict, sources[0].header, sources[1].header),
        environment=environment,
        extent=how_much_compared(verdict, data.sites, pairs),
        timeline=events,
        text_sides=None if first_text is None else sequence_sentences.text_sides(first_text),
        agreement=None if agreement is None else sequence_sentences.agreement_rows(agreement),
        unique_line=None if agreement is None else sequence_sentences.unique_line(agreement),
        proofs=experiments,
        patterns=patterns(verdict, data),
        pairs=pairs,
        pair_count=pair_count,
        first_causes=_first_causes(verdict, pairs),
        views=views,
        sites=data.sites[:MAX_SITES_LISTED],
        site_count=len(data.sites),
        rules=group_by_rule(verdict.changes, MAX_CHANGES),
        change_count=len(verdict.changes),
        not_seen=not_seen,
        findings=findings,
        appendix=appendix(verdict, paths, sources, left_out),
        has_text=any(source.token_text for source in sources) or first_text is not None,
    )


def _texts(verdict: Verdict, screen: FirstScreen, events: list[Event], notes: list[str]) -> Iterator[str]:
    """What a reader reads from the top on, for the glossary."""
    yield from (f"{row.text} {row.aside}" for row in (*screen.rows, *screen.next))
    yield from (f"{event.title} {event.detail}" for event in events)
    yield from (verdict_sentences.level_reason(level) for level in verdict.levels.values())
    for cause in verdict.causes:
        yield label(cause)
        yield from (sentence(one) for one in (*cause.evidence, *cause.missing))
    yield from notes


def _first_causes(verdict: Verdict, pairs: list[Pair]) -> dict[int, str]:
    """Pair → its first-ranked cause: as the verdict calls it, where the verdict is about that pair."""
    first = verdict.first_token
    own = {} if first is None else {cause.id: label(cause) for cause in verdict.causes}
    found = {}
    for pair in pairs:
        if pair.causes:
            name = pair.causes.split(", ")[0]
            is_own = first is not None and first.sequence == pair.sequence
            called = own.get(name) if is_own else None
            found[pair.pair] = format.plain(called or sequence_sentences.cause_label(name))
    return found


def _limits(verdict: Verdict) -> list[str]:
    """What limits the comparison; what both traces say of themselves, once."""
    found: dict[str, list[str]] = {}
    for one in verdict.not_seen:
        if isinstance(one, Note):
            found.setdefault(one.note, []).append(one.trace)
        else:
            found[sentence(one)] = []
    return [
        f"{'both traces' if len(traces) > 1 else traces[0]}: {line}" if traces else line
        for line, traces in found.items()
    ]


def _findings(sources: tuple[Source, Source]) -> list[str]:
    """What the traces say of themselves; what both say, once."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for finding in [] if source.header is None else source.header.findings:
            found.setdefault(finding, []).append(source.side)
    return [f"{' and '.join(sides)}: {finding}" for finding, sides in found.items()]


def _left_out(data: ResultData, pairs: list[Pair], views: list[PairView], differing: int) -> list[str]:
    """What the bounds of the page cut off."""
    found = []
    total, changes = data.pair_count(), len(data.verdict.changes)
    if total > len(pairs):
        found.append(f"{total - len(pairs):,} of {total:,} sequences in the list")
    if differing > len(views):
        found.append(f"outputs and plots of {differing - len(views):,} of {differing:,} differing sequences")
    for view in views:
        shown = view.outputs
        hidden = shown.prompt_left_out + shown.before_left_out + shown.after_left_out
        if hidden:
            found.append(f"{format.plural(hidden, 'token')} of {view.name}")
    if len(data.sites) > MAX_SITES_LISTED:
        found.append(f"{len(data.sites) - MAX_SITES_LISTED:,} of {len(data.sites):,} sites")
    if changes > MAX_CHANGES:
        found.append(f"{changes - MAX_CHANGES:,} of {changes:,} fingerprint changes")
    return found


def _settings_left_out(environment: WhereItRan) -> list[str]:
    hidden = environment.left_out
    return [f"{format.plural(hidden, 'setting')} of the two runs"] if hidden else []


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
