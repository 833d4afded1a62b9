"""What is to be executed: sequences grouped into batches, in the order they will run.

It knows nothing of engines; golden tokens and resolved sampling come in as values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput
from ...schemas.lane import Setting

NOT_RECORDED = -1
"""Sequence index of a neighbour."""


@dataclass(frozen=True)
class PlannedSequence:
    """One sample of one request, ready to run.

    Attributes:
        sequence: Index in the trace; `NOT_RECORDED` for a neighbour, which runs but leaves no rows.
        prompt: Prompt token ids.
        golden: Tokens to force, or None.
        sampling: Every sampling field with the value that applies.
        seed_offset: Added to the seed: which of the request's n samples this is.
        envelope: The request as it was recorded; None for a synthetic neighbour.
    """

    sequence: int
    request_id: str
    sample: int
    prompt: tuple[int, ...]
    golden: tuple[int, ...] | None
    sampling: Mapping[str, Setting] = field(repr=False)
    seed_offset: int = 0
    envelope: Envelope | None = field(default=None, repr=False)

    @property
    def recorded(self) -> bool:
        """True for a sequence of the request set, False for a neighbour."""
        return self.sequence != NOT_RECORDED

    @property
    def most_tokens(self) -> int:
        """Tokens that it generates at most, forced ones included."""
        return len(self.golden) if self.golden is not None else int(self.value("max_tokens"))

    @property
    def seed(self) -> int:
        """The seed of this sample."""
        return int(str(self.value("seed"))) + self.seed_offset

    def value(self, name: str) -> Any:
        """The sampling value that applies."""
        return self.sampling[name].resolved


@dataclass(frozen=True)
class Batch:
    """Sequences that share every forward pass. The recorded ones come first."""

    sequences: tuple[PlannedSequence, ...]


@dataclass(frozen=True)
class ResolvedRequest:
    """One envelope with what the run needs of it."""

    envelope: Envelope
    prompt: tuple[int, ...]
    sampling: Mapping[str, Setting]
    golden: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Tokens to force by sample; empty in free mode."""


@dataclass(frozen=True)
class Neighbours:
    """What runs in every batch without being recorded.

    Attributes:
        requests: Neighbours that the user named; one that the batch records already is left out.
        synthetic: How many seeded random prompts to add, of half to one and a half times the length of the
            batch's first prompt.
        vocab_size: Their token ids lie below this.
        context_length: Their prompts leave room in it for every step of the batch.
    """

    requests: Sequence[ResolvedRequest] = ()
    synthetic: int = 0
    vocab_size: int = 1
    context_length: int = 2**31 - 1


def plan_batches(
    requests: Sequence[ResolvedRequest], repeat: int, batch_size: int, neighbours: Neighbours
) -> Iterator[Batch]:
    """Group all samples of all requests into batches.

    Args:
        repeat: Times that every sample runs.
        batch_size: Recorded sequences per batch.

    Yields:
        Batches, in the order of the requests.

    Raises:
        BadInput: The golden tokens lack a sample, or no named neighbour is left to run beside a batch.
    """
    recorded: list[PlannedSequence] = []
    for request in requests:
        samples = int(request.sampling["n"].resolved)
        for index in range(repeat * samples):
            recorded.append(
                PlannedSequence(
                    sequence=len(recorded),
                    request_id=request.envelope.request_id,
                    sample=index,
                    prompt=request.prompt,
                    golden=_golden_of(request, index),
                    sampling=request.sampling,
                    seed_offset=index % samples,
                    envelope=request.envelope,
                )
            )
    for start in range(0, len(recorded), batch_size):
        chosen = recorded[start : start + batch_size]
        present = {sequence.request_id for sequence in chosen}
        named = [
            PlannedSequence(
                NOT_RECORDED,
                other.envelope.request_id,
                0,
                other.prompt,
                None,
                other.sampling,
                envelope=other.envelope,
            )
            for other in neighbours.requests
            if other.envelope.request_id not in present
        ]
        if neighbours.requests and not named:
            raise BadInput(
                "every neighbour is recorded in the same batch already, so none would run beside it",
                "give other requests to --neighbours, or a number for synthetic ones",
            )
        synthetic = [_synthetic_neighbour(chosen, index, neighbours) for index in range(neighbours.synthetic)]
        yield Batch((*chosen, *named, *synthetic))


def _golden_of(request: ResolvedRequest, sample: int) -> tuple[int, ...] | None:
    if not request.golden:
        return None
    if sample in request.golden:
        return request.golden[sample]
    if len(request.golden) == 1:
        return next(iter(request.golden.values()))
    raise BadInput(
        f"{request.envelope.request_id}: the golden trace holds no sample {sample}",
        f"it holds {len(request.golden)} samples: ask for as many with --repeat",
    )


def _synthetic_neighbour(
    batch: Sequence[PlannedSequence], index: int, neighbours: Neighbours
) -> PlannedSequence:
    first = batch[0]
    generator = random.Random(f"{first.request_id}/{index}")  # the same neighbours in every run
    room = neighbours.context_length - max(sequence.most_tokens for sequence in batch)
    length = max(1, min(int(len(first.prompt) * generator.uniform(0.5, 1.5)), room))
    prompt = tuple(generator.randrange(neighbours.vocab_size) for _ in range(length))
    return PlannedSequence(NOT_RECORDED, f"neighbour-{index}", 0, prompt, None, first.sampling)
