"""Named questions for `rip query --ask`: one table of names, what each answers, and its SQL."""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.errors import BadInput
from .columns import RESULT_VIEWS
from .open_views import Views

LIST_QUESTIONS = "`rip query --ask` lists them"


@dataclass(frozen=True)
class Question:
    """A statement under a name."""

    answers: str
    """In one line, for people."""
    result: str = ""
    """SQL over a result folder; empty: it is no question about one."""
    trace: str = ""
    """SQL over a trace; empty likewise."""

    @property
    def by_input(self) -> dict[str, str]:
        """Its SQL over a result, a trace, or either."""
        both = {"result": self.result.strip(), "trace": self.trace.strip()}
        return {name: sql for name, sql in both.items() if sql}


QUESTIONS = {
    "first-divergence": Question(
        "Where each request diverges, and between which tokens.",
        result="""
SELECT request_id, sample, step, token_a, token_b, margin_a, margin_b, max_abs_logit_diff
FROM tokens
WHERE NOT token_equal
QUALIFY row_number() OVER (PARTITION BY pair ORDER BY position) = 1
ORDER BY request_id, sample""",
    ),
    "first-rows": Question(
        "The first differing rows, in the order of computation.",
        result="""
SELECT request_id, position, step, label, rel_drift
FROM sites ORDER BY pair, position, site LIMIT 20""",
    ),
    "drift-by-layer": Question(
        "How many rows of each layer differ, and by how much.",
        result="""
SELECT layer, count(*) AS rows, median(rel_drift) AS median, max(rel_drift) AS largest
FROM sites WHERE layer IS NOT NULL GROUP BY layer ORDER BY layer""",
    ),
    "drift-by-module": Question(
        "Which kind of module drifts most, its layer number left out.",
        result=r"""
SELECT regexp_replace(label, '\.\d+', '.N') AS kind, count(*) AS rows, max(rel_drift) AS largest
FROM sites GROUP BY kind ORDER BY largest DESC LIMIT 10""",
    ),
    "near-ties": Question(
        "The closest choices (result: those that the drift can flip).",
        result="""
SELECT request_id, step, token_a, margin_a, max_abs_logit_diff
FROM tokens WHERE max_abs_logit_diff > 0 AND margin_a <= 2 * max_abs_logit_diff
ORDER BY request_id, step""",
        trace="""
SELECT request_id, step, token_id, text, margin
FROM tokens WHERE step IS NOT NULL AND margin IS NOT NULL ORDER BY margin LIMIT 10""",
    ),
    "batch-shapes": Question(
        "Shapes of the forward passes (result: the drift under each).",
        result="""
SELECT batch_size_a, batch_size_b, count(*) AS positions, sum(sites_differing) AS rows_differing,
       max(max_abs_logit_diff) AS largest_logit_diff
FROM tokens WHERE comparable AND batch_size_a IS NOT NULL GROUP BY ALL ORDER BY ALL""",
        trace="""
SELECT phase, batch_size, num_tokens, padded_tokens, count(*) AS positions
FROM tokens WHERE batch_size IS NOT NULL GROUP BY ALL ORDER BY ALL""",
    ),
    "changes": Question(
        "Changes of the environment, highest risk first.",
        result="""
SELECT section, field, before, after, risk FROM changes
ORDER BY array_position(['semantic', 'token', 'numeric', 'bitwise'], risk) NULLS LAST, section, field""",
    ),
    "causes": Question(
        "Which cause in which layer, over all diverging sequences.",
        result="""
SELECT cause, first_layer, count(*) AS n, median(divergence_step) AS median_step
FROM sequences WHERE diverged GROUP BY ALL ORDER BY n DESC, cause, first_layer""",
    ),
    "rates": Question(
        "How often answers diverge, by group, with 95 % intervals.",
        result="""
SELECT dimension, value, diverging, sequences, round(share, 3) AS share, round(low, 3) AS low,
       round(high, 3) AS high
FROM divergence_rates ORDER BY dimension, place, value""",
    ),
    "slowest": Question(
        "The slowest answers and their first tokens (servers only).",
        trace="""
SELECT request_id, sample, latency_s, ttft_s, itl_s, reason
FROM results WHERE latency_s IS NOT NULL ORDER BY latency_s DESC LIMIT 10""",
    ),
    "endings": Question(
        "How each sequence ended, and its text where there is one.",
        trace="SELECT request_id, sample, reason, text FROM results ORDER BY request_id, sample",
    ),
    "unlikely-tokens": Question(
        "Tokens that were not the most likely.",
        trace="""
SELECT request_id, step, token_id, text, rank, exp(logprob) AS p, top1_id
FROM tokens WHERE step IS NOT NULL AND rank > 0 ORDER BY request_id, step""",
    ),
    "repeats": Question(
        "Where repeats of a request differ (no rows: nowhere).",
        trace="""
SELECT request_id, label, count(*) AS positions, min(position) AS first_position FROM (
    SELECT request_id, position, site, label FROM sites WHERE hash IS NOT NULL
    GROUP BY ALL HAVING count(DISTINCT hash) > 1)
GROUP BY request_id, label, site ORDER BY request_id, first_position, site""",
    ),
    "layer-norms": Question(
        "Row norms of each layer, and its largest activation.",
        trace="""
SELECT layer, max(absmax) AS largest, median(l2) AS norm
FROM sites WHERE part = '' AND name = 'layers.' || layer GROUP BY layer ORDER BY layer""",
    ),
    "settings": Question(
        "How the run was configured.",
        trace="""
SELECT key, value FROM header
WHERE key LIKE 'lane.%' OR key IN ('mode', 'capture', 'observer.state') ORDER BY key""",
    ),
}
"""Name → question."""


def find_question(name: str) -> Question:
    """The question of that name.

    Raises:
        BadInput: There is none.
    """
    if name not in QUESTIONS:
        raise BadInput(f"there is no question {name!r}", LIST_QUESTIONS)
    return QUESTIONS[name]


def statement_for(name: str, views: Views) -> str:
    """The SQL of a question over what is open.

    Raises:
        BadInput: No such question, or it is not one about this kind of file.
    """
    by_input = find_question(name).by_input
    opened = "result" if views.views is RESULT_VIEWS else "trace"
    if opened not in by_input:
        raise BadInput(f"{name} is a question about a {', '.join(by_input)}", LIST_QUESTIONS)
    return by_input[opened]
