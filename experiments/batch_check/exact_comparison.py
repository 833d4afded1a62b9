"""Comparing two traces of the same requests exactly: token ids, logprobs, top token ids, top-token logprobs.

It knows nothing of layers, causes or tolerances: that is `rip diverge`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ...schemas.check import CheckLine, FirstDifference
from ...schemas.errors import EngineFailed

COLUMNS = ("request_id", "step", "token_id", "topk_ids", "topk_logprobs", "next_logprob")

Values = tuple[float, ...]
"""One result of one step: one value, or one for each rank."""


@dataclass
class Steps:
    """What one run returned of one sequence, a step at a time; None: not returned at that step."""

    tokens: list[Values | None]
    logprobs: list[Values | None]
    top_ids: list[Values | None]
    top_logprobs: list[Values | None]


def compare(alone: Path, batched: Path, required: Sequence[str]) -> list[CheckLine]:
    """Compare two traces of the same requests.

    Log-probabilities are compared up to the first step at which a sequence's tokens differ: from there on the
    two runs have different prefixes.

    Args:
        alone, batched: Whole traces.
        required: Which lines the check needs.

    Raises:
        EngineFailed: One of them lacks a sequence that the other has.
    """
    one, other = _read(alone), _read(batched)
    if one.keys() != other.keys():
        raise EngineFailed(
            f"{batched} does not hold the sequences of {alone}", "run the check again, with --force"
        )
    pairs = [(name, one[name], other[name]) for name in one]
    lines = []
    for what, field in (
        ("token ids", "tokens"),
        ("logprobs", "logprobs"),
        ("top token ids", "top_ids"),
        ("top-token logprobs", "top_logprobs"),
    ):
        lines.append(_line(what, field, pairs, what in required))
    return lines


def _line(what: str, field: str, pairs: Sequence[tuple[str, Steps, Steps]], required: bool) -> CheckLine:
    compared = differing = not_returned = 0
    first: FirstDifference | None = None
    largest: float | None = None
    for name, a, b in pairs:
        left, right = getattr(a, field), getattr(b, field)
        same = next(
            (step for step, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y),
            min(len(a.tokens), len(b.tokens)),
        )
        end = max(len(left), len(right))
        # The distribution of the step at which the tokens differ still has the same prefix; the token is not.
        if field != "tokens":
            end = min(end, same if field == "logprobs" else same + 1)
        for step in range(end):
            x = left[step] if step < len(left) else None
            y = right[step] if step < len(right) else None
            if x is None and y is None:
                not_returned += 1
                continue
            compared += 1
            if field == "logprobs" and x is not None and y is not None:
                difference = 0.0 if x == y else abs(x[0] - y[0])
                largest = difference if largest is None or difference > largest else largest
            if x is not None and y is not None and _bits(x) == _bits(y):
                continue
            differing += 1
            first = first or _difference(name, step, x, y, ranked=field.startswith("top"))
    state = "not returned" if not compared else "differs" if differing else "equal"
    return CheckLine(
        what=what,  # type: ignore[arg-type]
        state=state,  # type: ignore[arg-type]
        required=required,
        compared=compared,
        differing=differing,
        not_returned=not_returned,
        first=first,
        largest=largest,
    )


def _difference(name: str, step: int, a: Values | None, b: Values | None, ranked: bool) -> FirstDifference:
    left, right = a or (), b or ()
    rank = next(
        index for index in count() if _bits(left[index : index + 1]) != _bits(right[index : index + 1])
    )
    return FirstDifference(
        request_id=name,
        step=step,
        rank=rank if ranked else None,
        alone=left[rank] if rank < len(left) else None,
        batched=right[rank] if rank < len(right) else None,
    )


def _bits(values: Values) -> bytes:
    """Equal where the values are, bit for bit: NaN equals NaN, and 0.0 is not −0.0."""
    return struct.pack(f"<{len(values)}d", *values)


def _read(path: Path) -> Mapping[str, Steps]:
    """The results of the generated tokens of every request, in the order of the trace."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=list(COLUMNS))
    column = {name: table.column(name).to_pylist() for name in COLUMNS}
    found: dict[str, Steps] = {}
    for row, step in enumerate(column["step"]):
        steps = found.setdefault(column["request_id"][row], Steps([], [], [], []))
        if step is None:
            continue
        steps.tokens.append((column["token_id"][row],))
        # What a token was chosen from stands one row earlier.
        logprob, ids, logprobs = (
            column[name][row - 1] for name in ("next_logprob", "topk_ids", "topk_logprobs")
        )
        steps.logprobs.append(None if logprob is None else (logprob,))
        steps.top_ids.append(tuple(ids) if ids else None)
        steps.top_logprobs.append(tuple(logprobs) if logprobs else None)
    return found
