"""Golden tokens: the recorded tokens that a golden mode forces, from an envelope or a trace."""

from __future__ import annotations

from pathlib import Path

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput

Golden = dict[tuple[str, int], tuple[int, ...]]
"""(request_id, sample) → generated token ids."""


def golden_for(
    envelope: Envelope, trace: Golden | None, trace_path: Path | None
) -> dict[int, tuple[int, ...]]:
    """Tokens to force for one envelope, by sample; none of them empty.

    Raises:
        BadInput: The envelope has no expected tokens and no trace was given, or the trace lacks the request
            or its tokens.
    """
    if trace is None:
        if envelope.expected is None or not envelope.expected.token_ids:
            raise BadInput(
                f"{envelope.request_id}: no recorded tokens to force: expected.token_ids is missing or empty",
                "give a trace with --golden, or record the envelope with its answer",
            )
        return {0: tuple(envelope.expected.token_ids)}
    found = {
        sample: tokens for (request_id, sample), tokens in trace.items() if request_id == envelope.request_id
    }
    if not found:
        raise BadInput(
            f"{envelope.request_id}: not in the golden trace {trace_path}",
            "record it there, or leave it out of the set",
        )
    if not all(found.values()):
        raise BadInput(
            f"{envelope.request_id}: the golden trace {trace_path} holds no generated token of it",
            "give a trace of a run that came to its end",
        )
    return found
