"""How to read what a confirming command gives: what would confirm the cause, and what refute it."""

from __future__ import annotations

from ....schemas.verdict import Cause, Interpretation

SENTENCES: dict[Interpretation, str] = {
    "prompts part": "it lists the tokens at which the prompts part",
    "environment changed": "it lists what changed between the two environments",
    "rows not finite": "it lists the rows that are not finite, the first of them first",
    "same setting as A": (
        "if the new run equals A, this is the cause; if it still differs, the cause is something else"
    ),
    "repeats at the same place": (
        "if every repeat differs from A at the same place, B's lane always does so; if they equal A, it was "
        "a one-off; if they differ from each other, B does not repeat itself"
    ),
    "repeats differ": "repeats that differ from each other confirm it",
    "repeats choose": (
        "if every repeat chooses B's tokens, it is a setting of B (its defaults, its generation config); if "
        "they equal A, it was a one-off; if they differ from each other, it is random state"
    ),
    "ends the same": (
        "if it ends at the same token, the rule is one of B's lane: its defaults or its generation config"
    ),
    "state A's value": (
        "it repeats B as it was; state A's value in B's envelope, and it equals A if this is the cause"
    ),
    "fresh cache": (
        "it has a cache of its own: if it equals A, entries of the recorded run were wrong; if it differs "
        "at the same place, what writes or reads the cache is"
    ),
    "rows of one prefill": "if rows computed in one prefill equal A's, decoding alone is at fault",
    "forced tokens": (
        "with A's tokens forced every step can be compared: logits that differ by no more than here "
        "confirm it"
    ),
    "ratio over all positions": "the same ratio over all positions, with A's tokens forced, confirms it",
    "other padding side": (
        "the padding moves to the other side: if the first difference moves or changes with it, padding is "
        "part of the cause; a batch of requests of one length has none"
    ),
}


def how_to_read(cause: Cause) -> str | None:
    """How to read what the confirming command of a cause gives; None: there is none."""
    if cause.interpretation is None:
        return cause.interpretation_text
    return SENTENCES[cause.interpretation]
