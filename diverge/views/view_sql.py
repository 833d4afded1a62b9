"""The SQL text behind the views of `rip query`. It opens nothing and runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas import trace
from . import sequence_sql

if TYPE_CHECKING:
    from pathlib import Path

    from ..reading.load import Part

LABEL = (
    "name || CASE WHEN occurrence > 0 THEN '#' || occurrence ELSE '' END"
    " || CASE WHEN part <> '' THEN ':' || part ELSE '' END"
)
LAYER = r"TRY_CAST(regexp_extract(name, '(?:^|\.)(\d+)(?:\.|$)', 1) AS INTEGER)"


def quoted(text: str) -> str:
    """An SQL string constant."""
    return "'" + text.replace("'", "''") + "'"


def scan(files: list[Path]) -> str:
    """A FROM clause over Parquet files."""
    return f"read_parquet([{', '.join(quoted(str(file)) for file in files)}])"


def result_views(files: dict[str, Path]) -> list[str]:
    """CREATE VIEW statements over the tables of a result folder."""
    with_site_views = {"sites", "site_totals"}
    whole = [
        f"CREATE VIEW {name} AS SELECT * FROM {scan([file])}"
        for name, file in files.items()
        if name not in with_site_views
    ]
    site_totals = (
        f"CREATE VIEW site_totals AS SELECT site, name, occurrence, part, {LABEL} AS label, {LAYER} AS layer,"
        f" * EXCLUDE (site, name, occurrence, part) FROM {scan([files['site_totals']])}"
    )
    # A pair's step is its position minus a constant: so the join is with a row a pair, not with all tokens.
    sites = (
        "CREATE VIEW sites AS SELECT pair, request_id, sample, position,"
        " CASE WHEN position >= first_generated THEN position - first_generated END AS step,"
        " site, name, occurrence, part, label, layer, rel_drift, l2_a, l2_b"
        f" FROM {scan([files['sites']])}"
        " JOIN (SELECT site, name, occurrence, part, label, layer FROM site_totals) USING (site)"
        " JOIN (SELECT pair, any_value(request_id) AS request_id, any_value(sample) AS sample,"
        " min(position - step) AS first_generated FROM tokens GROUP BY pair) USING (pair)"
    )
    return [*whole, site_totals, sites, *sequence_sql.statements()]


_LATER_COLUMNS = {"elapsed_s": "DOUBLE", "next_logprob": "FLOAT"}
"""Columns that older traces do not have → their SQL types."""


def raw(groups: list[list[Part]]) -> str:
    """`raw`: the rows of a trace without its site columns, over all its files."""
    sites = ", ".join(sorted(trace.SITE_COLUMNS))
    selects = []
    for group in groups:
        columns = f"* EXCLUDE ({sites})" if group[0].width else "*"
        for name, kind in _LATER_COLUMNS.items():
            if name not in group[0].leaves:
                columns += f", NULL::{kind} AS {name}"
        selects.append(f"SELECT {columns} FROM {scan([part.path for part in group])}")
    return f"CREATE VIEW raw AS {' UNION ALL BY NAME '.join(selects)}"


TOKENS = """
CREATE VIEW tokens AS
SELECT sequence, request_id, sample, cell, position, step, phase, token_id, text, forced,
       coalesce(before.next_logprob,
                before.topk_logprobs[nullif(list_position(before.topk_ids, token_id), 0)]) AS logprob,
       nullif(list_position(before.topk_ids, token_id), 0) - 1 AS rank,
       coalesce(before.topk_logits[1] - before.topk_logits[2],
                before.topk_logprobs[1] - before.topk_logprobs[2]) AS margin,
       before.topk_ids[1] AS top1_id,
       topk_ids, topk_logits, topk_logprobs, logsumexp, lower(hex(logits_hash)) AS logits_hash, sampler,
       batch_size, batch_row, num_tokens, padded_tokens, cached_tokens, elapsed_s
FROM (
    SELECT *, CASE WHEN lag(position) OVER w = position - 1
        THEN lag({'topk_ids': topk_ids, 'topk_logits': topk_logits, 'topk_logprobs': topk_logprobs,
                  'next_logprob': next_logprob}) OVER w
        END AS before
    FROM raw WINDOW w AS (PARTITION BY sequence ORDER BY position)
) LEFT JOIN token_text USING (token_id)
"""

# One row of the trace predicts the NEXT token, so its candidates stand at the position after it.
TOPK = """
CREATE VIEW topk AS
SELECT sequence, request_id, sample, cell, position + 1 AS position, next_step AS step,
       (rank - 1)::SMALLINT AS rank, topk_ids[rank] AS token_id, topk_logits[rank] AS logit,
       topk_logprobs[rank] AS logprob, topk_ids[rank] = next_token AS chosen
FROM (
    SELECT *, unnest(range(1, len(topk_ids) + 1)) AS rank,
        lead(token_id) OVER w AS next_token,
        CASE WHEN lead(position) OVER w IS NULL THEN coalesce(step + 1, 0)
             ELSE lead(step) OVER w END AS next_step
    FROM raw WINDOW w AS (PARTITION BY sequence ORDER BY position)
)
"""

_SITE_ROW = (
    "sequence, request_id, sample, cell, position, step, phase,"
    " site, name, occurrence, part, label, module, dtype, layer"
)


def sites(groups: list[list[Part]]) -> str:
    """`sites` of a trace: a cross join with the site list and an index into each list.

    Measured on 50,000 positions × 150 sites: six times faster than UNNEST, and columns that a statement does
    not name are not read. A value is null where its hash is, because the file holds 0 there.
    """
    m = trace.SKETCH_SIZE
    selects = []
    for number, group in enumerate(groups):
        if not group[0].width:
            continue
        here = "site_hash[slot + 1] IS NOT NULL"
        selects.append(
            f"SELECT {_SITE_ROW}, lower(hex(site_hash[slot + 1])) AS hash,"
            f" CASE WHEN {here} THEN site_l2[slot + 1] END AS l2,"
            f" CASE WHEN {here} THEN site_absmax[slot + 1] END AS absmax,"
            f" CASE WHEN {here} THEN site_sketch[slot * {m} + 1 : slot * {m} + {m}]::FLOAT[{m}] END AS sketch"
            f" FROM {scan([part.path for part in group])}"
            f" CROSS JOIN (SELECT * FROM site_list WHERE site_group = {number})"
        )
    if not selects:
        nothing = "NULL::VARCHAR AS hash, NULL::FLOAT AS l2, NULL::FLOAT AS absmax"
        selects.append(
            f"SELECT {_SITE_ROW}, {nothing}, NULL::FLOAT[{m}] AS sketch"
            " FROM raw CROSS JOIN site_list WHERE false"
        )
    return f"CREATE VIEW sites AS {' UNION ALL '.join(selects)}"
