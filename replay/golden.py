"""Golden tokens: the recorded tokens that a golden mode forces, from an envelope or from a trace."""

from __future__ import annotations

from pathlib import Path

from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput
from ..schemas.trace import HEADER_KEY

Golden = dict[tuple[str, int], tuple[int, ...]]
"""(request_id, sample) → generated token ids."""


def golden_from_trace(path: Path) -> Golden:
    """The generated tokens of every sequence of a trace.

    Raises:
        BadInput: Missing, foreign or truncated file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        if HEADER_KEY not in (file.metadata.metadata or {}):
            raise BadInput(f"{path}: a Parquet file, but not a rip trace", "give a file that rip replay wrote")
        table = file.read(columns=["request_id", "sample", "step", "token_id"])
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(
            f"{path}: cannot be read as a trace: {str(error).splitlines()[0]}", "give a whole file that rip replay wrote"
        ) from None
    golden: dict[tuple[str, int], list[int]] = {}
    rows = zip(*(table[name].to_pylist() for name in ("request_id", "sample", "step", "token_id")), strict=True)
    for request_id, sample, step, token in rows:
        tokens = golden.setdefault((request_id, sample), [])
        if step is not None:
            tokens.append(token)
    return {key: tuple(tokens) for key, tokens in golden.items()}


def golden_for(envelope: Envelope, trace: Golden | None, trace_path: Path | None) -> dict[int, tuple[int, ...]]:
    """Tokens to force for one envelope, by sample.

    Raises:
        BadInput: The envelope has no expected tokens and no trace was given, or the trace lacks the request.
    """
    if trace is not None:
        found = {sample: tokens for (request_id, sample), tokens in trace.items() if request_id == envelope.request_id}
        if not found:
            raise BadInput(
                f"{envelope.request_id}: not in the golden trace {trace_path}", "record it there, or leave it out of the set"
            )
        return found
    if envelope.expected is None or not envelope.expected.token_ids:
        raise BadInput(
            f"{envelope.request_id}: no recorded tokens to force: expected.token_ids is missing",
            "give a trace with --golden, or record the envelope with its answer",
        )
    return {0: tuple(envelope.expected.token_ids)}
