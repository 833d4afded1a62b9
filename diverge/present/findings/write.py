"""The sentences beside the data: filled into a verdict just before it is written, for people."""

from __future__ import annotations

from typing import Any, TypeVar

from ....schemas.base import Record
from ....schemas.findings.statement import Statement
from ....schemas.verdict import Cause, Verdict
from .interpretation import how_to_read
from .labels import label
from .reference import reference_sentence
from .sentence import sentence

Some = TypeVar("Some", bound=Record)


def with_sentences(verdict: Verdict) -> Verdict:
    """The same verdict, with the sentence of each finding and the label of each cause beside its data."""
    worded = _worded(verdict)
    if worded.reference is None:
        return worded
    said = {"sentence": reference_sentence(worded.reference)}
    return worded.model_copy(update={"reference": worded.reference.model_copy(update=said)})


def _worded(record: Some) -> Some:
    """A record whose findings, at any depth, carry their sentences."""
    changed: dict[str, Any] = {}
    for name in type(record).model_fields:
        value = getattr(record, name)
        new = _of_value(value)
        if new is not value:
            changed[name] = new
    if isinstance(record, Statement):
        changed["text"] = sentence(record)
    if isinstance(record, Cause):
        changed.update(label=label(record), interpretation_text=how_to_read(record))
    return record.model_copy(update=changed) if changed else record


def _of_value(value: Any) -> Any:
    if isinstance(value, Record):
        return _worded(value)
    if isinstance(value, list) and value and isinstance(value[0], Record):
        return [_worded(one) for one in value]
    if isinstance(value, dict) and any(isinstance(one, Record) for one in value.values()):
        return {key: _of_value(one) for key, one in value.items()}
    return value
