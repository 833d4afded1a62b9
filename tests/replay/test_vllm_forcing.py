"""Golden decode inside vLLM: the logits processor leaves a forced request one token, and others alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.vllm_tap.forcing import ForcedTokens, forced_ids

SWAP, ONE_WAY = SimpleNamespace(name="SWAP"), SimpleNamespace(name="UNIDIRECTIONAL")


def asking(force: Any = None) -> Any:
    """Sampling parameters of a request."""
    return SimpleNamespace(extra_args=None if force is None else {"rip_force": force, "other": 1})


def update(added: list[Any] = [], removed: list[int] = [], moved: list[Any] = []) -> Any:  # noqa: B006
    """A batch update of the first runner."""
    return SimpleNamespace(added=added, removed=removed, moved=moved)


def chosen(logits: torch.Tensor) -> list[int | None]:
    """The only possible token of each row; None where several are."""
    return [
        int(row.argmax()) if int(row.isfinite().sum()) == 1 else None  # type: ignore[misc]
        for row in logits
    ]


def first_runner() -> ForcedTokens:
    return ForcedTokens(None, torch.device("cpu"), False)


def test_every_step_has_its_token_and_the_rest_runs_free() -> None:
    processor, generated = first_runner(), []
    processor.update_state(update(added=[(0, asking([7, 3]), [1, 2], generated), (1, asking(), [1], [])]))
    seen = []
    for _ in range(3):
        processor.update_state(None)
        logits = processor.apply(torch.randn(2, 10))
        seen.append(chosen(logits))
        generated.append(int(logits[0].argmax()))
    assert seen == [[7, None], [3, None], [None, None]]
    assert generated[:2] == [7, 3]


def test_a_token_that_another_processor_forbade_is_forced_all_the_same() -> None:
    processor = first_runner()
    processor.update_state(update(added=[(0, asking([4]), [], [])]))
    logits = torch.zeros(1, 6)
    logits[0, 4] = float("-inf")  # min_tokens forbids the end of the answer
    for temperature in (1.0, 0.7):
        assert torch.softmax(processor.apply(logits.clone()) / temperature, -1)[0, 4] == 1.0


def test_without_forced_requests_nothing_is_touched() -> None:
    processor = first_runner()
    processor.update_state(update(added=[(0, asking(), [], []), (1, asking([]), [], [])]))
    logits = torch.randn(2, 6)
    before = logits.clone()
    assert processor.apply(logits) is logits
    assert torch.equal(logits, before)
    assert not processor.is_argmax_invariant()


def test_a_token_beyond_the_vocabulary_is_left_to_the_engine() -> None:
    processor = first_runner()
    processor.update_state(update(added=[(0, asking([99]), [], [])]))
    logits = torch.randn(1, 6)
    assert torch.equal(processor.apply(logits.clone()), logits)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "move", "swap"]), st.integers(0, 3), st.integers(0, 3))
    )
)
def test_requests_keep_their_tokens_through_the_batch(events: list[tuple[str, int, int]]) -> None:
    processor = first_runner()
    rows: dict[int, int | None] = {}
    """What stands where: the forced token, or None for a free request."""
    for number, (what, source, target) in enumerate(events):
        if what == "add":
            token = number % 7 if number % 3 else None
            rows[source] = token
            processor.update_state(
                update(added=[(source, asking(None if token is None else [token]), [], [])])
            )
        elif what == "remove":
            rows.pop(source, None)
            processor.update_state(update(removed=[source]))
        elif source != target and source in rows:
            direction = SWAP if what == "swap" else ONE_WAY
            moving, there = rows.pop(source), rows.pop(target, None)
            rows[target] = moving
            if what == "swap" and there is not None:
                rows[source] = there
            processor.update_state(update(moved=[(source, target, direction)]))
    found = chosen(processor.apply(torch.zeros(4, 8)))
    assert found == [rows.get(row) for row in range(4)]


def test_the_second_runner_finds_steps_by_slot_and_position() -> None:
    """Slots 5 and 2 with prompts of 3 and 4 tokens; the first has two drafts, so three rows of logits."""
    prompt_len = SimpleNamespace(np=np.array([0, 0, 4, 0, 0, 3]))
    processor = ForcedTokens(None, SimpleNamespace(prompt_len=prompt_len))
    assert processor.add_request(5, asking([6, 1, 8, 2]))
    assert not processor.add_request(2, asking())
    processor.apply_staged_writes()
    context = SimpleNamespace(
        idx_mapping_np=np.array([5, 2]),
        expanded_idx_mapping=torch.tensor([5, 5, 5, 2]),
        pos=torch.tensor([3, 4, 5, 9]),  # the tokens at positions 4, 5, 6: answers 1, 2, 3
    )
    assert chosen(processor.apply(torch.randn(4, 10), context)) == [1, 8, 2, None]
    assert not processor.add_request(5, asking()), "a slot is used again"
    assert chosen(processor.apply(torch.randn(4, 10), context)) == [None] * 4


@pytest.mark.parametrize("given", [[1, 2, 3], "1,2,3", " 1, 2,3 ", [1.0, 2, 3]])
def test_ids_may_be_a_list_or_text(given: Any) -> None:
    assert forced_ids(asking(given)) == [1, 2, 3]


@pytest.mark.parametrize("given", ["a,b", [1.5], [-1], "1,,2", 5, [None], {"a": 1}, [float("nan")]])
def test_anything_else_is_refused_before_it_runs(given: Any) -> None:
    with pytest.raises(ValueError, match="must be a list of token ids"):
        ForcedTokens.validate_params(asking(given))
