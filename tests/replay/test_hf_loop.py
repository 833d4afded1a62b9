"""The decode loop: the tokens that transformers itself generates, the same bits twice, honest shapes."""

import numpy as np
import pytest
import torch
from fakes.replaying import NEIGHBOUR, batch_of, planned, run, run_one
from rip.replay.request.batches import Batch
from rip.replay.row_summaries.rows import ExecutionShape
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput

FAMILIES = ["llama", "llama-bf16", "mixtral", "qwen2", "qwen3", "gemma3", "window", "gpt2"]
PROMPT = [10, 20, 30, 40, 50, 60, 70]
PROMPTS = (PROMPT, [80], [90, 100, 110], [31, 41, 59, 26, 53])
LONGER_THAN_THE_WINDOW = ([*range(10, 22)], [80], [90, 100, 110], [31, 41, 59, 26, 53])


def generated(gathered, prompt):
    return gathered.token_ids[len(prompt) :]


def tokens_of(engine, prompts, **sampling):
    found = run(engine, batch_of(*prompts, **sampling))
    return [generated(found[index], prompt) for index, prompt in enumerate(prompts)]


def by_generate(model, prompt, count):
    """Greedy tokens of transformers' own loop."""
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            temperature=None,
            top_p=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    return ids[0, len(prompt) :].tolist()


# Equal to transformers, and to itself


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompt", [PROMPT, [80]], ids=["7 tokens", "1 token"])
def test_greedy_tokens_are_those_of_transformers_generate(tiny_models, open_engine, family, prompt):
    engine = open_engine(tiny_models(family), sites=None)
    assert generated(run_one(engine, prompt, max_tokens=30), prompt) == by_generate(engine.model, prompt, 30)


@pytest.mark.model
def test_greedy_tokens_of_the_real_model_are_those_of_generate(smollm2, open_engine):
    engine = open_engine(smollm2, sites=None, dtype="bfloat16")
    prompt = engine.tokenize(
        Envelope(request_id="rivers", messages=[{"role": "user", "content": "Name three rivers."}])
    )
    assert generated(run_one(engine, prompt, max_tokens=12), prompt) == by_generate(engine.model, prompt, 12)


@pytest.mark.parametrize("family", ["llama", "llama-bf16", "mixtral", "gemma3", "gpt2"])
def test_two_identical_runs_are_equal_bit_for_bit(tiny_models, open_engine, family):
    results = []
    for _ in range(2):
        engine = open_engine(tiny_models(family), keep_positions=range(2, 9))
        results.append(run(engine, batch_of(*PROMPTS, temperature=1.0, seed=7)))
    for sequence in results[0]:
        assert results[0][sequence].same_bits(results[1][sequence])
    # The control: another seed is noticed.
    other = run(engine, batch_of(*PROMPTS, temperature=1.0, seed=8))
    assert not other[0].same_bits(results[0][0])


def test_one_weight_changed_by_an_ulp_is_noticed_by_the_same_comparison(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    before = run_one(engine, PROMPT)
    weight = engine.model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(torch.inf))
    assert not run_one(engine, PROMPT).same_bits(before)


def test_taps_do_not_change_the_run(tiny_models, open_engine):
    engine = open_engine(tiny_models("llama-bf16"))
    observed, plain = (run(engine, batch_of(*PROMPTS), observe=observe) for observe in (True, False))
    for sequence in observed:
        assert observed[sequence].token_ids == plain[sequence].token_ids
        assert observed[sequence].logits_hashes() == plain[sequence].logits_hashes()
        assert plain[sequence].hashes == [None] * len(plain[sequence].hashes)


# Batches, padding, chunks


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen2", "qwen3", "gpt2", "gemma3", "window"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("chunk", [0, 3])
def test_a_left_padded_batch_gives_the_tokens_of_each_prompt_alone(
    tiny_models, open_engine, family, attention, chunk
):
    engine = open_engine(tiny_models(family), sites=None, attention=attention, prefill_chunk=chunk)
    prompts = LONGER_THAN_THE_WINDOW
    alone = [tokens_of(engine, [prompt], max_tokens=12)[0] for prompt in prompts]
    assert tokens_of(engine, prompts, max_tokens=12) == alone


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("chunk", [0, 3])
def test_a_right_padded_batch_gives_the_tokens_of_each_prompt_alone(
    tiny_models, open_engine, family, attention, chunk
):
    engine = open_engine(
        tiny_models(family), sites=None, attention=attention, prefill_chunk=chunk, padding_side="right"
    )
    alone = [tokens_of(engine, [prompt], max_tokens=12)[0] for prompt in PROMPTS]
    assert tokens_of(engine, PROMPTS, max_tokens=12) == alone


