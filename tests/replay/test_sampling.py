"""The sampler against plain computations: what each field does to the logits, and which token follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fakes.replaying import planned
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.engines.hf.sampling import Sampler, StopRule, UniformDraws
from rip.replay.row_summaries.rows import SamplerRecord
from rip.schemas.errors import BadInput

VOCAB = 20
EOS = (2,)
PROMPT = [3, 4, 5]
WORDS = {"bad": [7], " bad": [8], "two": [9, 10], " two": [11, 10], "</s>": [2], " </s>": [12, 2]}


def sampler(
    seed: int = 0, encode: Any = WORDS.get, prompt: Sequence[int] = PROMPT, **sampling: Any
) -> Sampler:
    fields = {"ignore_eos": False, **sampling}
    return Sampler(planned(0, prompt, **fields), UniformDraws(seed), EOS, VOCAB, encode)


def some_logits(seed: int = 1) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def choose(logits: torch.Tensor, generated: Sequence[int] = (), **sampling: Any) -> tuple[int, SamplerRecord]:
    return sampler(**sampling).choose(logits, [*PROMPT, *generated])


def allowed(
    logits: torch.Tensor, generated: Sequence[int] = (), draws: int = 400, **sampling: Any
) -> set[int]:
    """Every token that comes out in many draws."""
    drawer = sampler(**{"temperature": 1.0, **sampling})
    return {drawer.choose(logits, [*PROMPT, *generated])[0] for _ in range(draws)}


def probabilities(logits: torch.Tensor) -> np.ndarray:
    values = np.exp(logits.double().numpy() - float(logits.max()))
    return values / values.sum()


# Greedy


def test_greedy_takes_the_largest_and_the_lowest_id_of_a_tie() -> None:
    logits = torch.full((VOCAB,), -1.0)
    logits[[15, 6, 11]] = 2.0
    token, record = choose(logits)
    assert (token, record) == (6, SamplerRecord(6, 2.0, draw=None, rng_offset=None))


@given(st.integers(0, 10**6))
def test_what_only_shapes_a_random_choice_does_not_touch_a_greedy_one(seed: int) -> None:
    logits = some_logits(seed)
    assert choose(logits, top_k=3, top_p=0.1, min_p=0.9)[0] == int(logits.argmax())


# The draw


@given(st.integers(0, 10**6), st.floats(0.2, 3), st.integers(0, VOCAB))
def test_the_recorded_draw_gives_the_token_by_inverse_cdf(seed: int, temperature: float, top_k: int) -> None:
    logits = some_logits(seed)
    token, record = choose(logits, seed=seed, temperature=temperature, top_k=top_k)
    weights = probabilities(logits / temperature)
    if top_k:
        weights[np.argsort(-logits.numpy(), kind="stable")[top_k:]] = 0
    cumulative = np.cumsum(weights / weights.sum())
    assert record.draw is not None
    # The float32 of the temperature's quotient moves the border between two tokens by less than this.
    near = {int(np.searchsorted(cumulative, record.draw + shift, side="right")) for shift in (-1e-6, 0, 1e-6)}
    assert token in near


def test_each_choice_takes_one_draw_and_counts_it() -> None:
    drawer = sampler(seed=5, temperature=1.0)
    records = [drawer.choose(some_logits(), PROMPT)[1] for _ in range(4)]
    assert [record.rng_offset for record in records] == [0, 1, 2, 3]
    stream = UniformDraws(5)
    assert [record.draw for record in records] == [stream.next() for _ in range(4)]
    assert len({record.draw for record in records}) == 4


def test_the_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    def first_ten(seed: int) -> list[float]:
        stream = UniformDraws(seed)
        return [stream.next() for _ in range(10)]

    assert first_ten(42) == first_ten(42)
    assert first_ten(42) != first_ten(43)
    assert first_ten(-1) == first_ten(2**64 - 1), "seeds are 64 bits, signed or not"
    assert all(0 <= draw < 1 for draw in first_ten(42))


def test_choices_follow_the_distribution() -> None:
    logits = torch.full((VOCAB,), -math.inf)
    logits[[4, 9]] = torch.tensor([math.log(0.25), math.log(0.75)])
    drawer = sampler(seed=1, temperature=1.0)
    tokens = [drawer.choose(logits, PROMPT)[0] for _ in range(2000)]
    assert set(tokens) == {4, 9}
    assert 0.71 < tokens.count(9) / 2000 < 0.79  # four standard errors


@pytest.mark.parametrize("draw", [0.0, math.nextafter(1, 0)])
def test_a_draw_at_either_end_takes_no_token_without_probability(draw: float) -> None:
    drawer = sampler(temperature=1.0)
    drawer._draws.next = lambda: draw  # type: ignore[method-assign]
    logits = torch.full((VOCAB,), -math.inf)
    logits[5:9] = torch.tensor([0.1, 0.7, -0.3, 1e-3])
    assert drawer.choose(logits, PROMPT)[0] == (5 if draw == 0 else 8)


# What shapes a random choice


def test_top_k_keeps_the_k_largest() -> None:
    logits = some_logits()
    assert allowed(logits, top_k=3, temperature=5.0) == set(torch.topk(logits, 3).indices.tolist())
    assert allowed(logits, top_k=-1, temperature=50.0) == set(range(VOCAB)), "-1 and 0: no limit"


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = some_logits()
    weights = probabilities(logits)
    order = np.argsort(-weights)
    needed = int(np.searchsorted(np.cumsum(weights[order]), 0.8)) + 1
    assert 1 < needed < VOCAB
    assert allowed(logits, draws=3000, top_p=0.8) == set(order[:needed].tolist())


def test_min_p_keeps_what_reaches_a_share_of_the_largest() -> None:
    logits = some_logits()
    weights = probabilities(logits)
    kept = set(np.flatnonzero(weights >= 0.1 * weights.max()).tolist())
    assert 1 < len(kept) < VOCAB
    assert allowed(logits, draws=2000, min_p=0.1) == kept


# What holds for greedy too


def test_presence_and_frequency_follow_the_openai_formula() -> None:
    logits, generated = some_logits(), [6, 6, 6, 9, 14]
    _, record = choose(logits, generated, presence_penalty=0.7, frequency_penalty=0.3)
    expected = logits.clone()
    for token in set(generated):  # generated tokens only: the prompt's 3, 4 and 5 are not counted
        expected[token] -= 0.7 + 0.3 * generated.count(token)
    assert record.top1_id == int(expected.argmax())
    assert record.top1_logit == pytest.approx(float(expected.max()), abs=1e-5)
    logits[6] += 2  # the most likely one is penalised
    _, record = choose(logits, generated, presence_penalty=10, frequency_penalty=10)
    assert record.top1_id not in generated


def test_a_repetition_penalty_counts_the_prompt_too() -> None:
    logits = torch.full((VOCAB,), -8.0)
    logits[[3, 6, 9]] = torch.tensor([4.0, 3.9, 1.0])  # 3 is in the prompt, 6 was generated
    assert choose(logits, [6], repetition_penalty=1.0)[0] == 3
    _, record = choose(logits, [6], repetition_penalty=2.0)
    assert (record.top1_id, record.top1_logit) == (3, pytest.approx(2.0))
    assert choose(logits, [6], repetition_penalty=5.0)[0] == 9
    negative = torch.full((VOCAB,), -4.0)
    negative[3] = -3.0
    assert choose(negative, repetition_penalty=2.0)[0] != 3, "a negative logit is multiplied"


def test_bad_words_are_banned_at_the_start_and_after_a_space() -> None:
    logits = torch.zeros(VOCAB)
    logits[[7, 8, 10]] = torch.tensor([3.0, 2.0, 1.0])
    assert choose(logits)[0] == 7
    assert choose(logits, bad_words=["bad"])[0] == 10
    # Of several tokens only the last is banned, and only after the ones before it.
    assert choose(logits, [9], bad_words=["bad", "two"])[0] not in (7, 8, 10)
    assert choose(logits, [11], bad_words=["bad", "two"])[0] not in (7, 8, 10)
    assert choose(logits, [13], bad_words=["bad", "two"])[0] == 10


def test_a_bad_word_that_ends_the_sequence_is_banned_as_well() -> None:
    logits = torch.zeros(VOCAB)
    logits[2] = 5.0
    assert choose(logits)[0] == 2
    assert choose(logits, bad_words=["</s>"])[0] != 2


def test_a_bias_is_added() -> None:
    logits = some_logits()
    weakest = int(logits.argmin())
    _, record = choose(logits, logit_bias={str(weakest): 100.0})
    assert (record.top1_id, record.top1_logit) == (weakest, pytest.approx(float(logits[weakest]) + 100))


def test_only_allowed_ids_are_chosen() -> None:
    logits = some_logits()
    assert allowed(logits, allowed_token_ids=[4, 9, 11], temperature=9.0) == {4, 9, 11}


def test_constraints_that_forbid_everything_are_refused() -> None:
    def as_number(text: str) -> list[int]:
        return [int(text)]

    words = [str(token) for token in range(VOCAB)]
    with pytest.raises(BadInput, match="forbid every token"):
        choose(some_logits(), bad_words=words, encode=as_number)
    assert choose(some_logits(), bad_words=words[1:], encode=as_number)[0] == 0


def test_a_bad_word_without_tokens_bans_nothing() -> None:
    logits = some_logits()
    assert choose(logits, bad_words=[" "], encode=lambda _: [])[0] == int(logits.argmax())


def test_no_end_before_min_tokens() -> None:
    logits = torch.zeros(VOCAB)
    logits[[2, 13, 6]] = torch.tensor([9.0, 8.0, 7.0])
    fields: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": [13]}
    assert [choose(logits, generated, **fields)[0] for generated in ([], [6], [6, 6])] == [6, 6, 2]
    assert choose(logits, ignore_eos=True, **fields)[0] == 2, "an ignored end is an ordinary token"


def test_the_order_is_that_of_transformers() -> None:
    every = sampler(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        logit_bias={"3": 1.0},
        bad_words=["bad"],
        allowed_token_ids=[1, 2],
        min_tokens=1,
        repetition_penalty=1.1,
        presence_penalty=0.1,
    )
    assert [type(processor).__name__ for processor in every._processors] == [
        "SequenceBiasLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "PrefixConstrainedLogitsProcessor",
        "OccurrencePenalties",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
    ]


def test_the_raw_logits_are_left_as_they_are() -> None:
    logits = some_logits()
    before = logits.clone()
    choose(logits, [6], temperature=0.5, top_k=2, repetition_penalty=2.0, logit_bias={"3": 1.0})
    assert torch.equal(logits, before)


def test_logits_without_a_number_still_give_a_token_of_the_vocabulary() -> None:
    logits = torch.full((VOCAB,), math.nan)
    for temperature in (0.0, 1.0):
        assert 0 <= choose(logits, temperature=temperature)[0] < VOCAB


# When a sequence ends


def ends(generated: Sequence[int], decode: Any = None, **sampling: Any) -> list[str | None]:
    """What the rule says after each token."""
    rule = StopRule(planned(0, PROMPT, **{"ignore_eos": False, **sampling}), EOS, decode)
    return [rule.reason(generated[: count + 1]) for count in range(len(generated))]


def letters(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_a_sequence_ends_at_eos_a_stop_id_or_its_length() -> None:
    assert ends([5, 2], max_tokens=9) == [None, "stop"]
    assert ends([5, 2, 6], max_tokens=3, ignore_eos=True) == [None, None, "length"]
    assert ends([5, 7], max_tokens=9, stop_token_ids=[7]) == [None, "stop"]
    assert ends([5, 7], max_tokens=9, stop_token_ids=[7], ignore_eos=True) == [None, "stop"]
    assert ends([2], max_tokens=1) == ["stop"]


def test_a_stop_string_ends_it_across_tokens() -> None:
    assert ends([0, 1, 3], letters, stop=["bd"], max_tokens=9) == [None, None, "stop"]
    assert ends([0, 1, 3], letters, stop=["x", "ab"], max_tokens=9)[1] == "stop"
    assert ends([0, 1, 3], letters, stop=["ba"], max_tokens=9) == [None, None, None]


def test_a_stop_string_within_the_minimum_ends_nothing() -> None:
    assert ends([0, 1, 3, 0, 1], letters, stop=["ab"], min_tokens=2, max_tokens=9) == [None] * 4 + ["stop"]
    assert ends([0, 1, 3], letters, stop=["bd"], min_tokens=2, max_tokens=9)[2] == "stop", "ends after it"


def test_stop_strings_need_no_tokenizer_where_tokens_are_forced() -> None:
    forced = StopRule(planned(0, PROMPT, golden=[2, 6], stop=["x"], ignore_eos=False), EOS, None)
    assert [forced.reason([2]), forced.reason([2, 6])] == [None, "golden"]
