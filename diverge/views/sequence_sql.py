"""The SQL of the views over many sequences: rates, populations, survival and growth."""

from __future__ import annotations

from ..comparison.agreement import Z_95

_Z = f"{Z_95!r}::DOUBLE"

# A group's share of diverging sequences with its Wilson interval, as agreement.wilson computes it.
_SHARE = f"""
    diverging / sequences AS share,
    greatest(0, (share + {_Z}*{_Z} / (2 * sequences)
        - {_Z} * sqrt(share * (1 - share) / sequences + {_Z}*{_Z} / (4 * sequences * sequences)))
        / (1 + {_Z}*{_Z} / sequences)) AS low,
    least(1, (share + {_Z}*{_Z} / (2 * sequences)
        + {_Z} * sqrt(share * (1 - share) / sequences + {_Z}*{_Z} / (4 * sequences * sequences)))
        / (1 + {_Z}*{_Z} / sequences)) AS high"""


def _octave(column: str) -> tuple[str, str]:
    """A number's power-of-two bucket in words, and its lower edge."""
    low = f"CASE WHEN {column} < 1 THEN 0 ELSE (1 << floor(log2({column}))::INTEGER) END"
    words = f"CASE WHEN {column} < 2 THEN {column}::VARCHAR ELSE {low} || ' to ' || (2 * ({low}) - 1) END"
    return words, low


def _populations() -> str:
    """(dimension, value, place, diverged) of every sequence, for the dimensions that divide all of them."""
    words, low = _octave("prompt_tokens")
    parts = [
        "SELECT 'all' AS dimension, 'all' AS value, 0::BIGINT AS place, diverged FROM sequences",
        f"SELECT 'prompt_tokens', {words}, ({low})::BIGINT, diverged FROM sequences",
    ]
    parts += [
        f"SELECT '{name}', {name}::VARCHAR, {name}::BIGINT, diverged FROM sequences WHERE {name} IS NOT NULL"
        for name in ("batch_size_a", "batch_size_b")
    ]
    parts += [
        f"SELECT '{name}', {name}::VARCHAR, 0::BIGINT, diverged FROM sequences"
        f" WHERE coalesce({name}::VARCHAR, '') <> ''"
        for name in ("replica_a", "replica_b", "cell")
    ]
    return " UNION ALL ".join(parts)


def _kinds() -> str:
    """(dimension, value, place) of every diverging sequence, for what only they have."""
    return (
        "SELECT 'first_layer' AS dimension, coalesce(first_layer::VARCHAR, coalesce(first_site, 'not seen'))"
        " AS value, coalesce(first_layer, 1000000)::BIGINT AS place FROM sequences WHERE diverged"
        " UNION ALL SELECT 'cause', CASE WHEN causes IS NULL THEN 'not diagnosed'"
        " ELSE coalesce(cause, 'unknown') END, 0::BIGINT FROM sequences WHERE diverged"
    )


def _steps() -> str:
    """By octave of steps: of the sequences that agree at its start, those that part within it."""
    words, low = _octave("step")
    return (
        f"SELECT 'step' AS dimension, any_value({words}) AS value, ({low})::BIGINT AS place,"
        " max(at_risk)::BIGINT AS sequences, sum(diverged)::BIGINT AS diverging"
        " FROM survival GROUP BY place"
    )


_SURVIVAL = f"""
CREATE VIEW survival AS
WITH subject AS (
    SELECT CASE WHEN diverged THEN divergence_step ELSE steps - 1 END AS step, diverged AS parted
    FROM sequences WHERE CASE WHEN diverged THEN divergence_step IS NOT NULL ELSE steps > 0 END
), counted AS (
    SELECT step, count(*) FILTER (parted) AS diverged, count(*) FILTER (NOT parted) AS censored
    FROM subject GROUP BY step
), risk AS (
    SELECT *, sum(diverged + censored) OVER (ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
        ::BIGINT AS at_risk FROM counted
), curve AS (
    SELECT *, product(1 - diverged / at_risk) OVER w AS share,
        sum(diverged / nullif(at_risk * (at_risk - diverged), 0)) OVER w AS spread
    FROM risk WINDOW w AS (ORDER BY step)
)
SELECT step, at_risk, diverged, censored, share,
    CASE WHEN share > 0 AND share < 1
        THEN pow(share, exp(-{_Z} * sqrt(spread) / ln(share))) ELSE share END AS low,
    CASE WHEN share > 0 AND share < 1
        THEN pow(share, exp({_Z} * sqrt(spread) / ln(share))) ELSE share END AS high
FROM curve
"""

_POPULATIONS = """
CREATE VIEW populations AS
SELECT one.dimension, one.value AS value_1, other.value AS value_2,
    one.sequences AS sequences_1, one.diverging AS diverging_1,
    other.sequences AS sequences_2, other.diverging AS diverging_2,
    other.share - one.share AS difference,
    difference - sqrt(pow(other.share - other.low, 2) + pow(one.high - one.share, 2)) AS low,
    difference + sqrt(pow(other.high - other.share, 2) + pow(one.share - one.low, 2)) AS high
FROM divergence_rates AS one JOIN divergence_rates AS other
    ON one.dimension = other.dimension AND (one.place, one.value) < (other.place, other.value)
WHERE one.dimension IN ('prompt_tokens', 'batch_size_a', 'batch_size_b', 'replica_a', 'replica_b', 'cell')
"""

_GROWTH = """
CREATE VIEW growth AS
SELECT layer, step, count(*) AS rows, median(rel_drift) AS drift_p50, max(rel_drift) AS drift_max
FROM sites WHERE layer IS NOT NULL GROUP BY layer, step
"""


def statements() -> list[str]:
    """CREATE VIEW statements over the views `sequences` and `sites`."""
    rates = (
        "CREATE VIEW divergence_rates AS WITH grouped AS ("
        "SELECT dimension, value, place, count(*) AS sequences, count(*) FILTER (diverged) AS diverging"
        f" FROM ({_populations()}) GROUP BY ALL"
        " UNION ALL SELECT dimension, value, place, (SELECT count(*) FROM sequences), count(*)"
        f" FROM ({_kinds()}) GROUP BY ALL"
        f" UNION ALL {_steps()})"
        f" SELECT dimension, value, sequences, diverging, {_SHARE}, place FROM grouped"
    )
    return [_SURVIVAL, rates, _POPULATIONS, _GROWTH]
