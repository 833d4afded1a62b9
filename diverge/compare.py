"""`rip diverge`: align two traces, compare them batch by batch, write the result folder, give the verdict.

A worker compares the sites of some batches ahead; the calling thread compares tokens, adds up in order,
writes, and helps with the sites where it would wait. It holds some batches at a time, whatever the length
of the traces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..schemas.change import Change
from ..schemas.trace import TraceHeader
from ..schemas.verdict import Compared, TraceRef, Verdict
from .causes.first_difference import causes, first_logprob, first_row, first_site, first_text, first_token
from .causes.pass_order import begin_where_they_ran_first
from .comparison.agreement import agreement
from .comparison.align import Pair, Run, plan
from .comparison.levels import levels, strongest
from .comparison.pairing import Pairing, pair_sequences
from .comparison.site_plan import SitePlan, plan_sites
from .comparison.sites import SiteComparer, SiteRows, nothing
from .comparison.tabulate import candidate_rows, change_rows, site_rows, site_totals
from .comparison.tally import PairState, Tally
from .comparison.tokens import SideReader, TokenComparer, TokenRows, read_rows, with_sites
from .comparison.unseen import not_seen
from .patterns.causes_by_sequence import causes_by_sequence
from .patterns.sequences import SequenceFacts
from .reading.checksums import check_row_hashes
from .reading.columns import ListLengths
from .reading.load import Trace, open_trace
from .reference.judge import judge
from .reference.table_rows import reference_rows
from .result.writer import ResultWriter

Progress = Callable[[int, int], None]
"""Told how many positions are done, of how many."""

_AHEAD = 3
"""Batches whose sites are compared or wait to be added up at the same time."""
_BATCH_ITEMS = 1_000_000
"""(position, site) pairs in a batch."""


def diverge(
    a: Path,
    b: Path,
    out: Path,
    changes: Sequence[Change] = (),
    numeric_tolerance: float | None = None,
    progress: Progress | None = None,
    force: bool = False,
    reference: Path | None = None,
    noise: Sequence[Path] = (),
) -> Verdict:
    """Compare two traces and write the result folder.

    Args:
        a: Trace A, the base: a file or the parts of an unfinished run.
        b: Trace B.
        out: The result folder.
        changes: Drift from A's fingerprint to B's.
        numeric_tolerance: Largest absolute logit difference that the numeric level allows; None: as the
            requests' claims say, and `not stated` where they are silent.
        progress: Told about the work done.
        force: Overwrite an earlier result.
        reference: A trace of a finer dtype with A's tokens forced, to tell rounding from a fault.
        noise: Repeats of A's lane, to measure how far equally good runs lie apart.

    Returns:
        The verdict, which is also the folder's `summary.json`. `first_token` speaks of the first sequence, in
        A's order, whose tokens part. `first_site` speaks of the same sequence where one of its rows differs,
        else of the first one with a differing row.

    Raises:
        BadInput: A trace cannot be read.
        NothingCompared: The traces have no row and no text in common.
        OutputFailed: The result cannot be written.
    """
    trace_a, trace_b = open_trace(a), open_trace(b)
    pairing = pair_sequences(trace_a, trace_b)
    site_plan = plan_sites(trace_a, trace_b)
    tolerance = _stated_tolerance(trace_a.header) if numeric_tolerance is None else numeric_tolerance
    tally = Tally(site_plan, [PairState(pair) for pair in pairing.pairs], tolerance=tolerance)
    beside, repeats = None if reference is None else open_trace(reference), [open_trace(one) for one in noise]
    facts = SequenceFacts(tally)
    with ThreadPoolExecutor(1) as pool, ResultWriter(out, force) as writer:
        for tokens, sites in _compared(pairing.pairs, trace_a, trace_b, site_plan, progress):
            tally.add(tokens, sites)
            facts.add(tokens, sites)
            writer.add("tokens", with_sites(tokens, sites))
            if len(sites.row):
                writer.add("sites", site_rows(tokens, sites, site_plan))
        begin_where_they_ran_first(tally, trace_a, trace_b)
        checked = [pool.submit(check_row_hashes, *row) for row in first_row(tally, trace_a, trace_b)]
        writer.add("site_totals", site_totals(tally))
        writer.add("topk", candidate_rows(tally, trace_a, trace_b))
        writer.add("changes", change_rows(changes))
        token, site = first_token(tally, trace_a, trace_b), first_site(tally, trace_a, trace_b)
        text = first_text(pairing)
        judged = levels(tally, token, site, pairing)
        judged_by = None if beside is None else judge(pairing.pairs, trace_a, trace_b, beside, repeats)
        told = None if judged_by is None else judged_by.verdict
        about = trace_a, trace_b, (a, b, out), list(changes)
        found = causes(tally, *about, token, site, text, told)
        by_sequence = causes_by_sequence(tally, *about, found, told)
        writer.add("sequences", facts.rows((trace_a.header, trace_b.header), by_sequence))
        if judged_by is not None:
            for table, rows in reference_rows(judged_by, facts.prompt_lengths):
                writer.add(table, rows)
        verdict = Verdict(
            tool_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            a=_reference(trace_a),
            b=_reference(trace_b),
            level=strongest(judged),
            levels=judged,
            first_token=token,
            first_site=site,
            causes=found,
            changes=list(changes),
            compared=_counts(tally, pairing),
            max_abs_logit_diff=tally.largest_logit,
            max_abs_logprob_diff=tally.largest_logprob,
            first_logprob=first_logprob(tally, trace_a, trace_b),
            first_text=text,
            agreement=agreement(pairing),
            not_seen=not_seen(tally, trace_a, trace_b, pairing),
            reference=told,
            patterns=facts.patterns(trace_a, trace_b, by_sequence),
            run_in=str(Path.cwd()),
        )
        for check in checked:
            check.result()
        writer.finish(verdict.to_json())
    return verdict


def _compared(
    pairs: list[Pair], a: Trace, b: Trace, site_plan: SitePlan, progress: Progress | None
) -> Iterator[tuple[TokenRows, SiteRows]]:
    """Compare all pairs, batch by batch, in order."""
    lengths, token_comparer = ListLengths(), TokenComparer()
    readers = SideReader(a, lengths), SideReader(b, lengths)
    comparer = SiteComparer(a, b, site_plan) if site_plan.sites and pairs else None
    empty = nothing(len(site_plan.sites))

    def compare(runs: list[Run]) -> SiteRows:
        return empty if comparer is None else comparer.compare(runs)

    done, total = 0, sum(pair.length for pair in pairs)
    waiting: deque[tuple[list[Run], Future[SiteRows]]] = deque()
    batch_rows = max(64, min(1 << 14, _BATCH_ITEMS // max(len(site_plan.sites), 1)))
    batches = plan(pairs, a, b, batch_rows)
    pool = ThreadPoolExecutor(1)
    try:
        while True:
            while len(waiting) < _AHEAD and (runs := next(batches, None)) is not None:
                waiting.append((runs, pool.submit(compare, runs)))
            if not waiting:
                break
            runs, future = waiting.popleft()
            tokens = token_comparer.compare(runs, *read_rows(runs, *readers))
            for place, (later, started) in enumerate(waiting):
                if not future.done() and started.cancel():  # compare a later batch here rather than wait
                    own: Future[SiteRows] = Future()
                    own.set_result(compare(later))
                    waiting[place] = later, own
            yield tokens, future.result()
            done += sum(run.count for run in runs)
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
        for reader in readers:
            reader.close()
        if comparer is not None:
            comparer.close()


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


def _reference(trace: Trace) -> TraceRef:
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
