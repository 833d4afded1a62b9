"""Planning: every sample once, in order, in batches; neighbours beside them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.request.batches import Batch, Neighbours, ResolvedRequest, plan_batches
from rip.replay.request.contract import resolve_sampling
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput


def request(
    name: str, length: int = 4, golden: dict[int, tuple[int, ...]] | None = None, **sampling: Any
) -> ResolvedRequest:
    ids = list(range(1, length + 1))
    envelope = Envelope.from_object(
        {"request_id": name, "prompt_token_ids": ids, "sampling": sampling}, "test"
    )
    return ResolvedRequest(envelope, tuple(ids), resolve_sampling(envelope, {}), golden or {})


def ids(batch: Batch) -> list[str]:
    return [sequence.request_id for sequence in batch.sequences]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 8))
def test_every_sample_runs_once_in_order_whatever_the_batch(
    samples: list[int], repeat: int, batch_size: int
) -> None:
    requests = [request(f"r{index}", n=n) for index, n in enumerate(samples)]
    batches = list(plan_batches(requests, repeat, batch_size, Neighbours()))
    planned = [sequence for batch in batches for sequence in batch.sequences]
    assert [sequence.sequence for sequence in planned] == list(range(len(planned)))
    assert [(sequence.request_id, sequence.sample) for sequence in planned] == [
        (f"r{index}", sample) for index, n in enumerate(samples) for sample in range(repeat * n)
    ]
    assert {len(batch.sequences) for batch in batches[:-1]} <= {batch_size}


def test_repeats_take_the_same_seeds_and_samples_take_their_own() -> None:
    [batch] = plan_batches([request("r", n=3)], 2, 8, Neighbours())
    assert [sequence.seed_offset for sequence in batch.sequences] == [0, 1, 2, 0, 1, 2]


def test_named_neighbours_run_beside_every_batch_and_are_not_recorded() -> None:
    requests = [request("a"), request("b"), request("c")]
    neighbours = Neighbours([request("b"), request("x", max_tokens=9)])
    batches = list(plan_batches(requests, 1, 2, neighbours))
    assert [ids(batch) for batch in batches] == [["a", "b", "x"], ["c", "b", "x"]]
    assert [sequence.recorded for sequence in batches[1].sequences] == [True, False, False]


def test_neighbours_that_would_all_be_left_out_are_refused() -> None:
    with pytest.raises(BadInput, match="none would run beside it"):
        list(plan_batches([request("a")], 1, 1, Neighbours([request("a")])))


def test_synthetic_neighbours_are_the_same_in_every_run() -> None:
    neighbours = Neighbours(synthetic=3, vocab_size=50)
    [first] = plan_batches([request("a", length=40)], 1, 1, neighbours)
    [second] = plan_batches([request("a", length=40)], 1, 1, neighbours)
    [other] = plan_batches([request("b", length=40)], 1, 1, neighbours)
    prompts = [sequence.prompt for sequence in first.sequences]
    assert prompts == [sequence.prompt for sequence in second.sequences]
    assert prompts[1:] != [sequence.prompt for sequence in other.sequences][1:]
    assert len(set(prompts)) == 4
    assert all(20 <= len(prompt) <= 60 for prompt in prompts)
    assert max(max(prompt) for prompt in prompts[1:]) < 50


def test_synthetic_neighbours_leave_room_for_every_step() -> None:
    neighbours = Neighbours(synthetic=20, vocab_size=50, context_length=64)
    [batch] = plan_batches([request("a", length=44, max_tokens=20)], 1, 1, neighbours)
    assert all(len(sequence.prompt) + 20 <= 64 for sequence in batch.sequences)
    tight = Neighbours(synthetic=1, vocab_size=50, context_length=4)
    [batch] = plan_batches([request("a", length=2, max_tokens=2)], 1, 1, tight)
    assert 1 <= len(batch.sequences[1].prompt) <= 2


def test_golden_tokens_go_to_their_sample_and_one_serves_all() -> None:
    [batch] = plan_batches([request("a", golden={0: (7,), 1: (8, 9)})], 2, 8, Neighbours())
    assert [sequence.golden for sequence in batch.sequences] == [(7,), (8, 9)]
    assert [sequence.most_tokens for sequence in batch.sequences] == [1, 2]
    [batch] = plan_batches([request("a", golden={0: (7,)})], 3, 8, Neighbours())
    assert {sequence.golden for sequence in batch.sequences} == {(7,)}
    [batch] = plan_batches([request("a", max_tokens=5)], 1, 8, Neighbours())
    assert (batch.sequences[0].golden, batch.sequences[0].most_tokens) == (None, 5)


def test_a_sample_that_the_golden_trace_lacks_is_named() -> None:
    with pytest.raises(BadInput, match="no sample 2") as refused:
        list(plan_batches([request("a", golden={0: (7,), 1: (8,)})], 3, 8, Neighbours()))
    assert "--repeat" in refused.value.fix
