"""What the report needs from a result folder, read through the SQL views in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....result_folder import read_verdict
from .rows import (
    Candidate,
    FirstLogits,
    GroupDifference,
    LayerTotal,
    Lengths,
    Margins,
    Pair,
    Rate,
    SiteTotal,
    Spread,
    TokenRow,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ....views.open_views import Views


class ResultData:
    """A result folder, opened."""

    def __init__(self, folder: Path, views: Views) -> None:
        self.verdict = read_verdict(folder)
        self._views = views
        self.folder = folder
        self.sites = [SiteTotal(*row) for row in self._rows(_SITES_SQL)]
        self.by_sketch = sum(site.by_sketch for site in self.sites)
        """Sites that were compared by their sketches only, because their dtypes differ."""
        self.rows_with_sites = self._count("SELECT count(*) FROM tokens WHERE sites_compared > 0")

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._views.connection.execute(sql, list(values)).fetchall()
        return found

    def _count(self, sql: str, *values: Any) -> int:
        return int(self._rows(sql, *values)[0][0])

    def pair_count(self) -> int:
        """Compared pairs of sequences."""
        return self._count("SELECT count(DISTINCT pair) FROM tokens")

    def pairs(self, limit: int) -> list[Pair]:
        """The pairs, the verdict's first, then those that diverge, then those whose rows differ."""
        first = self.verdict.first_token or self.verdict.first_site
        wanted = first.sequence if first else (None, None)
        return [Pair(*row) for row in self._rows(_PAIRS_SQL, self.by_sketch, *wanted, limit)]

    def tokens(self, pair: int, first: int, stop: int) -> list[TokenRow]:
        """Positions `first` to `stop` (exclusive) of one pair."""
        sql = f"{_TOKEN_ROWS} WHERE pair = ? AND position >= ? AND position < ? ORDER BY position"
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

    def candidates(self, pair: int, position: int) -> list[Candidate]:
        """Both top-K lists where one token was chosen, the most likely on either side first."""
        return [Candidate(*row) for row in self._rows(_CANDIDATES_SQL, pair, position)]

    def close_steps(self, pair: int, limit: int) -> list[TokenRow]:
        """The generated steps whose margin in A is nearest to twice the drift, or below it, by step."""
        sql = (
            f"SELECT * FROM ({_TOKEN_ROWS} WHERE pair = ? AND {_MARGIN_AND_DRIFT}"
            " ORDER BY margin_a - 2 * drift, position LIMIT ?) ORDER BY position"
        )
        return [TokenRow(*row) for row in self._rows(sql, pair, limit)]

    def moved_steps(self, pair: int) -> int:
        """Generated steps whose margin and drift are known, and whose numbers moved."""
        return self._count(
            f"SELECT count(*) FROM ({_TOKEN_ROWS} WHERE pair = ?) WHERE {_MARGIN_AND_DRIFT}", pair
        )

    def layer_totals(self, pair: int) -> list[LayerTotal]:
        """Differing rows by layer, in execution order; sites outside the layers stand for themselves."""
        return [LayerTotal(*row) for row in self._rows(_LAYERS_SQL, pair)]

    def lengths(self, pair: int) -> Lengths:
        """How many tokens each side holds."""
        sql = (
            "SELECT count(token_a), count(token_b), count(token_a) FILTER (step IS NOT NULL),"
            " count(token_b) FILTER (step IS NOT NULL) FROM tokens WHERE pair = ?"
        )
        return Lengths(*self._rows(sql, pair)[0])

    def spread(self, pair: Pair) -> Spread | None:
        """How the pair's first difference spreads; None where no row of it differs."""
        if pair.first_moved is None:
            return None
        rows = self._rows(
            "SELECT s.position, count(*), any_value(t.sites_compared) FROM sites s JOIN tokens t USING (pair,"
            " position) WHERE s.pair = ? AND s.position >= ? GROUP BY s.position ORDER BY s.position LIMIT 2",
            pair.pair,
            pair.first_moved,
        )
        last = max(self.sites, key=lambda site: (site.compared > 0 or site.by_sketch, site.site))
        reached = self._rows(
            "SELECT min(position), arg_min(rel_drift, position) FROM sites WHERE pair = ? AND site = ?",
            pair.pair,
            last.site,
        )[0]
        after = rows[1] if len(rows) > 1 else (None, 0, 0)
        return Spread(
            at_origin=rows[0][1],
            of_sites=rows[0][2] + self.by_sketch,
            next_position=after[0],
            at_next=after[1],
            of_next=after[2] + self.by_sketch,
            last_label=last.label,
            last_position=reached[0],
            last_drift=reached[1],
        )

    def first_logits(self, pair: int) -> FirstLogits | None:
        """The first token whose logits differ; None where none is known to."""
        rows = self._rows(
            "SELECT position, step, max_abs_logit_diff FROM tokens"
            " WHERE pair = ? AND (logits_equal = false OR max_abs_logit_diff > 0) ORDER BY position LIMIT 1",
            pair,
        )
        return FirstLogits(*rows[0]) if rows else None

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
        return dict(self._rows(sql, pair, position))

    def drift_bins(self, pair: Pair, prompt_width: int, decode_width: int) -> dict[str, NDArray[Any]]:
        """Largest drift per site and bin of positions, for bins that hold a differing row.

        Bins count from 0 inside the prompt and from 0 again after it (`decode` says which).
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
        n = len(self.sites) - self.by_sketch
        if not n:  # no hash shows which rows were computed, and rows of unlike dtypes are never equal
            return self._columns(
                f"SELECT {_BIN} AS bin, position >= $prompt AS decode, count(*) FILTER (position IN"
                " (SELECT position FROM sites WHERE pair = $pair)) AS whole, 0 AS none, 0 AS partial,"
                " count(*) AS positions FROM tokens WHERE pair = $pair GROUP BY ALL",
                pair,
                prompt_width,
                decode_width,
            )
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

    def rates(self, limit: int) -> list[Rate]:
        """How often sequences diverge, by what they have in common."""
        sql = (
            "SELECT dimension, value, sequences, diverging, share, low, high FROM divergence_rates"
            " WHERE dimension NOT IN ('all', 'cause') ORDER BY dimension, place, value LIMIT ?"
        )
        return [Rate(*row) for row in self._rows(sql, limit)]

    def unlike_groups(self, limit: int) -> list[GroupDifference]:
        """Pairs of groups whose shares differ by an interval without 0, the largest difference first."""
        sql = (
            "SELECT dimension, value_1, value_2, diverging_1, sequences_1, diverging_2, sequences_2,"
            " difference, low, high FROM populations WHERE low > 0 OR high < 0"
            " ORDER BY abs(difference) DESC, dimension, value_1, value_2 LIMIT ?"
        )
        return [GroupDifference(*row) for row in self._rows(sql, limit)]

    def _columns(self, sql: str, pair: Pair, prompt_width: int, decode_width: int) -> dict[str, NDArray[Any]]:
        values = {"pair": pair.pair, "prompt": pair.prompt, "pw": prompt_width, "dw": decode_width}
        found: dict[str, np.ndarray[Any, Any]] = self._views.connection.execute(sql, values).fetchnumpy()
        return found


_BIN = "CASE WHEN position < $prompt THEN position // $pw ELSE (position - $prompt) // $dw END"

_TOKEN_ROWS = (
    "SELECT position, step, token_a, token_b, token_equal, logprob_a, logprob_b, margin_a, margin_b,"
    " coalesce(max_abs_logit_diff, max_abs_logprob_diff) AS drift FROM tokens"
)
"""The fields of a `TokenRow`."""
_MARGIN_AND_DRIFT = "step IS NOT NULL AND margin_a IS NOT NULL AND drift > 0"

_SITES_SQL = """
SELECT site, name, label, part, layer, module, dtype_a, dtype_b, compared, differing, by_sketch,
       first_pair, first_position, drift_p50, drift_p95, drift_max
