"""What the views of `rip query` are called, what their columns mean, and an example statement for each."""

from __future__ import annotations

from ...schemas import trace
from ..result import tables
from . import zoom_table

VIEWS = (
    "tokens",
    "sites",
    "site_totals",
    "topk",
    "changes",
    "sequences",
    "divergence_rates",
    "populations",
    "survival",
    "growth",
    "reference_sites",
    "reference_steps",
    "zoom",
)
MADE_BY = {
    "reference_sites": "rip diverge --reference R.parquet",
    "reference_steps": "rip diverge --reference R.parquet",
    "zoom": "rip diverge --zoom",
}
"""Views that are empty without an option → what fills them."""
TRACE_VIEWS = ("tokens", "sites", "topk", "results", "changes", "header")

EXAMPLES = {
    "tokens": "SELECT request_id, min(step) FROM tokens WHERE NOT token_equal GROUP BY ALL",
    "sites": "SELECT layer, max(rel_drift) FROM sites GROUP BY layer ORDER BY layer",
    "site_totals": "SELECT label, differing, drift_max FROM site_totals ORDER BY drift_max DESC LIMIT 10",
    "topk": "SELECT side, rank, token_id, logit, exp(logprob) AS p FROM topk ORDER BY side, rank",
    "changes": "SELECT section, field, before, after, risk FROM changes",
    "sequences": "SELECT request_id, divergence_step, first_site, cause FROM sequences WHERE diverged",
    "divergence_rates": "SELECT * EXCLUDE place FROM divergence_rates ORDER BY dimension, place, value",
    "populations": "SELECT * FROM populations WHERE low > 0 OR high < 0 ORDER BY abs(difference) DESC",
    "survival": "SELECT step, at_risk, share, low, high FROM survival ORDER BY step",
    "growth": "SELECT layer, step, drift_p50, drift_max FROM growth ORDER BY layer, step",
    "reference_sites": "SELECT label, ratio, ratio_low, ratio_high, farther FROM reference_sites",
    "reference_steps": "SELECT layer, step, distance_a, distance_b FROM reference_steps ORDER BY layer, step",
    "zoom": "SELECT finding, transplant, origin, origin_positions, origin_first, origin_last FROM zoom",
}
TRACE_EXAMPLES = {
    "tokens": "SELECT step, token_id, text, margin FROM tokens WHERE step >= 0 ORDER BY margin LIMIT 10",
    "sites": "SELECT layer, label, max(l2) FROM sites GROUP BY ALL ORDER BY 3 DESC LIMIT 10",
    "topk": "SELECT step, rank, token_id, logit FROM topk WHERE step < 3 ORDER BY step, rank",
    "results": "SELECT request_id, sample, reason, ttft_s, latency_s FROM results ORDER BY latency_s DESC",
    "changes": "SELECT * FROM changes",
    "header": "SELECT key, value FROM header WHERE key LIKE 'lane.%'",
}

_SITE_MEANINGS = {
    "name": "canonical module path",
    "occurrence": "which run of the module within a forward pass",
    "part": "empty, or which tensor of the module",
    "label": "name#occurrence:part, for people",
    "module": "class of the module",
    "layer": "layer number in the name, or null",
}
MEANINGS: dict[str, dict[str, str]] = {
    name: {column.name: column.meaning for column in columns} | _SITE_MEANINGS
    for name, columns in tables.TABLES.items()
}
MEANINGS |= {
    "divergence_rates": {
        "dimension": "what the sequences are grouped by: all, prompt_tokens, batch_size_a, step, cause, …",
        "value": "the group; numbers in powers of two",
        "sequences": "in the group (cause and first_layer: all; step: those that agree at its first step)",
        "diverging": "those of them whose tokens part (step: within these steps)",
        "share": "diverging / sequences",
        "low": "Wilson 95 % interval of the share",
        "high": "Wilson 95 % interval of the share",
        "place": "orders the values of a dimension",
    },
    "populations": {
        "dimension": "what divides the sequences into populations",
        "value_1": "the one population",
        "value_2": "the other",
        "sequences_1": "in the one",
        "diverging_1": "whose tokens part",
        "sequences_2": "in the other",
        "diverging_2": "whose tokens part",
        "difference": "share of value_2 minus share of value_1; above 0: more of value_2 diverge",
        "low": "Newcombe 95 % interval of the difference, with its sign: lower end",
        "high": "upper end",
    },
    "survival": {
        "step": "index among generated tokens",
        "at_risk": "sequences that agree up to this step and have it",
        "diverged": "those that part at it",
        "censored": "those for which it is the last one, without parting",
        "share": "Kaplan-Meier estimate: share that agrees up to and including this step",
        "low": "95 % interval (Greenwood, on the log-log scale)",
        "high": "95 % interval (Greenwood, on the log-log scale)",
    },
    "growth": {
        "layer": "layer number",
        "step": "index among generated tokens; null: the prompt",
        "rows": "differing rows of the layer's sites",
        "drift_p50": "their median rel_drift",
        "drift_max": "their largest",
    },
    "zoom": {name: meaning for name, (_, meaning) in zoom_table.COLUMNS.items()},
}
MEANINGS["sites"] |= {name: MEANINGS["tokens"][name] for name in ("request_id", "sample", "step")}
_TRACE_COLUMN_MEANINGS = {column.name: column.meaning for column in trace.COLUMNS}
TRACE_MEANINGS: dict[str, dict[str, str]] = {
    "tokens": _TRACE_COLUMN_MEANINGS
    | {
        "text": "text of the token, where the trace's header holds it",
        "logprob": "log-probability that the row before gave this token (null: not told)",
        "rank": "place of this token in the row before's top-K, 0 the most likely (null: not in it)",
        "margin": "top-1 minus top-2 raw logit (logprob where there are none) in the row before",
        "top1_id": "the most likely token in the row before: what greedy decoding would have put here",
        "topk_ids": "most likely NEXT tokens, raw distribution, best first",
    },
    "sites": _TRACE_COLUMN_MEANINGS
    | _SITE_MEANINGS
    | {
        "site": "index in execution order",
        "dtype": "dtype of the row",
        "hash": "row hash in hexadecimal; null: not computed here",
        "l2": "Euclidean norm of the row",
        "absmax": "largest magnitude in the row",
        "sketch": "16 sketch values of the row",
    },
    "topk": _TRACE_COLUMN_MEANINGS
    | {
        "position": "position of the token that this distribution predicted",
        "step": "that token's index among generated tokens",
        "rank": "0 is the most likely",
        "token_id": "candidate",
        "logit": "raw logit",
        "logprob": "raw log-probability",
        "chosen": "this candidate is the token at `position` (null: the trace ends before it)",
    },
    "results": {
        "sequence": "which execution: one sample of one request in this trace",
        "request_id": "the envelope's request_id",
        "sample": "which of the repeats or of the n samples of the request",
        "reason": "how it ended: stop, length, golden, or what a server calls it",
        "text": "the generated text; all there is of an engine that tells no token ids",
        "ttft_s": "seconds from sending the request to the first token; null: not called over HTTP",
        "itl_s": "mean inter-token latency in seconds",
        "latency_s": "seconds from sending the request to the end of the answer",
        "model": "what the server called its model in the answer",
        "system_fingerprint": "what the server called itself in the answer",
        "answered_by": "all that the server said of itself with the answer, as JSON",
    },
    "changes": MEANINGS["changes"],
    "header": {"key": "dotted path in the trace's header", "value": "its value; lists as JSON"},
}
