"""Golden tokens: the recorded tokens that a golden mode forces, from an envelope or from a trace."""

from __future__ import annotations

from pathlib import Path

from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput
from ..schemas.trace import HEADER_KEY, TraceHeader

Golden = dict[tuple[str, int], tuple[int, ...]]
"""(request_id, sample) → generated token ids."""

_COLUMNS = ["request_id", "sample", "step", "token_id"]


def golden_from_trace(path: Path) -> Golden:
    """The generated tokens of every sequence of a trace.

    Raises:
        BadInput: Missing, foreign, truncated or newer file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = (file.metadata.metadata or {}).get(HEADER_KEY)
            if header is None:
                raise BadInput(
                    f"{path}: a Parquet file, but not a rip trace", "give a file that rip replay wrote"
                )
            TraceHeader.from_json(header, str(path))  # refuses a trace of a newer rip
            table = file.read(columns=_COLUMNS)
        if table.column_names != _COLUMNS:
            raise BadInput(
                f"{path}: a trace without its token columns", "give a whole file that rip replay wrote"
            )
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", "give a trace that rip replay wrote") from None
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "damaged")
        raise BadInput(
            f"{path}: cannot be read as a trace: {reason}", "give a whole file that rip replay wrote"
        ) from None
    golden: dict[tuple[str, int], list[int]] = {}
    for request_id, sample, step, token in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
        tokens = golden.setdefault((request_id, sample), [])
        if step is not None:
            tokens.append(token)
    return {key: tuple(tokens) for key, tokens in golden.items()}


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
