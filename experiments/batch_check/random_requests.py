"""The requests of the batch-invariance check: random prompts of many lengths, and random golden tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ...replay.engines.base import Engine
from ...replay.request.resolve import vocabulary_size
from ...schemas.check import Compared
from ...schemas.choices import Mode
from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fingerprint

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