FROM site_totals ORDER BY site
"""

_LAYERS_SQL = """
WITH named AS (
  SELECT coalesce('layer ' || layer, label) AS place, site, label, position, rel_drift
  FROM sites WHERE pair = ?
), firsts AS (SELECT place, min(position) AS first FROM named GROUP BY place)
SELECT place, count(*), any_value(first), max(rel_drift) FILTER (position = first), max(rel_drift),
       coalesce(arg_max(label, rel_drift), min(label))
FROM named JOIN firsts USING (place) GROUP BY place ORDER BY min(site)
"""

_PAIRS_SQL = """
WITH moved AS (SELECT pair, count(*) AS rows, min(position) AS first FROM sites GROUP BY pair)
SELECT pair, any_value(tokens.request_id) AS request, any_value(tokens.sample) AS sample,
       count(*), count(*) - count(step), count(*) FILTER (comparable),
       min(position) FILTER (NOT token_equal) AS first_position,
       arg_min_null(step, position) FILTER (NOT token_equal),
       arg_min_null(token_a, position) FILTER (NOT token_equal),
       arg_min_null(token_b, position) FILTER (NOT token_equal),
       coalesce(any_value(moved.rows), 0) AS moved_rows, any_value(moved.first),
       max(coalesce(tokens.max_abs_logit_diff, max_abs_logprob_diff)),
       sum(sites_compared) + count(*) FILTER (comparable) * ?, any_value(sequences.causes)
FROM tokens LEFT JOIN moved USING (pair) LEFT JOIN sequences USING (pair) GROUP BY pair
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
