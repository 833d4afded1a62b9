"""The log-probability of every generated token, chosen or forced, among the top-K or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes.models import VOCAB
from fakes.replaying import planned, run
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.request.batches import Batch
from rip.schemas.trace import Mode

PROMPT = [10, 20, 30, 40]
GOLDEN = [99, 3, 55, 3]


def chosen_and_whole(engine: HfEngine, mode: Mode, golden: list[int] | None) -> list[tuple[float, float]]:
    """Per generated token: what is told of it, and its entry in the whole distribution."""
    found = run(engine, Batch((planned(0, PROMPT, golden=golden),)), mode)[0]
    pairs = []
    for position in range(len(PROMPT) - 1, len(found.token_ids) - 1):
        topk = found.topk[position]
        assert topk is not None
        assert topk.next_logprob is not None
        place = int(np.flatnonzero(topk.ids == found.token_ids[position + 1])[0])
        pairs.append((topk.next_logprob, float(topk.logprobs[place])))
    assert found.topk[-1] is None, "nothing follows the last token"
    return pairs


@pytest.mark.parametrize(
    ("mode", "golden"), [("free", None), ("golden-decode", GOLDEN), ("golden-prefill", GOLDEN)]
)
def test_it_is_the_tokens_entry_in_the_whole_distribution(
    tiny_model: Path, open_engine: Callable[..., HfEngine], mode: Mode, golden: list[int] | None
) -> None:
    pairs = chosen_and_whole(open_engine(tiny_model, topk=VOCAB), mode, golden)
    assert len(pairs) == (8 if golden is None else 4)
    assert all(told == whole for told, whole in pairs)


def test_a_forced_token_outside_the_top_k_has_one_too(
    tiny_model: Path, open_engine: Callable[..., HfEngine]
) -> None:
    whole = chosen_and_whole(open_engine(tiny_model, topk=VOCAB), "golden-decode", GOLDEN)
    found = run(open_engine(tiny_model, topk=1), Batch((planned(0, PROMPT, golden=GOLDEN),)), "golden-decode")
    told = [topk for topk in found[0].topk if topk is not None]
    assert [topk.next_logprob for topk in told] == [value for value, _ in whole]
    assert any(topk.ids[0] != token for topk, token in zip(told, GOLDEN, strict=True))
