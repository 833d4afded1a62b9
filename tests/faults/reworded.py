"""A verdict with nonsense in place of all its sentences: what it says as data must stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from faults.lab import Lab, Seen
from rip.diverge.present.findings import labels, sentences
from rip.schemas.verdict import Verdict

WORDS = "cached times rip query rip: is an origin: its drift is B's row is the negative times"
"""They say nothing, and contain what a reader of sentences might look for."""
_FOR_READERS = {"text", "label", "interpretation_text", "sentence"}
"""Fields of a verdict that hold sentences."""


@contextmanager
def nonsense() -> Iterator[None]:
    """Meanwhile every sentence and label is the same nonsense."""
    with ExitStack() as stack:
        stack.enter_context(
            patch.dict(sentences.SENTENCES, dict.fromkeys(sentences.SENTENCES, lambda _: WORDS))
        )
        for table in (sentences.CONCLUSIONS, labels.LABELS, sentences.INTERPRETATIONS):
            stack.enter_context(patch.dict(table, dict.fromkeys(table, WORDS)))
        stack.enter_context(patch.object(labels, "_EXACT", {}))
        yield


def data_of(verdict: Verdict) -> Any:
    """All that a verdict says, without its words and the time at which it was made."""
    return _without_words({**verdict.to_object(), "created": None})


def _without_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_words(one) for key, one in value.items() if key not in _FOR_READERS}
    return [_without_words(one) for one in value] if isinstance(value, list) else value


def reworded(lab: Lab, seen: Seen) -> Verdict:
    """The same traces compared again, into the same folder, with nonsense for sentences."""
    with nonsense():
        return lab.compare_again(seen)


def with_rewording(lab: Lab, seen: Seen) -> Seen:
    """The same, and whether nonsense for sentences leaves the verdict as it is."""
    return replace(seen, rewording_changes=data_of(reworded(lab, seen)) != data_of(seen.verdict))
