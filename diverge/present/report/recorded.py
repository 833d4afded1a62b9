"""What a trace itself says of one sequence: how long its prompt and answer are, what the sampler saw, and
which sampling fields its request stated. The result folder holds none of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...causes.confirm import reading
from ...reading.load import DAMAGE, damaged
from ..format import number, plain, quoted_token
from .environment import NOT_RECORDED, in_words

if TYPE_CHECKING:
    from ....schemas.trace import Setting, TraceHeader
    from ...reading.load import Trace
    from .rows import Candidate, Pair
    from .sources import Source

_MAX_ENTRIES = 4
"""Entries of a list, such as stop strings, that are named."""
_OF_ENGINE = frozenset({"engine default", "server default"})
"""Where a field comes from that nobody stated."""


@dataclass(frozen=True)
class Recorded:
    """One side of a pair, from its trace."""

    prompt: int
    """Tokens."""
    generated: int
    """Tokens."""
    seen: dict[str, Any] | None
    """What the sampler used at the position that was asked for: top1_id, top1_logit, draw; None: nothing."""


def recorded(source: Source, pair: Pair, position: int | None) -> Recorded | None:
    """Read one sequence's small columns, a row group at a time.

    Args:
        source: The side.
        pair: Which sequence.
        position: Of the token whose choice is asked for.

    Returns:
        None where the trace is not there, or holds not exactly one such sequence (cells may share a name).

    Raises:
        BadInput: The trace is damaged.
    """
    if source.trace is None:
        return None
    steps: list[int | None] = []
    numbers: set[int] = set()
    seen = None
    for row in _rows(source.trace, pair):
        numbers.add(row["sequence"])
        steps.append(row["step"])
        if position is not None and row["position"] == position - 1:  # a row holds what chose the next token
            seen = row.get("sampler")
    if len(numbers) != 1:
        return None
    generated = sum(step is not None for step in steps)
    return Recorded(len(steps) - generated, generated, seen)


def _rows(trace: Trace, pair: Pair) -> Iterator[dict[str, Any]]:
    """Sequence number, position, step and what the sampler saw, for every row of a request's sample."""
    import pyarrow.compute as pc

    for part in trace.files:
        told = ["sequence", "position", "step", *({"sampler"} & set(part.file.schema_arrow.names))]
        try:
            for group in range(part.file.num_row_groups):
                keys = part.file.read_row_group(group, columns=["request_id", "sample"])
                ours = pc.and_(
                    pc.equal(keys["request_id"].cast("string"), pair.request_id),
                    pc.equal(keys["sample"], pair.sample),
                )
                if not pc.any(ours).as_py():
                    continue  # the other columns of this group are not decoded
                yield from part.file.read_row_group(group, columns=told).filter(ours).to_pylist()
        except DAMAGE as error:
            raise damaged(part.path, error) from None


def sampler_line(
    sides: tuple[Recorded | None, Recorded | None],
    sources: tuple[Source, Source],
    candidates: Sequence[Candidate],
) -> str | None:
    """What the samplers saw where the choice was made; None where that is what the candidates show already.

    Args:
        sides: Both sides of the pair.
        sources: The two traces, for token texts.
        candidates: The raw distributions there.
    """
    likeliest, drawn = [], []
    processed = False
    for index, (side, source) in enumerate(zip(sides, sources, strict=True)):
        seen = (side and side.seen) or {}
        token, value, draw = seen.get("top1_id"), seen.get("top1_logit"), seen.get("draw")
        if token is not None and value is not None:
            likeliest.append(
                f"{quoted_token(token, source.token_text)} with {number(value)} in {source.side}"
            )
            processed |= not _is_likeliest(token, value, candidates, index)
        if draw is not None:
            drawn.append(f"{draw:.6f} in {source.side}")
    said = []
    if likeliest and processed:
        said.append(f"behind temperature, penalties and bias the likeliest was {', '.join(likeliest)}")
    if drawn:
        said.append(f"the random number drawn was {', '.join(drawn)}")
    return f"What the samplers saw: {'; '.join(said)}." if said else None


def _is_likeliest(token: int, value: float, candidates: Sequence[Candidate], side: int) -> bool:
    """A token has that raw logit on a side (0: A, 1: B), and no candidate has a larger one."""
    logits = {one.token_id: one.logit_b if side else one.logit_a for one in candidates}
    known = [logit for logit in logits.values() if logit is not None]
    return logits.get(token) == value and value == max(known)


def sampling_line(request_id: str, sources: tuple[Source, Source]) -> str | None:
    """The sampling fields that somebody stated for a request, once where both sides have the same."""
    headers = [source.header for source in sources if source.header is not None]
    if not any(request.sampling for header in headers for request in header.requests):
        return None
    sides = [_stated(header, request_id) for header in headers]
    said = []
    for name in dict.fromkeys(name for side in sides for name in side):
        values = list(dict.fromkeys(side.get(name, "its default") for side in sides))
        shown = values[0] if len(values) == 1 else f"{values[0]} in A, {values[1]} in B"
        said.append(f"{plain(name)} {plain(shown)}")
    stated = "; ".join(said) if said else "nothing"
    return f"Sampling stated for it: {stated}. Every other field has the engine's default."


def _stated(header: TraceHeader, request_id: str) -> dict[str, str]:
    for request in header.requests:
        if request.request_id == request_id:
            told = {name: _told(setting) for name, setting in request.sampling.items()}
            return {name: value for name, value in told.items() if value is not None}
    return {}


def _told(setting: Setting) -> str | None:
    """A field's value, with its source where that is not the request itself; None: nobody stated it."""
    if setting.source in _OF_ENGINE:
        return None
    value = reading(setting)
    shown = NOT_RECORDED if value is None else in_words(value)
    if isinstance(value, list) and len(value) > _MAX_ENTRIES:
        shown = f"{in_words(value[:_MAX_ENTRIES])} and {len(value) - _MAX_ENTRIES:,} more"
    return shown if setting.source == "envelope" else f"{shown} (from {setting.source})"
