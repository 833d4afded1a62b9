"""What the special words in a postmortem mean: for those that occur in it, half a sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORDS: tuple[tuple[str, str, str], ...] = (
    ("origin", r"\borigin\b", "the first place where an output differs though all that went in is equal"),
    ("site", r"\bsites?\b", "a place inside the model whose output is recorded"),
    ("row", r"\brows?\b", "the numbers at one site for one token"),
    ("name:0", r"\w:\d\b", "the first of several outputs of a module"),
    ("name#1", r"\w#\d\b", "the second time that a module runs in one pass"),
    ("prefill", r"\bprefill\b", "the pass that reads the prompt; decoding then adds token after token"),
    ("envelope", r"\benvelopes?\b", "the recorded request with all its settings"),
    ("sampling contract", r"\bsampling contract\b", "every field that says how a token is chosen"),
    ("lane", r"\blanes?\b", "a way to run: engine, model, settings, machine"),
    ("golden", r"\bgolden\b", "recorded tokens that are forced on a run, so that every step can be compared"),
    (
        "reference",
        r"--reference\b",
        "the request computed in a finer dtype, to tell rounding from a fault",
    ),
    ("hash", r"\bhash(es)?\b", "a digest of a row or of logits: equal only where every bit is"),
    ("sketch", r"\bsketch(es)?\b", "a short summary of a row, by which the size of a difference is measured"),
    ("nats", r"\bnats\b", "the unit of log-probabilities"),
)
"""Word, how it is found, and what it means; in the order in which a reader needs them."""


def glossary(texts: Iterable[str]) -> list[tuple[str, str]]:
    """The words that occur in some texts, with their meanings."""
    whole = "\n".join(texts)
    return [(word, meaning) for word, pattern, meaning in _WORDS if re.search(pattern, whole)]
