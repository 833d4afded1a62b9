"""Comparing two traces of the same requests exactly: token ids, logprobs, top token ids, top-token logprobs.

It knows nothing of layers, causes or tolerances: that is `rip diverge`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ...replay.engines.base import Engine
from ...replay.request.resolve_request import vocabulary_size
from ...schemas.check import CheckLine, Compared, FirstDifference
from ...schemas.choices import Mode
from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput, EngineFailed
from ...schemas.fingerprint import Fingerprint

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


DEFAULT_LENGTH = 256
"""Longest prompt by default: short ones often show no drift at all."""


@dataclass(frozen=True)
class CheckPlan:
    """What the check runs.

    Attributes:
        sequences: How many.
        tokens: Generated tokens of each.
        seed: Of prompts, golden tokens and draws.
        min_length: Shortest prompt, in tokens.
        max_length: Longest one; None: 256, or less where the context is shorter.
        batch: Sequences that run together.
        mode: `golden-decode` forces random tokens, `free` lets the engine choose.
        sampled: In `free`: at temperature 1 with a seed for each sequence, else greedy.
    """

    sequences: int
    tokens: int
    seed: int
    min_length: int
    max_length: int | None
    batch: int
    mode: Mode
    sampled: bool = False

    @property
    def required(self) -> tuple[Compared, ...]:
        """What must be exactly equal."""
        return (
            ("token ids",)
            if self.sampled
            else ("token ids", "logprobs", "top token ids", "top-token logprobs")
        )


def random_requests(plan: CheckPlan, engine: Engine, fingerprint: Fingerprint) -> list[Envelope]:
    """Envelopes with random prompts of different lengths; the same ones for the same seed and sizes.

    Every sampling field is stated, so that no default of the engine applies.

    Raises:
        BadInput: The context does not hold them, or the size of the vocabulary is not known.
    """
    vocabulary = vocabulary_size(engine.vocab_size, fingerprint)
    longest = _longest(plan, engine.context_length)
    generator = random.Random(f"batch-invariance/{plan.seed}")
    choices = range(plan.min_length, longest + 1)
    distinct = len(choices) >= plan.sequences
    lengths = (
        generator.sample(choices, plan.sequences)
        if distinct
        else generator.choices(choices, k=plan.sequences)
    )
    width = len(str(plan.sequences - 1))
    sampling: dict[str, Any] = {
        "temperature": 1.0 if plan.sampled else 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": plan.tokens,
    }
    if "ignore_eos" not in engine.unsupported_sampling:
        sampling["ignore_eos"] = True
    made = []
    for index, length in enumerate(lengths):
        raw: dict[str, Any] = {
            "request_id": f"sequence-{index:0{width}}",
            "prompt_token_ids": [generator.randrange(vocabulary) for _ in range(length)],
            "sampling": {**sampling, "seed": plan.seed + index},
        }
        golden = [generator.randrange(vocabulary) for _ in range(plan.tokens)]
        if plan.mode == "golden-decode":
            raw["expected"] = {"token_ids": golden}
        made.append(Envelope.from_object(raw, "batch-invariance"))
    return made


def _longest(plan: CheckPlan, context: int) -> int:
    """Tokens of the longest prompt.

    Raises:
        BadInput: No prompt of these lengths leaves room for the generated tokens.
    """
    room = context - plan.tokens
    longest = (
        plan.max_length if plan.max_length is not None else min(max(DEFAULT_LENGTH, plan.min_length), room)
    )
    if longest > room or longest < plan.min_length:
        raise BadInput(
            f"prompts of {plan.min_length} to {max(longest, plan.min_length)} tokens and {plan.tokens} "
            f"generated ones do not fit the context of {context}",
            "lower --min-length, --max-length or --tokens",
        )
    return longest
