"""What an earlier trace holds that a replay can use: its requests, and the tokens that it generated."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.envelope import FAILED, Envelope
from ...schemas.errors import BadInput, first_line
from ...schemas.trace import HEADER_KEY, TraceHeader
from .resolve_request import Golden

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

_COLUMNS = ["request_id", "sample", "position", "step", "token_id"]
_FIX = "give a whole trace that rip replay wrote"


def requests_from_trace(path: Path) -> list[Envelope]:
    """The envelopes that a trace records, in their order.

    Raises:
        BadInput: Missing, foreign, truncated or newer file, or one that keeps only digests of its requests.
    """
    with _opened(path) as (_, header):
        pass
    found: list[Envelope] = []
    for request in header.requests:
        if request.envelope is None:
            raise BadInput(
                f"{path}: request {request.request_id!r} is recorded by its digest only",
                "give the envelope or the request set itself",
            )
        found.append(Envelope.from_object(request.envelope, f"{path}: request {request.request_id!r}"))
    return found


def answered(envelopes: list[Envelope], path: Path) -> tuple[list[Envelope], int]:
    """A recorded set without the requests that were answered with an error, and how many those are.

    Raises:
        BadInput: None is left.
    """
    kept = [envelope for envelope in envelopes if not was_refused(envelope)]
    if not kept:
        raise BadInput(
            f"{path}: every request was answered with an error when it was recorded",
            "record requests that the server answers",
        )
    return kept, len(envelopes) - len(kept)


def was_refused(envelope: Envelope) -> bool:
    """Whether the request was answered with an error when it was recorded."""
    context = envelope.context
    if context is None:
        return False
    if context.status is not None:
        return context.status >= 400
    return context.finish_reason == FAILED and context.error is not None


def golden_from_trace(path: Path) -> Golden:
    """The generated tokens of every sequence of a trace.

    Raises:
        BadInput: Missing, foreign, truncated, damaged or newer file, or one that holds a position twice.
    """
    import pyarrow as pa

    with _opened(path) as (file, _):
        missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise BadInput(f"{path}: a trace without its column {missing[0]!r}", _FIX)
        foreign = [
            name for name in _COLUMNS[1:] if not pa.types.is_integer(file.schema_arrow.field(name).type)
        ]
        if foreign:
            raise BadInput(f"{path}: a trace whose column {foreign[0]!r} holds no integers", _FIX)
        table = file.read(columns=_COLUMNS)
        if table.num_rows != file.metadata.num_rows:
            raise pa.ArrowInvalid("rows are missing")
        columns = [table[name].to_pylist() for name in _COLUMNS]
    golden: dict[tuple[str, int], dict[int, int]] = {}
    seen: set[tuple[str, int, int]] = set()
    for request_id, sample, position, step, token in zip(*columns, strict=True):
        if (request_id, sample, position) in seen:
            raise BadInput(
                f"{path}: request {request_id!r} sample {sample} holds position {position} twice", _FIX
            )
        seen.add((request_id, sample, position))
        tokens = golden.setdefault((request_id, sample), {})
        if step is not None:
            tokens[step] = token
    for (request_id, sample), tokens in golden.items():
        if sorted(tokens) != list(range(len(tokens))) or None in tokens.values():
            raise BadInput(f"{path}: request {request_id!r} sample {sample} lacks some of its steps", _FIX)
    return {key: tuple(tokens[step] for step in sorted(tokens)) for key, tokens in golden.items()}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[pq.ParquetFile, TraceHeader]]:
    """A trace file and its header. Whatever pyarrow cannot read in it is damage."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            text = (file.metadata.metadata or {}).get(HEADER_KEY)
            if text is None:
                raise BadInput(f"{path}: a Parquet file, but not a rip trace", _FIX)
            yield file, TraceHeader.from_json(text, str(path))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", "give a trace that rip replay wrote") from None
    except (OSError, pa.ArrowException, ValueError, IndexError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise BadInput(f"{path}: cannot be read as a trace: {reason}", _FIX) from None
