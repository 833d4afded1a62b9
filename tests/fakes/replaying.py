"""Running an engine in a test without the request side: batches of token ids, events as lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rip.replay.engines.base import Engine, Finished
from rip.replay.request.batches import Batch, PlannedSequence
from rip.replay.request.contract import ENGINE_DEFAULTS
from rip.replay.row_summaries.rows import ExecutionShape, Rows, SamplerRecord, TopK
from rip.schemas.lane import Setting
from rip.schemas.trace import Mode

NEIGHBOUR = -1


def planned(
    sequence: int, prompt: Sequence[int], golden: Sequence[int] | None = None, **sampling: Any
) -> PlannedSequence:
    """A greedy sequence of at most 8 tokens that ends at no token, unless `sampling` says otherwise."""
    values = {**ENGINE_DEFAULTS, "temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **sampling}
    settings = {name: Setting(resolved=value, source="envelope") for name, value in values.items()}
    forced = None if golden is None else tuple(golden)
    return PlannedSequence(sequence, f"r{sequence}", 0, tuple(prompt), forced, settings)


def batch_of(*prompts: Sequence[int], **sampling: Any) -> Batch:
    """One batch of greedy sequences, numbered from 0."""
    return Batch(tuple(planned(index, prompt, **sampling) for index, prompt in enumerate(prompts)))


@dataclass
class Gathered:
    """Everything an engine handed over about one sequence. Axes: P positions, S sites."""

    token_ids: list[int] = field(default_factory=list)
    topk: list[TopK | None] = field(default_factory=list)
    samplers: list[SamplerRecord | None] = field(default_factory=list)
    shapes: list[ExecutionShape | None] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    hashes: list[bytes | None] = field(default_factory=list)
    """Per position, the S row hashes as one string; None where no summary came."""
    numbers: list[bytes | None] = field(default_factory=list)
    """Per position, L2, absmax and sketch of all sites, likewise."""
    tensors: list[list[tuple[int, bytes]]] = field(default_factory=list)
    finished: Finished | None = None

    def site_hash(self, position: int, site: int) -> bytes:
        """One row hash."""
        row = self.hashes[position]
        assert row is not None
        return row[16 * site : 16 * site + 16]

    def logits_hashes(self) -> list[bytes | None]:
        """Per position."""
        return [None if topk is None else topk.logits_hash for topk in self.topk]

    def same_bits(self, other: Gathered) -> bool:
        """Every column equal, bit for bit; the forced flag aside."""
        return (
            self.token_ids == other.token_ids
            and self.logits_hashes() == other.logits_hashes()
            and [str(topk) for topk in self.topk] == [str(topk) for topk in other.topk]
            and self.samplers == other.samplers
            and self.shapes == other.shapes
            and self.hashes == other.hashes
            and self.numbers == other.numbers
            and self.tensors == other.tensors
        )


def gather(events: Iterable[Rows | Finished]) -> Mapping[int, Gathered]:
    """Run to the end; positions must come without gaps."""
    found: dict[int, Gathered] = {}
    for event in events:
        sequence = found.setdefault(event.sequence, Gathered())
        if isinstance(event, Finished):
            assert sequence.finished is None
            sequence.finished = event
            continue
        assert event.first_position == len(sequence.token_ids)
        assert sequence.finished is None
        count = len(event.token_ids)
        assert count == len(event.topk) == len(event.samplers) == len(event.shapes)
        sequence.token_ids += event.token_ids.tolist()
        sequence.topk += event.topk
        sequence.samplers += event.samplers
        sequence.shapes += event.shapes
        sequence.forced += [event.forced] * count
        sequence.tensors += event.tensors or [[]] * count
        for row in range(count):
            summaries = event.summaries
            if summaries is None:
                sequence.hashes.append(None)
                sequence.numbers.append(None)
            else:
                values = (summaries.l2[row], summaries.absmax[row], summaries.sketch[row])
                sequence.hashes.append(np.ascontiguousarray(summaries.row_hash[row]).tobytes())
                sequence.numbers.append(b"".join(np.ascontiguousarray(value).tobytes() for value in values))
    return found


def run(engine: Engine, batch: Batch, mode: Mode = "free", observe: bool = True) -> Mapping[int, Gathered]:
    """Run one batch to its end."""
    return gather(engine.run(batch, mode, observe))


def run_one(engine: Engine, prompt: Sequence[int], mode: Mode = "free", **plan: Any) -> Gathered:
    """Run one sequence alone (see `planned`)."""
    return run(engine, Batch((planned(0, prompt, **plan),)), mode)[0]