@pytest.mark.parametrize("family", ["gemma3", "window"])
@pytest.mark.parametrize("mode", ["free", "golden-prefill"])
def test_right_padding_is_refused_where_it_would_fill_a_sliding_window(
    tiny_models, open_engine, family, mode
):
    engine = open_engine(tiny_models(family), sites=None, padding_side="right")
    plans = [planned(index, PROMPTS[index], golden=[5, 6]) for index in range(2)]
    with pytest.raises(BadInput, match="sliding window") as caught:
        run(engine, Batch(tuple(plans)), mode)
    assert "padding_side=left" in caught.value.fix
    equal = run(engine, batch_of([5, 6, 7], [8, 9, 10]))  # nothing to pad
    assert equal[1].token_ids == run_one(engine, [8, 9, 10]).token_ids


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_puts_no_nan_into_low_precision_runs(tiny_model, open_engine, dtype, attention):
    engine = open_engine(tiny_model, dtype=dtype, attention=attention, prefill_chunk=2)
    for gathered in run(engine, batch_of(*PROMPTS)).values():
        assert all(np.isfinite(topk.logsumexp) for topk in gathered.topk if topk is not None)


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_batch_differ_from_those_alone_by_rounding_only(tiny_model, open_engine, side):
    engine = open_engine(tiny_model, sites=None, topk=128, padding_side=side)
    together = run(engine, batch_of(*PROMPTS))
    for index, prompt in enumerate(PROMPTS):
        alone = run_one(engine, prompt)
        for a, b in zip(alone.topk, together[index].topk, strict=True):
            if a is not None:
                logits_a, logits_b = np.empty(128), np.empty(128)
                logits_a[a.ids], logits_b[b.ids] = a.logits, b.logits
                np.testing.assert_allclose(logits_a, logits_b, atol=2e-4)


def test_neighbours_run_beside_and_are_not_recorded(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    neighbour = planned(NEIGHBOUR, [5] * 20, max_tokens=2)
    found = run(engine, Batch((planned(0, PROMPT), neighbour)))
    assert set(found) == {0}
    assert found[0].shapes[0] == ExecutionShape(2, 0, 7, 13, 0)
    assert found[0].token_ids == run_one(engine, PROMPT).token_ids


def test_a_neighbour_longer_than_the_context_harms_nobody(tiny_models, open_engine):
    engine = open_engine(tiny_models("gpt2"), sites=None)  # 64 learned positions
    neighbour = planned(NEIGHBOUR, [5] * 80)
    found = run(engine, Batch((planned(0, PROMPT), neighbour)))
    assert found[0].token_ids == run_one(engine, PROMPT).token_ids


def test_a_sequence_that_has_ended_at_the_context_limit_runs_on_harmlessly(tiny_models, open_engine):
    engine = open_engine(tiny_models("gpt2"), sites=None)
    long, short = planned(0, [7] * 60, max_tokens=4), planned(1, PROMPT, max_tokens=40)
    found = run(engine, Batch((long, short)))
    assert len(found[0].token_ids) == 64
    assert found[1].token_ids == run_one(engine, PROMPT, max_tokens=40).token_ids


def test_sequences_end_at_their_own_times(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    lengths = (1, 3, 10, 2)
    plans = [planned(index, PROMPTS[index], max_tokens=count) for index, count in enumerate(lengths)]
    found = run(engine, Batch(tuple(plans)))
    for index, count in enumerate(lengths):
        alone = run_one(engine, PROMPTS[index], max_tokens=count)
        assert found[index].token_ids == alone.token_ids
        assert found[index].finished.reason == "length"
        assert {shape.batch_size for shape in found[index].shapes if shape is not None} == {4}


def test_the_end_of_sequence_token_ends_a_sequence_unless_it_is_to_be_ignored(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    free = run_one(engine, PROMPT, max_tokens=8)
    stop = generated(free, PROMPT)[3]
    stopped = run_one(engine, PROMPT, max_tokens=8, stop_token_ids=[stop])
    assert stopped.token_ids == free.token_ids[: len(PROMPT) + 4]
    assert stopped.finished.reason == "stop"
    assert stopped.finished.text == engine.decode(generated(stopped, PROMPT))
