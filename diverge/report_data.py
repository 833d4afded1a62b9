"""What the report needs from a result folder, read through the SQL views in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..schemas.verdict import Verdict
from . import tables

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from .views import Views


@dataclass(frozen=True)
class Pair:
    """One compared pair of sequences, in short."""

    pair: int
    request_id: str
    sample: int
    positions: int
    prompt: int
    """Positions inside the prompt."""
    comparable: int
    """Positions whose tokens are equal up to and including them."""
    first_position: int | None
    """Position of the first divergent token; None where all are equal."""
    first_step: int | None
    token_a: int | None
    token_b: int | None
    rows_differing: int
    first_moved: int | None
    """Position of the first row that differs."""
    max_logit_diff: float | None


@dataclass(frozen=True)
class TokenRow:
    """One position of a pair; the distribution is the one that chose this token."""

    position: int
    step: int | None
    token_a: int | None
    token_b: int | None
    equal: bool
    logprob_a: float | None
    logprob_b: float | None
    margin_a: float | None
    margin_b: float | None
    drift: float | None
    """Largest absolute logit difference (logprob, where there are no logits)."""


@dataclass(frozen=True)
class Candidate:
    """One candidate at a pair's first divergence, as both sides saw it."""

    token_id: int
    logit_a: float | None
    logit_b: float | None
    logprob_a: float | None
    logprob_b: float | None
    chosen_a: bool
    chosen_b: bool


@dataclass(frozen=True)
class SiteTotal:
    """One row of site_totals."""

    site: int
    name: str
    label: str
    part: str
    layer: int | None
    module: str
    dtype_a: str
    dtype_b: str
    compared: int
    differing: int
    by_sketch: bool
    first_pair: int | None
    first_position: int | None
    drift_p50: float | None
    drift_p95: float | None
    drift_max: float | None


@dataclass(frozen=True)
class Margins:
    """Margins and drift per bin of steps (a bin is one step where there is room)."""

    steps: list[int]
    """First step of each bin."""
    width: int
    """Steps in a bin."""
    margin_a: list[float | None]
    """Smallest in the bin."""
    margin_b: list[float | None]
    drift: list[float | None]
    """Largest in the bin."""


