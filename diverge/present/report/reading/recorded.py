"""What only a trace holds of one sequence: the lengths of its prompt and answer, and what the sampler saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....reading.load import DAMAGE, damaged

if TYPE_CHECKING:
    from ....reading.load import Trace
    from .rows import Pair
    from .traces import Source


@dataclass(frozen=True)
class Recorded:
    """One side of a pair, from its trace."""

    prompt: int
    """Tokens."""
    generated: int
    """Tokens."""
    seen: dict[str, Any] | None
    """What the sampler used at the requested position: top1_id, top1_logit, draw; None: not recorded."""


def recorded(source: Source, pair: Pair, position: int | None) -> Recorded | None:
    """Read one sequence's small columns, a row group at a time.

    Args:
        source: The side.
        pair: Which sequence.
        position: Of the token whose choice is shown; None: of none.

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
        columns = ["sequence", "position", "step", *({"sampler"} & set(part.file.schema_arrow.names))]
        try:
            for group in range(part.file.num_row_groups):
                keys = part.file.read_row_group(group, columns=["request_id", "sample"])
                ours = pc.and_(
                    pc.equal(keys["request_id"].cast("string"), pair.request_id),
                    pc.equal(keys["sample"], pair.sample),
                )
                if not pc.any(ours).as_py():
                    continue  # the other columns of this group are not decoded
                yield from part.file.read_row_group(group, columns=columns).filter(ours).to_pylist()
        except DAMAGE as error:
            raise damaged(part.path, error) from None
