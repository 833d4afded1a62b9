"""Comparing all pairs of sequences batch by batch, in order, in bounded memory.

A worker compares the sites of some batches ahead; the calling thread compares tokens and helps with the sites
where it would wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext

from ..reading.columns import ListLengths
from ..reading.load import Trace
from .align import Pair, Run, plan
from .site_plan import SitePlan
from .sites import SiteComparer, SiteRows, empty_site_rows
from .token_rows import SideReader, TokenComparer, TokenRows, read_rows

Progress = Callable[[int, int], None]
"""Called with the positions that are done, and how many there are."""

_AHEAD = 3
"""Batches whose sites are compared or wait to be added up at the same time."""
_BATCH_ITEMS = 1_000_000
"""(position, site) pairs in a batch."""


def compare_batches(
    pairs: list[Pair], a: Trace, b: Trace, site_plan: SitePlan, progress: Progress | None = None
) -> Iterator[tuple[TokenRows, SiteRows]]:
    """Compare all pairs, batch by batch, in order.

    Raises:
        BadInput: A trace is damaged.
    """
    lengths, token_comparer = ListLengths(), TokenComparer()
    done, total = 0, sum(pair.length for pair in pairs)
    batch_rows = max(64, min(1 << 14, _BATCH_ITEMS // max(len(site_plan.sites), 1)))
    with (
        closing(SideReader(a, lengths)) as reader_a,
        closing(SideReader(b, lengths)) as reader_b,
        closing(SiteComparer(a, b, site_plan)) if site_plan.sites and pairs else nullcontext() as comparer,
        closing(_SitesAhead(comparer, len(site_plan.sites))) as ahead,
    ):
        for runs in ahead.of(plan(pairs, a, b, batch_rows)):
            tokens = token_comparer.compare(runs, *read_rows(runs, reader_a, reader_b))
            yield tokens, ahead.take()
            done += sum(run.count for run in runs)
            if progress is not None:
                progress(done, total)


class _SitesAhead:
    """Compares the sites of the next batches in a thread of its own."""

    def __init__(self, comparer: SiteComparer | None, sites: int) -> None:
        self._comparer = comparer
        self._empty = empty_site_rows(sites)
        self._waiting: deque[tuple[list[Run], Future[SiteRows]]] = deque()
        self._pool = ThreadPoolExecutor(1)

    def of(self, batches: Iterator[list[Run]]) -> Iterator[list[Run]]:
        """The batches, with the sites of some later ones under way."""
        while True:
            while len(self._waiting) < _AHEAD and (runs := next(batches, None)) is not None:
                self._waiting.append((runs, self._pool.submit(self._compare, runs)))
            if not self._waiting:
                return
            yield self._waiting[0][0]

    def take(self) -> SiteRows:
        """The sites of the batch that `of` yielded last, once they are compared."""
        _, first = self._waiting.popleft()
        for index, (runs, started) in enumerate(self._waiting):
            if not first.done() and started.cancel():  # compare a later batch here rather than wait
                own: Future[SiteRows] = Future()
                own.set_result(self._compare(runs))
                self._waiting[index] = runs, own
        return first.result()

    def close(self) -> None:
        """Cancel what was not started, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)

    def _compare(self, runs: list[Run]) -> SiteRows:
        return self._empty if self._comparer is None else self._comparer.compare(runs)