class ResultData:
    """A result folder, opened."""

    def __init__(self, folder: Path, views: Views) -> None:
        summary = folder / tables.SUMMARY_FILE
        self.verdict = Verdict.from_json(summary.read_bytes(), str(summary))
        self._views = views
        self.sites = [SiteTotal(*row) for row in self._rows(_SITES_SQL)]
        self.rows_with_sites: int = self._rows("SELECT count(*) FROM tokens WHERE sites_compared > 0")[0][0]

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._views.connection.execute(sql, list(values)).fetchall()
        return found

    def pair_count(self) -> int:
        """Compared pairs of sequences."""
        return int(self._rows("SELECT count(DISTINCT pair) FROM tokens")[0][0])

    def pairs(self, limit: int) -> list[Pair]:
        """The pairs, the verdict's first, then those that diverge, then those whose rows differ."""
        first = self.verdict.first_token or self.verdict.first_site
        wanted = (first.request_id, first.sample) if first else (None, None)
        return [Pair(*row) for row in self._rows(_PAIRS_SQL, *wanted, limit)]

    def tokens(self, pair: int, first: int, stop: int) -> list[TokenRow]:
        """Positions `first` to `stop` (exclusive) of one pair."""
        sql = (
            "SELECT position, step, token_a, token_b, token_equal, logprob_a, logprob_b, margin_a, margin_b,"
            " coalesce(max_abs_logit_diff, max_abs_logprob_diff) FROM tokens"
            " WHERE pair = ? AND position >= ? AND position < ? ORDER BY position"
        )
        return [TokenRow(*row) for row in self._rows(sql, pair, first, stop)]

    def margins(self, pair: int, bins: int) -> Margins:
        """Margins and drift of the generated steps that can be compared."""
        known = "coalesce(margin_a, margin_b, max_abs_logit_diff, max_abs_logprob_diff) IS NOT NULL"
        last = self._rows(f"SELECT max(step) FROM tokens WHERE pair = ? AND {known}", pair)[0][0]
        width = 1 if last is None else last // bins + 1
        rows = self._rows(
            "SELECT step // ? AS bin, min(margin_a), min(margin_b),"
            " max(coalesce(max_abs_logit_diff, max_abs_logprob_diff)) FROM tokens"
            " WHERE pair = ? AND step <= ? GROUP BY bin ORDER BY bin",
            width,
            pair,
            -1 if last is None else last,
        )
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
        steps, margin_a, margin_b, drift = columns
        return Margins([number * width for number in steps], width, margin_a, margin_b, drift)

    def candidates(self, pair: Pair) -> list[Candidate]:
        """Both top-K lists at the first divergent token, the most likely on either side first."""
        if pair.first_position is None:
            return []
        return [Candidate(*row) for row in self._rows(_CANDIDATES_SQL, pair.pair, pair.first_position)]

    def drift_range(self, pair: int) -> tuple[float, float] | None:
        """Smallest and largest finite drift above zero in one pair; None where there is none."""
        low, high = self._rows(
            "SELECT min(rel_drift), max(rel_drift) FROM sites"
            " WHERE pair = ? AND rel_drift > 0 AND isfinite(rel_drift)",
            pair,
        )[0]
        return None if low is None else (low, high)

    def drifts_at(self, pair: int, position: int) -> dict[int, float]:
        """Drift of the differing sites at one position, coded as in `drift_bins`."""
        sql = "SELECT site, coalesce(rel_drift, -1) FROM sites WHERE pair = ? AND position = ?"
        found: list[tuple[int, float]] = self._views.connection.execute(sql, [pair, position]).fetchall()
        return dict(found)

    def drift_bins(self, pair: Pair, prompt_width: int, decode_width: int) -> dict[str, NDArray[Any]]:
        """Largest drift per site and bin of positions, for bins that hold a differing row.

        Bins count from 0 inside the prompt and from 0 again after it (`decode` tells which).
        `drift` is NaN for a row with NaN and −1 where the size of the difference is not known.
        """
        return self._columns(
            f"SELECT site, {_BIN} AS bin, position >= $prompt AS decode,"
            " coalesce(max(rel_drift), -1)::FLOAT AS drift FROM sites"
            " WHERE pair = $pair GROUP BY ALL",
            pair,
            prompt_width,
            decode_width,
        )

    def coverage_bins(
        self, pair: Pair, prompt_width: int, decode_width: int, partial: int
    ) -> dict[str, NDArray[Any]]:
        """Per bin of positions: how many have all sites compared, none, or all but `partial`."""
        n = sum(not site.by_sketch for site in self.sites)
        return self._columns(
            f"SELECT {_BIN} AS bin, position >= $prompt AS decode,"
            f" count(*) FILTER (sites_compared = {n}) AS whole,"
            f" count(*) FILTER (sites_compared = 0 AND {n} > 0) AS none,"
            f" count(*) FILTER (sites_compared = {n - partial} AND {partial} > 0 AND sites_compared > 0)"
            " AS partial,"
            " count(*) AS positions FROM tokens"
            " WHERE pair = $pair GROUP BY ALL",
            pair,
            prompt_width,
            decode_width,
        )

    def _columns(self, sql: str, pair: Pair, prompt_width: int, decode_width: int) -> dict[str, NDArray[Any]]:
        values = {"pair": pair.pair, "prompt": pair.prompt, "pw": prompt_width, "dw": decode_width}
        found: dict[str, np.ndarray[Any, Any]] = self._views.connection.execute(sql, values).fetchnumpy()
        return found

    def changes(self) -> list[tuple[Any, ...]]:
        """Section, field, before, after, level at risk, rule."""
        return self._rows("SELECT section, field, before, after, risk, rule FROM changes")


_BIN = "CASE WHEN position < $prompt THEN position // $pw ELSE (position - $prompt) // $dw END"

_SITES_SQL = """
SELECT site, name, label, part, layer, module, dtype_a, dtype_b, compared, differing, by_sketch,
       first_pair, first_position, drift_p50, drift_p95, drift_max
FROM site_totals ORDER BY site
"""

_PAIRS_SQL = """
WITH moved AS (SELECT pair, count(*) AS rows, min(position) AS first FROM sites GROUP BY pair)
SELECT pair, any_value(request_id) AS request, any_value(sample) AS sample,
       count(*), count(*) - count(step), count(*) FILTER (comparable),
       min(position) FILTER (NOT token_equal) AS first_position,
       arg_min(step, position) FILTER (NOT token_equal), arg_min(token_a, position) FILTER (NOT token_equal),
       arg_min(token_b, position) FILTER (NOT token_equal),
       coalesce(any_value(moved.rows), 0) AS moved_rows, any_value(moved.first),
       max(coalesce(max_abs_logit_diff, max_abs_logprob_diff))
FROM tokens LEFT JOIN moved USING (pair) GROUP BY pair
ORDER BY (request = ? AND any_value(tokens.sample) = ?) DESC NULLS LAST,
         first_position IS NULL, moved_rows = 0, pair
LIMIT ?
"""

_CANDIDATES_SQL = """
SELECT token_id, max(logit) FILTER (side = 'a'), max(logit) FILTER (side = 'b'),
       max(logprob) FILTER (side = 'a'), max(logprob) FILTER (side = 'b'),
       coalesce(bool_or(chosen) FILTER (side = 'a'), false),
       coalesce(bool_or(chosen) FILTER (side = 'b'), false)
FROM topk WHERE pair = ? AND position = ?
GROUP BY token_id ORDER BY min(rank), max(logprob) DESC, token_id
"""
