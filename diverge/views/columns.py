"""The views of `rip query`: meanings of their columns, an example statement, the option that fills one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ...schemas import trace
from ..result_folder import TABLES
from . import sequence_sql, trace_tables


@dataclass(frozen=True)
class View:
    """One view; its column types are DuckDB's to say."""

    example: str
    meanings: dict[str, str]
    """Column → what it means."""
    filled_by: str = ""
    """The command that fills it; empty: every result does."""


class _Column(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def meaning(self) -> str: ...


def _meanings(columns: Iterable[_Column]) -> dict[str, str]:
    return {column.name: column.meaning for column in columns}


_SITE = {
    "name": "canonical module path",
    "occurrence": "which run of the module within a forward pass",
    "part": "empty, or which tensor of the module",
    "label": "name#occurrence:part, for people",
    "layer": "layer number in the name, or null",
}
_TOKENS = _meanings(TABLES["tokens"])

RESULT_VIEWS = {
    "tokens": View(
        "SELECT request_id, min(step) FROM tokens WHERE NOT token_equal GROUP BY ALL",
        _TOKENS,
    ),
    "sites": View(
        "SELECT layer, max(rel_drift) FROM sites GROUP BY layer ORDER BY layer",
        _meanings(TABLES["sites"])
        | _SITE
        | {name: _TOKENS[name] for name in ("request_id", "sample", "step")},
    ),
    "site_totals": View(
        "SELECT label, differing, drift_max FROM site_totals ORDER BY drift_max DESC LIMIT 10",
        _meanings(TABLES["site_totals"]) | _SITE,
    ),
    "topk": View(
        "SELECT side, rank, token_id, logit, exp(logprob) AS p FROM topk ORDER BY side, rank",
        _meanings(TABLES["topk"]),
    ),
    "changes": View("SELECT section, field, before, after, risk FROM changes", _meanings(TABLES["changes"])),
    "sequences": View(
        "SELECT request_id, divergence_step, first_site, cause FROM sequences WHERE diverged",
        _meanings(TABLES["sequences"]),
    ),
    "divergence_rates": View(
        "SELECT * EXCLUDE place FROM divergence_rates ORDER BY dimension, place, value",
        {
            "dimension": "what sequences are grouped by: all, prompt_tokens, batch_size_a, step, cause, …",
            "value": "the group; numbers in powers of two",
            "sequences": "in the group (cause, first_layer: all; step: those that agree at its first step)",
            "diverging": "those of them whose tokens diverge (step: within these steps)",
            "share": "diverging / sequences",
            "low": "Wilson 95 % interval of the share",
            "high": "Wilson 95 % interval of the share",
            "place": "orders the values of a dimension",
        },
    ),
    "populations": View(
        "SELECT * FROM populations WHERE low > 0 OR high < 0 ORDER BY abs(difference) DESC",
        {
            "dimension": "what divides the sequences into populations",
            "value_1": "the first population",
            "value_2": "the second",
            "sequences_1": "sequences in the first",
            "diverging_1": "those of them whose tokens diverge",
            "sequences_2": "sequences in the second",
            "diverging_2": "those of them whose tokens diverge",
            "difference": "share of value_2 minus share of value_1; above 0: more of value_2 diverge",
            "low": "Newcombe 95 % interval of the difference, with its sign: lower end",
            "high": "upper end",
        },
    ),
    "survival": View(
        "SELECT step, at_risk, share, low, high FROM survival ORDER BY step",
        {
            "step": "index among generated tokens",
            "at_risk": "sequences that agree up to this step and have it",
            "diverged": "those that diverge at it",
            "censored": "those that end with it, without diverging",
            "share": "Kaplan-Meier estimate: share that agrees up to and including this step",
            "low": "95 % interval (Greenwood, on the log-log scale)",
            "high": "95 % interval (Greenwood, on the log-log scale)",
        },
    ),
    "growth": View(
        "SELECT layer, step, drift_p50, drift_max FROM growth ORDER BY layer, step",
        {
            "layer": "layer number",
            "step": "index among generated tokens; null: the prompt",
            "rows": "differing rows of the layer's sites",
            "drift_p50": "their median rel_drift",
            "drift_max": "their largest",
        },
    ),
    "reference_sites": View(
        "SELECT label, ratio, ratio_low, ratio_high, farther FROM reference_sites",
        _meanings(TABLES["reference_sites"]),
        "rip diverge --reference R.parquet",
    ),
    "reference_steps": View(
        "SELECT layer, step, distance_a, distance_b FROM reference_steps ORDER BY layer, step",
        _meanings(TABLES["reference_steps"]),
        "rip diverge --reference R.parquet",
    ),
    "zoom": View(
        "SELECT finding, transplant, origin, origin_positions, origin_first, origin_last FROM zoom",
        _meanings(sequence_sql.COLUMNS),
        "rip diverge --zoom",
    ),
}
"""Over a result folder."""

_TRACE = _meanings(trace.COLUMNS)
TRACE_VIEWS = {
    "tokens": View(
        "SELECT step, token_id, text, margin FROM tokens WHERE step >= 0 ORDER BY margin LIMIT 10",
        _TRACE
        | {
            "text": "text of the token, where the trace's header has it",
            "logprob": "log-probability of this token in the row before (null: not recorded)",
            "rank": "rank of this token in the row before's top-K, 0 the most likely (null: not in it)",
            "margin": "top-1 minus top-2 raw logit (logprob where there are none) in the row before",
            "top1_id": "the most likely token in the row before: what greedy decoding would have chosen",
            "topk_ids": "most likely NEXT tokens, raw distribution, best first",
        },
    ),
    "sites": View(
        "SELECT layer, label, max(l2) FROM sites GROUP BY ALL ORDER BY 3 DESC LIMIT 10",
        _TRACE
        | _SITE
        | {
            "site": "index in execution order",
            "module": "class of the module",
            "dtype": "dtype of the row",
            "hash": "row hash in hexadecimal; null: not computed here",
            "l2": "Euclidean norm of the row",
            "absmax": "largest magnitude in the row",
            "sketch": f"{trace.SKETCH_SIZE} sketch values of the row",
        },
    ),
    "topk": View(
        "SELECT step, rank, token_id, logit FROM topk WHERE step < 3 ORDER BY step, rank",
        _TRACE
        | {
            "position": "position of the token that this distribution predicted",
            "step": "that token's index among generated tokens",
            "rank": "0 is the most likely",
            "token_id": "candidate",
            "logit": "raw logit",
            "logprob": "raw log-probability",
            "chosen": "this candidate is the token at `position` (null: the trace ends before it)",
        },
    ),
    "results": View(
        "SELECT request_id, sample, reason, ttft_s, latency_s FROM results ORDER BY latency_s DESC",
        _meanings(trace_tables.RESULTS),
    ),
    "changes": View("SELECT * FROM changes", _meanings(TABLES["changes"])),
    "header": View("SELECT key, value FROM header WHERE key LIKE 'lane.%'", _meanings(trace_tables.HEADER)),
}
"""Over a trace."""
