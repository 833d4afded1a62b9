"""`rip diverge`: align two traces, compare them batch by batch, write the result folder, give the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..schemas.change import Change
from ..schemas.findings.rows import EqualSequences
from ..schemas.trace import TraceHeader
from ..schemas.verdict import Compared, TraceRef, Verdict
from .causes.diagnose import Compared as ComparedTraces
from .causes.diagnose import diagnose
from .causes.first_difference import first_differences, first_rows
from .causes.observe.observation import begin_where_they_ran_first
from .causes.observe.twins import rows_inside
from .causes.settings import changed_settings
from .comparison.agreement import agreement
from .comparison.batches import Progress, compare_batches
from .comparison.levels import levels, strongest
from .comparison.pairing import Pairing, pair_sequences
from .comparison.site_plan import plan_sites
from .comparison.tabulate import candidate_rows, change_rows, site_rows, site_totals
from .comparison.tally import PairState, Tally
from .comparison.token_rows import with_sites
from .comparison.unseen import not_seen
from .patterns import SequenceFacts, causes_by_sequence
from .present.findings.sentences import with_sentences
from .reading.columns import check_row_hashes
from .reading.load import Trace, open_trace
from .reference.judge import judge
from .reference.table_rows import reference_rows
from .result_folder import ResultWriter


@dataclass(frozen=True)
class Context:
    """What is known or wanted beside the two traces."""

    changes: Sequence[Change] = ()
    """Drift from A's fingerprint to B's."""
    tolerance: float | None = None
    """Largest absolute logit difference that the numeric level allows; None: as the requests' claims say, and
    `not stated` where they are silent."""
    reference: Path | None = None
    """A trace of a finer dtype with A's tokens forced, to distinguish rounding from a fault."""
    noise: Sequence[Path] = ()
    """Repeats of A's lane, to measure how far equally good runs lie apart."""


def diverge(
    a: Path,
    b: Path,
    out: Path,
    context: Context = Context(),
    progress: Progress | None = None,
    force: bool = False,
) -> Verdict:
    """Compare two traces and write the result folder.

    Args:
        a: Trace A, the base: a file or the parts of an unfinished run.
        b: Trace B.
        out: The result folder.
        context: What is known or wanted beside them.
        progress: Called with the work done.
        force: Overwrite an earlier result.

    Returns:
        The verdict, which is also the folder's `summary.json`. `first_token` is of the sequence whose
        tokens diverge at the earliest step, one side's mere end coming last. `first_site` is of the same
        sequence where one of its rows differs, else of the first one with a differing row.

    Raises:
        BadInput: A trace cannot be read.
        NothingCompared: The traces have no row and no text in common.
        OutputFailed: The result cannot be written.
    """
    trace_a, trace_b = open_trace(a), open_trace(b)
    pairing = pair_sequences(trace_a, trace_b)
    reference = None if context.reference is None else open_trace(context.reference)
    repeats = [open_trace(path) for path in context.noise]
    tolerance = _stated_tolerance(trace_a.header) if context.tolerance is None else context.tolerance
    plan = plan_sites(trace_a, trace_b)
    tally = Tally(plan, [PairState(pair) for pair in pairing.pairs], tolerance=tolerance)
    sequences = SequenceFacts(tally)
    with ThreadPoolExecutor(1) as pool, ResultWriter(out, force) as writer:
        for tokens, sites in compare_batches(pairing.pairs, trace_a, trace_b, plan, progress):
            tally.add(tokens, sites)
            sequences.add(tokens, sites)
            writer.add("tokens", with_sites(tokens, sites))
            if len(sites.row):
                writer.add("sites", site_rows(tokens, sites, plan))
        begin_where_they_ran_first(tally, trace_a, trace_b)
        checked = [pool.submit(check_row_hashes, *row) for row in first_rows(tally, trace_a, trace_b)]
        writer.add("site_totals", site_totals(tally))
        writer.add("topk", candidate_rows(tally, trace_a, trace_b))
        writer.add("changes", change_rows(context.changes))
        judged = None if reference is None else judge(pairing.pairs, trace_a, trace_b, reference, repeats)
        beside = None if judged is None else judged.verdict
        compared = ComparedTraces(
            tally,
            trace_a,
            trace_b,
            (a, b, out),
            list(context.changes),
            beside,
            (list(pairing.a.sequences.values()), list(pairing.b.sequences.values())),
            agreement(pairing),
        )
        verdict, by_sequence = _conclude(compared, pairing, sequences)
        writer.add("sequences", sequences.rows((trace_a.header, trace_b.header), by_sequence))
        if judged is not None:
            for table, rows in reference_rows(judged, sequences.prompt_lengths):
                writer.add(table, rows)
        for check in checked:
            check.result()
        writer.finish(verdict.to_json())
    return verdict


def _conclude(
    compared: ComparedTraces, pairing: Pairing, sequences: SequenceFacts
) -> tuple[Verdict, dict[int, list[str]]]:
    """The verdict with its sentences, and the causes of each diverging sequence."""
    tally, a, b = compared.tally, compared.a, compared.b
    first = first_differences(tally, a, b, pairing)
    level_verdicts = levels(tally, first.token, first.site, pairing)
    causes = diagnose(compared, first)
    said = [one for cause in causes for one in cause.evidence if isinstance(one, EqualSequences)]
    inside = [] if said else [one for side in compared.sides for one in rows_inside(side, tally.plan)]
    by_sequence = causes_by_sequence(compared, causes, first.diverging)
    verdict = Verdict(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        a=_trace_ref(a),
        b=_trace_ref(b),
        level=strongest(level_verdicts),
        levels=level_verdicts,
        first_token=first.token,
        first_site=first.site,
        causes=causes,
        changes=compared.changes,
        settings=changed_settings(a.header.lane, b.header.lane) or None,
        compared=_counts(tally, pairing),
        max_abs_logit_diff=tally.largest_logit,
        max_abs_logprob_diff=tally.largest_logprob,
        first_logprob=first.logprob,
        first_text=first.text,
        agreement=compared.agreement,
        not_seen=[*not_seen(tally, a, b, pairing), *inside],
        reference=compared.reference,
        patterns=sequences.patterns(a, b, by_sequence),
        run_in=str(Path.cwd()),
    )
    return with_sentences(verdict), by_sequence


def _stated_tolerance(header: TraceHeader) -> float | None:
    """The smallest tolerance that the requests' claims state."""
    stated: list[float] = []
    for request in header.requests:
        claim = (request.envelope or {}).get("claim")
        tolerance = claim.get("tolerance") if isinstance(claim, dict) else None
        if isinstance(tolerance, int | float) and not isinstance(tolerance, bool):
            stated.append(float(tolerance))
    return min(stated, default=None)


def _counts(tally: Tally, pairing: Pairing) -> Compared:
    texts = pairing.texts
    return Compared(
        sequences=len(tally.pairs),
        sequences_diverging=sum(state.pair.divergence is not None for state in tally.pairs),
        positions=tally.positions,
        sites=len(tally.plan.sites),
        rows=tally.rows,
        rows_differing=tally.rows_differing,
        texts=len(texts) if texts else None,
        texts_differing=sum(text.difference is not None for text in texts) if texts else None,
    )


def _trace_ref(trace: Trace) -> TraceRef:
    header = trace.header
    return TraceRef(
        path=str(trace.path),
        sha256_of_header=trace.header_sha256,
        engine=header.lane.engine,
        lane=header.lane.name,
        mode=header.mode,
        fingerprint=header.fingerprint.root_digest if header.fingerprint else None,
        sites=len(header.sites),
        site_filter=header.site_filter or None,
    )
