"""What is to be executed: sequences grouped into batches, in the order they will run.

It knows nothing of engines; golden tokens and resolved sampling come in as values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput
from ..schemas.trace import Setting


@dataclass(frozen=True)
class PlannedSequence:
    """One sample of one request, ready to run.

    Attributes:
        sequence: Index in the trace; −1 for a neighbour, which runs but is not recorded.
        prompt: Prompt token ids.
        golden: Tokens to force, or None.
        sampling: Every sampling field with the value that applies.
        seed_offset: Added to the seed: which of the request's n samples this is.
    """

    sequence: int
    request_id: str
    sample: int
    prompt: tuple[int, ...]
    golden: tuple[int, ...] | None
    sampling: Mapping[str, Setting] = field(repr=False)
    seed_offset: int = 0

    @property
    def recorded(self) -> bool:
        """True for a sequence of the request set, False for a neighbour."""
        return self.sequence >= 0

    def value(self, name: str) -> object:
        """The sampling value that applies."""
        return self.sampling[name].resolved


@dataclass(frozen=True)
class Batch:
    """Sequences that share every forward pass. The recorded ones come first."""

    sequences: tuple[PlannedSequence, ...]


@dataclass(frozen=True)
class Requested:
    """One envelope with what the run needs of it."""

    envelope: Envelope
    prompt: tuple[int, ...]
    sampling: Mapping[str, Setting]
    golden: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Tokens to force by sample; empty in free mode."""


def plan_batches(
    requests: Sequence[Requested], repeat: int, batch_size: int, neighbours: Sequence[Requested], fill: int, vocab: int
) -> Iterator[Batch]:
    """Group all samples of all requests into batches.

    Args:
        requests: What is recorded.
        repeat: Times that every sample runs.
        batch_size: Recorded sequences per batch.
        neighbours: Requests that run beside every batch without being recorded.
        fill: How many synthetic neighbours to add to every batch (seeded random prompts of half to
            one and a half times the first prompt's length).
        vocab: Vocabulary size, for synthetic neighbours.

    Yields:
        Batches, in the order of the requests.
    """
    recorded: list[PlannedSequence] = []
    for request in requests:
        samples = int(str(request.sampling["n"].resolved))
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
                )
            )
    for start in range(0, len(recorded), batch_size):
        chosen = recorded[start : start + batch_size]
        present = {sequence.request_id for sequence in chosen}
        beside = [
            PlannedSequence(-1, other.envelope.request_id, 0, other.prompt, None, other.sampling)
            for other in neighbours
            if other.envelope.request_id not in present
        ]
        beside += [_synthetic_neighbour(chosen[0], index, vocab) for index in range(fill)]
        yield Batch((*chosen, *beside))


def _golden_of(request: Requested, sample: int) -> tuple[int, ...] | None:
    if not request.golden:
        return None
    if sample in request.golden:
        return request.golden[sample]
    if len(request.golden) == 1:
        return next(iter(request.golden.values()))
    raise BadInput(
        f"{request.envelope.request_id}: the golden trace holds no sample {sample}",
        "record the golden trace with the same --repeat",
    )


def _synthetic_neighbour(beside: PlannedSequence, index: int, vocab: int) -> PlannedSequence:
    generator = random.Random(f"{beside.request_id}/{index}")  # the same neighbours in every run
    length = max(1, int(len(beside.prompt) * generator.uniform(0.5, 1.5)))
    prompt = tuple(generator.randrange(vocab) for _ in range(length))
    return PlannedSequence(-1, f"neighbour-{index}", 0, prompt, None, beside.sampling)
