"""Builds a postmortem from a result folder and the two traces, where they are, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....schemas.errors import BadInput
from ...result.read_verdict import REPEAT_DIVERGE
from ...views.catalog import first_line, open_views
from .. import agreement as agreement_sentences
from .. import format
from .. import verdict as verdict_sentences
from .appendix import appendix
from .data import ResultData
from .environment import where_it_ran
from .glossary import glossary
from .model import Postmortem
from .pair import view_pair
from .patterns import patterns
from .proofs import proofs
from .rules import group_by_rule
from .summary import next_step, summarise
from .timeline import timeline

if TYPE_CHECKING:
    from ....schemas.verdict import Verdict
    from .environment import WhereItRan
    from .model import PairView
    from .rows import Pair
    from .sources import Place, Source

# Bounds that keep the page below about 3 MB whatever the traces hold.
MAX_PAIRS_LISTED = 400
MAX_PAIRS_SHOWN = 6
MAX_SITES_LISTED = 1000
MAX_CHANGES = 200


def build(folder: Path, place: Place, sources: tuple[Source, Source], title: str | None = None) -> Postmortem:
    """Read a result folder into the document that both renderers show.

    Args:
        folder: What `rip diverge` wrote.
        place: Where the document's commands run.
        sources: Its two traces, as far as they are there.
        title: Instead of the headline.

    Raises:
        BadInput: The folder cannot be read.
    """
    import duckdb

    try:
        with open_views(folder) as views:
            return _read(ResultData(folder, views), place, sources, title)
    except duckdb.Error as error:  # DuckDB reads a file only when it is asked for its rows
        raise BadInput(f"{folder}: a table cannot be read: {first_line(error)}", REPEAT_DIVERGE) from None


def _read(data: ResultData, place: Place, sources: tuple[Source, Source], title: str | None) -> Postmortem:
    verdict = data.verdict
    pairs = data.pairs(MAX_PAIRS_LISTED)
    pair_count = data.pair_count()
    moved = [pair for pair in pairs if pair.first_position is not None or pair.rows_differing]
    shown = (moved or pairs)[:MAX_PAIRS_SHOWN]
    views = [view_pair(data, pair, sources, with_sites=index == 0) for index, pair in enumerate(shown)]
    shown_proofs = proofs(verdict)
    headline = verdict_sentences.headline(verdict)
    largest = verdict.max_abs_logit_diff
    agreement = verdict.agreement
    environment = where_it_ran(sources)
    summary = summarise(verdict, sources, shown_proofs, shown[0].prompt if shown else None)
    events = timeline(data, views[0] if views else None, sources)
    not_seen = [*(source.missing for source in sources if source.missing), *_joined(verdict)]
    findings = _findings(sources)
    said = [
        *(sentence.text for sentence in summary),
        *(f"{event.title} {event.detail}" for event in events),
        *(f"{level.where} {level.why}" for level in verdict.levels.values()),
        *(line for cause in verdict.causes for line in (cause.label, *cause.evidence, *cause.missing)),
        *not_seen,
        *findings,
    ]
    return Postmortem(
        title=format.plain(title) if title else headline,
        headline=headline,
        summary=summary,
        glossary=glossary(said),
        next_step=next_step(verdict, place, shown_proofs),
        verdict=verdict,
        place=place,
        sources=sources,
        kind=verdict_sentences.difference_kind(verdict),
        largest=verdict.max_abs_logprob_diff if largest is None else largest,
        facts=verdict_sentences.facts(verdict, sources[0].header, sources[1].header),
        environment=environment,
        timeline=events,
        text_sides=None if verdict.first_text is None else agreement_sentences.text_sides(verdict.first_text),
        agreement=None if agreement is None else agreement_sentences.agreement_rows(agreement),
        unique_line=None if agreement is None else agreement_sentences.unique_line(agreement),
        proofs=shown_proofs,
        patterns=patterns(verdict, data),
        pairs=pairs,
        pair_count=pair_count,
        views=views,
        sites=data.sites[:MAX_SITES_LISTED],
        site_count=len(data.sites),
        rules=group_by_rule(verdict.changes, MAX_CHANGES),
        change_count=len(verdict.changes),
        not_seen=not_seen,
        findings=findings,
        appendix=appendix(
            verdict, place, sources, _left_out(verdict, data, pairs, views, moved, environment)
        ),
        has_text=any(source.token_text for source in sources) or verdict.first_text is not None,
    )


def _joined(verdict: Verdict) -> list[str]:
    """What was not seen; what is so of both traces is said once."""
    names = [Path(reference.path).name for reference in (verdict.a, verdict.b)]
    found: dict[str, list[str]] = {}
    for line in verdict.not_seen:
        name = next((one for one in dict.fromkeys(names) if line.startswith(f"{one}: ")), "")
        found.setdefault(line.removeprefix(f"{name}: ") if name else line, []).append(name)
    return [
        f"both traces: {line}" if len(of) > 1 else f"{of[0]}: {line}" if of[0] else line
        for line, of in found.items()
    ]


def _findings(sources: tuple[Source, Source]) -> list[str]:
    """What the traces say of themselves; what both say, once."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for finding in [] if source.header is None else source.header.findings:
            found.setdefault(finding, []).append(source.side)
    return [f"{' and '.join(sides)}: {finding}" for finding, sides in found.items()]


def _left_out(
    verdict: Verdict,
    data: ResultData,
    pairs: list[Pair],
    views: list[PairView],
    moved: list[Pair],
    environment: WhereItRan,
) -> list[str]:
    """What the bounds of the page cut off."""
    found = []
    total = data.pair_count()
    if total > len(pairs):
        found.append(f"{total - len(pairs):,} of {total:,} sequences in the list")
    if len(moved) > len(views):
        found.append(
            f"outputs and pictures of {len(moved) - len(views):,} of {len(moved):,} differing sequences"
        )
    for view in views:
        hidden = view.prompt_left_out + max(view.before_left_out, 0) + max(view.after_left_out, 0)
        if hidden:
            found.append(f"{format.plural(hidden, 'token')} of {view.name}")
    if len(data.sites) > MAX_SITES_LISTED:
        found.append(f"{len(data.sites) - MAX_SITES_LISTED:,} of {len(data.sites):,} sites")
    if len(verdict.changes) > MAX_CHANGES:
        found.append(
            f"{len(verdict.changes) - MAX_CHANGES:,} of {len(verdict.changes):,} fingerprint changes"
        )
    if environment.left_out:
        found.append(f"{format.plural(environment.left_out, 'setting')} of the two runs")
    return found
