"""Reading a tap folder: the ranks of one vLLM engine, their sites as one table, the rows of one request.

It needs neither vLLM nor torch. Other files in the folder are left alone, torn parts are reported too.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...schemas.errors import EngineFailed
from ...schemas.trace import Site
from .join_ranks import TappedRows, join_sites, join_views, last_rows
from .rank_folder import KeyRows, RankFiles, TapsFailed, open_ranks

__all__ = ["TapFolder", "TappedRows"]

POLL_SECONDS = 0.02


class TapFolder:
    """The newest engine that wrote into a folder.

    Args:
        path: RIP_TAP of the engine. It may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sites: list[Site] = []
        """In execution order, all ranks together; known once `wait_ready` has returned."""
        self.not_seen: list[str] = []
        self.channel = ""
        """`eager`; `compiled` or `graph`: only the model's output was observed."""
        self.row_hash = self.sketch = ""
        self.world: dict[str, int] = {}
        """`tp_size`, `pp_size`, `dp_size`."""
        self._ranks: list[RankFiles] = []
        self._lock = threading.Lock()
        """Requests of one batch are read from several threads."""

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until every rank of the newest engine has named its sites.

        Raises:
            EngineFailed: A rank failed, or they did not do so in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._refresh():
            self._check_failed()
            if time.monotonic() >= deadline:
                raise EngineFailed(
                    f"no vLLM engine is being observed in {self.path}: {self._describe_state()}",
                    "install rip into vLLM's environment, and start vLLM with RIP_TAP naming this folder",
                )
            time.sleep(POLL_SECONDS)
        self._read_sites()

    def check_alive(self) -> None:
        """Refuse a folder that nobody writes into any more. One that nobody wrote into yet passes.

        Raises:
            EngineFailed: A rank failed, or every rank that wrote there has ended.
        """
        if not self._ranks:
            self._refresh()
        self._check_failed()
        if self._ranks and all(rank.is_over() or rank.why for rank in self._ranks):
            raise EngineFailed(
                f"the engine that wrote into {self.path} has ended",
                "name the folder RIP_TAP of the server that runs, or make a trace of this one: rip tap",
            )

    def keys(self) -> list[str]:
        """The keys of everything observed so far, in order of appearance."""
        found: dict[str, None] = {}
        for rank in self._ranks:
            rank.refresh()
            found.update(dict.fromkeys(rank.keys()))
        return list(found)

    def rows(self, key: str, timeout_s: float, partial: bool = False) -> TappedRows:
        """The rows of one request, once every rank has marked its end.

        Args:
            key: `rip_tap` of the request, or its id: vLLM's own, or without the digits that vLLM appends.
            timeout_s: Longest wait.
            partial: Take what is there when the time is over, and say so.

        Raises:
            EngineFailed: Nothing was observed, or not to the end; several requests had that key.
        """
        if not self._ranks:
            self.wait_ready(timeout_s)
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            rows = self.rows_of_ended_request(
                key, late_s=timeout_s if waited_s >= timeout_s else None, partial=partial
            )
            if rows is not None:
                return rows
            time.sleep(POLL_SECONDS)

    def rows_of_ended_request(
        self, key: str, since: int = 0, late_s: float | None = None, partial: bool = False
    ) -> TappedRows | None:
        """The rows of a request whose end every rank has marked by now; None: wait, and try once more.

        Args:
            key: As `rows` takes it.
            since: The first position that is wanted: rows before it were taken already.
            late_s: The seconds that were waited, where that was long enough; None: there is time.
            partial: Where nothing more is to be waited for, take what is there, and say so.

        Raises:
            EngineFailed: As `rows`.
        """
        with self._lock:
            found = [(rank, rank.find(key)) for rank in self._ranks]
            seen = [(rank, rows) for rank, rows in found if rows is not None]
            wanted = _of_its_replicas(found)
            if wanted and all(rows is not None and (rows.ended or rank.is_over()) for rank, rows in wanted):
                return self._joined(key, seen, since)
            stopped = [
                rank for rank, rows in wanted or found if (rows is None or not rows.ended) and rank.why
            ]
            if not stopped and late_s is None:
                return None
            if partial and seen:
                return self._joined(key, seen, since)
            if stopped:
                raise _failed(f"the request {key} was not observed to its end", stopped, "start vLLM again")
            raise EngineFailed(
                f"the request {key} was not observed to its end within {late_s:g} s: "
                + self._progress(key, seen),
                "does the URL belong to the server that writes into this folder? wait longer for a busy one",
            )

    def rows_of_running_request(self, key: str, since: int) -> TappedRows | None:
        """The rows of a request that runs, from a position on, which every rank has written by now.

        Args:
            key: As `rows` takes it.
            since: The first position that is wanted.

        Returns:
            None where there are none yet.
        """
        with self._lock:
            wanted = _of_its_replicas([(rank, rank.find(key)) for rank in self._ranks])
            seen = [(rank, rows) for rank, rows in wanted if rows is not None]
            if not seen or len(seen) < len(wanted):
                return None
            return self._joined(key, seen, since, whole=False)

    def forget(self, key: str) -> None:
        """Remove what was written of a request that was read, so that a folder of rip's own stays small.

        Its rows may share a part with those of others; such a part goes when the last of them is forgotten.
        """
        with self._lock:
            for rank in self._ranks:
                rows = rank.find(key)
                if rows is not None:
                    rank.forget(rows.numbers)

    def _check_failed(self) -> None:
        """Say why the ranks of the newest engine observe nothing, where one of them wrote that.

        Raises:
            TapsFailed: One did.
        """
        if failed := [rank for rank in self._ranks if rank.state == "failed"]:
            raise _failed("vLLM's taps ended", failed, "fix that and start vLLM again")

    def _refresh(self) -> bool:
        """Read the folder; True when a whole engine is ready in it."""
        self._ranks = open_ranks(self.path)
        if not self._ranks:
            return False
        world = self._ranks[0].coordinates
        whole = world["tp_size"] * world["pp_size"] * max(1, world["dp_size"])
        return len(self._ranks) >= whole and all(rank.is_ready() for rank in self._ranks)

    def _read_sites(self) -> None:
        first = self._ranks[0]
        self.channel, self.row_hash, self.sketch = first.channel, first.row_hash, first.sketch
        self.world = {name: first.coordinates[name] for name in ("tp_size", "pp_size", "dp_size")}
        self.not_seen = list(dict.fromkeys(text for rank in self._ranks for text in rank.not_seen))
        self.sites = []
        stages = [rank for rank in self._ranks if rank.coordinates["dp_rank"] == first.coordinates["dp_rank"]]
        for stage in range(first.coordinates["pp_size"]):
            ranks = [rank for rank in stages if rank.coordinates["pp_rank"] == stage]
            self.sites += join_sites([rank.sites for rank in ranks])

    def _describe_state(self) -> str:
        if not self.path.is_dir():
            return "there is no such folder"
        if not self._ranks:
            return "no rank has written there"
        return ", ".join(
            f"rank {rank.name} is {rank.state}" + (f" ({rank.why})" if rank.why else "")
            for rank in self._ranks
        )

    def _progress(self, key: str, seen: Sequence[tuple[RankFiles, KeyRows]]) -> str:
        if not seen:
            return f"no rank saw it; {len(self.keys())} other requests were observed"
        return ", ".join(
            f"rank {rank.name} has {rows.count} rows" + (" and its end" if rows.ended else "")
            for rank, rows in seen
        )

    def _joined(
        self, key: str, seen: Sequence[tuple[RankFiles, KeyRows]], since: int = 0, whole: bool = True
    ) -> TappedRows:
        """What ranks have from a position on; unless `whole`, only at the positions that all of them have."""
        findings: list[str] = []
        prefix = next((known for rank, rows in seen if (known := rank.prefix(rows.numbers))), ())
        views = []
        for rank, rows in seen:
            if len(rows.numbers) > 1:
                raise EngineFailed(
                    f"{len(rows.numbers)} requests were observed under the key {key}",
                    "give every request a key of its own, and ask for one sample (n = 1) a request",
                )
            last = last_rows(rank.load(rows.numbers, since), len(rank.sites), since)
            views.append((rank, last))
            recomputed = rows.count - len(last.table) - last.recomputed - max(0, since - len(prefix))
            if since and recomputed > 0:
                findings.append(
                    f"{recomputed} positions were computed again after their rows had been taken "
                    "(preemption); the first are shown"
                )
            if whole and not rows.ended and not rank.is_over():
                findings.append(f"rank {rank.name} did not see the end of the request")
            findings += [f"rank {rank.name}: {text}" for text in rank.broken]
        if not whole:
            common = functools.reduce(np.intersect1d, [rows.positions for _, rows in views])
            views = [(rank, rows.only(common)) for rank, rows in views]
        return replace(join_views(views, self.sites, findings), prefix=prefix)


def _failed(what: str, ranks: Sequence[RankFiles], fix: str) -> TapsFailed:
    """The error with each rank's own reason."""
    failures = [rank.failure for rank in ranks if rank.failure is not None]
    return TapsFailed(
        f"{what}: {'; '.join(f'rank {one.rank}: {one.why}' for one in failures)}", fix, failures
    )


def _of_its_replicas(
    found: Sequence[tuple[RankFiles, KeyRows | None]],
) -> list[tuple[RankFiles, KeyRows | None]]:
    """The ranks that must see a request: of data-parallel replicas one has it, the others never will."""
    replicas = {rank.coordinates["dp_rank"] for rank, rows in found if rows is not None}
    return [(rank, rows) for rank, rows in found if rank.coordinates["dp_rank"] in replicas]
